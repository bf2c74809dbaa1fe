"""What the archive reads before replay writes it."""

import asyncio
import struct
from collections import Counter
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from thermocline_common.ids import DocId
from thermocline_feeder import ahead
from thermocline_feeder.plan.ahead import LANES, SLOW_SECONDS, Cost, lanes
from thermocline_feeder.plan.verdicts import Verdict

ON_DISK = Cost(10 * SLOW_SECONDS)


def verdicts(count: int, namespace: str = "shop.o") -> list[Verdict]:
    return [
        Verdict(namespace, DocId(16, b"", struct.pack("<i", number)), b"document")
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("cost", "count", "readers"),
    [
        (
            Cost(),
            1_000,
            LANES,
        ),  # nothing is known yet: one serial batch on a disk would take minutes
        (Cost(SLOW_SECONDS), 1_000, 0),  # in memory
        (ON_DISK, 0, 0),
        (ON_DISK, 3, 0),
        (ON_DISK, 4, 4),
        (ON_DISK, 1_000, LANES),
    ],
)
def test_how_many_read_ahead(cost: Cost, count: int, readers: int) -> None:
    assert len(lanes(verdicts(count), cost)) == readers


def test_every_document_is_read_once_in_lanes_of_like_length() -> None:
    wanted = [*verdicts(30), *verdicts(11, "shop.p")]
    found = lanes(wanted, ON_DISK)
    read = [(namespace, i) for lane in found for namespace, ids in lane.items() for i in ids]
    assert Counter(read) == Counter((v.namespace, v.id) for v in wanted)
    lengths = [sum(len(ids) for ids in lane.values()) for lane in found]
    assert max(lengths) - min(lengths) <= 1


def test_deleted_documents_are_read_too() -> None:
    gone = [verdict._replace(document=None) for verdict in verdicts(8)]
    assert sum(len(ids) for lane in lanes(gone, ON_DISK) for ids in lane.values()) == 8


@pytest.mark.parametrize(
    ("batches", "disk"),
    [
        ([], True),
        ([(1_000, 0.0, 0.05), (0, 0.0, 5.0)], False),  # an empty batch says nothing
        ([(1_000, 0.0, 0.05)], False),
        ([(100, 0.0, 1.0)], True),
        # What lanes read side by side is counted as if it had been one by one, or reading ahead
        # would hide its own reason.
        ([(100, 0.1, 0.005)], True),
        ([(100, 0.0, 1.0), *[(100, 0.0, 0.005)] * 20], False),  # all in memory by now
        ([(1_000, 0.0, 0.05)] * 20 + [(100, 0.0, 1.0)], True),
        # Of a few documents: round trips and the journal aren't the disk.
        ([(20, 0.003, 0.006)], False),
        ([(20, 0.003, 0.006), (20, 0.0, 0.006)], False),
        ([(20, 0.0, 0.1)], True),
        ([(20, 0.03, 0.006)], True),
    ],
)
def test_whether_the_archive_reads_its_disk(
    batches: list[tuple[int, float, float]], disk: bool
) -> None:
    cost = Cost()
    for batch in batches:
        cost = cost.saw(*batch)
    assert cost.reads_disk is disk


async def test_an_archive_that_is_away_is_asked_once_by_each_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write is to meet the error soon: it decides what becomes of it."""
    asked = 0

    async def away(*_: Any) -> None:
        nonlocal asked
        asked += 1
        raise AutoReconnect

    monkeypatch.setattr(ahead, "run_raw", away)
    nobody: Any = None
    reader = ahead.ReadAhead(nobody, asyncio.get_running_loop().time, ON_DISK)
    await reader.read(verdicts(1_000))
    assert asked == LANES


async def test_an_archive_that_never_answers_holds_nothing_up_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ahead, "run_raw", never)
    monkeypatch.setattr(ahead, "MOST_SECONDS", 0.01)
    nobody: Any = None
    reader = ahead.ReadAhead(nobody, asyncio.get_running_loop().time, ON_DISK)
    assert await reader.read(verdicts(100)) > 0

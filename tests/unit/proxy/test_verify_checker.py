"""The self-check: what it takes to call a difference one, and that it never piles up work."""

import asyncio
import datetime as dt
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_common import doubts
from thermocline_common.coverage import Coverage, Doubt, State, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.health import Problems
from thermocline_common.ids import DocId
from thermocline_proxy.commands.command import Command
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_proxy.verify import checker as checking
from thermocline_proxy.verify.checker import Checker, Outcome, Result, Sample
from thermocline_proxy.verify.points import Found
from thermocline_proxy.verify.verdicts import Difference
from thermocline_proxy.verify.verifier import MAX_WAITING, Verifier

COVERAGE = Coverage("shop.c", State.ACTIVE, State.ACTIVE, age_field="t")
ID = DocId.of_document(bson.encode({"_id": 1}))
FIND = Command(bson.encode({"find": "c", "filter": {"a": 1}, "$db": "shop"}))


def reply(*documents: Mapping[str, Any]) -> bytes:
    batch = {"firstBatch": list(documents), "id": Int64(0), "ns": "shop.c"}
    return bson.encode({"cursor": batch, "ok": 1.0})


class Tiers:
    """An archive that answers ``there``, and a barrier that counts."""

    def __init__(self, there: bytes) -> None:
        self.there = there
        self.passes = 0
        self.refused = False

    async def passed(self, deadline: float | None) -> Timestamp:
        self.passes += 1
        if self.refused:
            raise CommandError(Code.ExceededTimeLimit, "the archive is behind")
        return Timestamp(9, 1)

    async def run(self, tier: Tier, identity: Any, command: Command, **_: Any) -> Reply:
        assert "lsid" not in command.fields
        return Reply(self.there, tier, "somewhere:27017")


def make_checker(tiers: Tiers) -> Checker:
    gateway: Any = SimpleNamespace(exchange=tiers, barrier=tiers, tiers=None, clock=time.monotonic)
    return Checker(gateway, pause=lambda _seconds: asyncio.sleep(0))


SAME = None
CHANGED = Found(Difference.CHANGED, b"x")
OTHER = Found(Difference.CHANGED, b"y")
MISSING = Found(Difference.MISSING, None)


@pytest.mark.parametrize(
    ("looks", "expected", "barriers"),
    [
        pytest.param([SAME], Outcome.MOVED, 2, id="written in between"),
        pytest.param([CHANGED, SAME], Outcome.MOVED, 3, id="a transaction arrived in parts"),
        pytest.param([CHANGED, CHANGED, SAME], Outcome.MOVED, 4, id="mended in the end"),
        pytest.param([CHANGED, OTHER], Outcome.UNDECIDED, 3, id="written again and again"),
        pytest.param([MISSING, CHANGED], Outcome.UNDECIDED, 3, id="came in between"),
        pytest.param([CHANGED, CHANGED, CHANGED], Outcome.DIFFERENT, 4, id="it stays"),
        pytest.param([MISSING, MISSING, MISSING], Outcome.DIFFERENT, 4, id="it stays away"),
    ],
)
async def test_a_difference_must_stand_at_three_points(
    monkeypatch: pytest.MonkeyPatch,
    looks: Sequence[Found | None],
    expected: Outcome,
    barriers: int,
) -> None:
    left = list(looks)

    async def point(_tiers: Any) -> Any:
        return None

    async def coverage(*_: Any) -> Coverage:
        return COVERAGE

    async def look(_tiers: Any, _coverage: Any, ids: Any, _point: Any) -> dict[DocId, Found]:
        assert list(ids) == [ID]
        found = left.pop(0)
        return {} if found is None else {ID: found}

    monkeypatch.setattr(checking, "common_point", point)
    monkeypatch.setattr(checking, "coverage_at", coverage)
    monkeypatch.setattr(checking, "differences", look)
    tiers = Tiers(reply({"_id": 1, "v": 1}))
    result = await make_checker(tiers).check(Sample(FIND, None, reply({"_id": 1, "v": 2})))
    assert (result.outcome, tiers.passes, left) == (expected, barriers, [])
    assert bool(result.differences) is (expected is Outcome.DIFFERENT)


async def test_equal_answers_cost_one_question() -> None:
    tiers = Tiers(reply({"_id": 1}))
    result = await make_checker(tiers).check(Sample(FIND, None, reply({"_id": 1})))
    assert (result.outcome, tiers.passes) == (Outcome.SAME, 1)


async def test_what_cannot_be_asked_is_no_difference() -> None:
    tiers = Tiers(bson.encode({"ok": 0.0, "code": 50, "codeName": "MaxTimeMSExpired"}))
    sample = Sample(FIND, None, reply({"_id": 1}))
    assert (await make_checker(tiers).check(sample)).outcome is Outcome.UNDECIDED
    tiers.refused = True
    assert (await make_checker(tiers).check(sample)).outcome is Outcome.UNDECIDED


# --- the queue


class Slow:
    """A checker that a test lets go on, with a result for each sample."""

    def __init__(self, result: Result | None = None) -> None:
        self.go = asyncio.Event()
        self.result = result or Result(Outcome.SAME)
        self.checked: list[Sample] = []

    async def check(self, sample: Sample) -> Result:
        await self.go.wait()
        self.checked.append(sample)
        if len(self.checked) == 1:
            raise RuntimeError("a defect of ours")
        return self.result


def make_verifier(checker: Any, snapshot: Snapshot | None = None) -> Verifier:
    empty = Snapshot(expires=0.0, untiered_expires=0.0)
    tiers: Any = None
    return Verifier(checker, tiers, lambda: snapshot or empty, lambda: 0.5)


def answer(verifier: Verifier, size: int = 0) -> None:
    command = Command(bson.encode({"find": "c", "filter": {"a": "x" * size}, "$db": "shop"}))
    verifier.answered(
        Request(command, None, 1), Reply(reply({"_id": 1}), Tier.FAST, "somewhere:27017")
    )


async def test_what_does_not_fit_is_counted_and_dropped() -> None:
    slow = Slow()
    verifier = make_verifier(slow)
    answer(verifier)
    assert verifier.status()["waiting"] == 0  # a share of 0
    verifier.share = 0.4
    answer(verifier)
    assert verifier.status()["waiting"] == 0  # not drawn
    verifier.share = 1.0
    answer(verifier, size=5 * 1024 * 1024)
    assert verifier.outcomes[Outcome.UNSUITED] == 1
    for _ in range(MAX_WAITING + 5):
        answer(verifier)
    assert verifier.outcomes[Outcome.DROPPED] == 5
    work = asyncio.create_task(verifier.run())
    slow.go.set()
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert verifier.status()["waiting"] == 0
    # One check failed, for a defect of the proxy's own; the others went on.
    assert verifier.outcomes[Outcome.SAME] == MAX_WAITING - 1
    assert verifier.outcomes[Outcome.UNDECIDED] == 1
    for _ in range(4):
        answer(verifier, size=4_000_000)
    assert verifier.outcomes[Outcome.DROPPED] == 5  # their bytes were given back
    for _ in range(4):
        answer(verifier, size=4_000_000)
    assert verifier.outcomes[Outcome.DROPPED] > 5  # so many at once are too much
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_a_difference_is_marked_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[tuple[Coverage, Doubt]] = []
    done = asyncio.Event()

    async def mark(_tiers: Any, seen: Coverage, doubt: Doubt) -> bool:
        marked.append((seen, doubt))
        done.set()
        return True

    monkeypatch.setattr(doubts, "mark", mark)
    found = {DocId.of_document(bson.encode({"_id": n})): CHANGED for n in range(30)}
    slow = Slow(Result(Outcome.DIFFERENT, {"shop.c": (COVERAGE, found)}))
    slow.go.set()
    slow.checked.append(Sample(FIND, None, b""))
    verifier = make_verifier(slow)
    verifier.share = 1.0
    answer(verifier)
    work = asyncio.create_task(verifier.run())
    async with asyncio.timeout(30):
        await done.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    ((seen, doubt),) = marked
    assert seen is COVERAGE
    assert (doubt.command, doubt.count, len(doubt.documents)) == ("find", 30, 10)
    assert doubt.documents[0] == "changed 0"


async def test_a_namespace_in_doubt_is_a_problem_until_it_is_released() -> None:
    doubt = Doubt(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "find", ("missing 5",), 3)
    tierings = {
        "shop.c": Tiering(Coverage("shop.c", State.ACTIVE, State.ACTIVE, doubt=doubt)),
        "shop.d": Tiering(COVERAGE),
    }
    seen = [Snapshot(expires=0.0, untiered_expires=0.0, tierings=tierings)]
    nobody: Any = None
    verifier = Verifier(nobody, nobody, lambda: seen[-1], lambda: 0.0)
    problems = Problems()
    verifier.report(problems)
    assert list(problems.current) == ["verify shop.c"]
    text = problems.current["verify shop.c"]
    assert "missing 5 and 2 more" in text
    assert "thermocline release FILE shop.c" in text
    assert verifier.status()["archiveOnly"]["shop.c"]["count"] == 3
    seen.append(Snapshot(expires=0.0, untiered_expires=0.0))
    verifier.report(problems)
    assert not problems.current

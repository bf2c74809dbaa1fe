"""A refusal that names no document: the ones it is for are found by halving, and all others arrive."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from bson import decode, encode
from pymongo.errors import OperationFailure

from thermocline_common.ids import DocId
from thermocline_feeder import writer
from thermocline_feeder.applier import Applier, Prepared
from thermocline_feeder.checkpoint import Quarantined
from thermocline_feeder.plan.batches import Command
from thermocline_feeder.plan.verdicts import Verdict

NS = "shop.o"
OTHER = "shop.p"
COUNT = 100
DONE = {"time": 1}


def doc_id(number: int) -> DocId:
    return DocId.of_document(encode({"_id": number}))


def verdict(namespace: str, number: int, *, there: bool = True) -> Verdict:
    return Verdict(namespace, doc_id(number), encode({"_id": number}) if there else None)


@dataclass
class Archive:
    """Refuses every command that has one of ``poison``, as a whole; ``times``: so many, then none."""

    poison: frozenset[int]
    code: int = 2
    times: int = 10_000
    transactions: list[tuple[set[tuple[str, int]], Mapping[str, Any]]] = field(default_factory=list)
    refusals: int = 0

    async def apply(
        self, _: Any, __: uuid.UUID, commands: Sequence[Command], fields: Mapping[str, Any]
    ) -> None:
        written = set()
        for command in commands:
            ids = [decode(i.document())["_id"] for i in command.ids]
            if command.namespace == NS and self.poison & set(ids) and self.refusals < self.times:
                self.refusals += 1
                raise writer.RefusedWhole(command, OperationFailure("no", self.code))
            written |= {(command.namespace, i) for i in ids}
        self.transactions.append((written, fields))

    @property
    def last(self) -> tuple[set[tuple[str, int]], Mapping[str, Any]]:
        return self.transactions[-1]


async def apply(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, verdicts: list[Verdict], **known: Any
) -> Applier:
    monkeypatch.setattr(writer, "apply", archive.apply)
    made = Applier(cast("Any", None), uuid.uuid4(), quarantine_limit=1_000)
    made.reset(known.get("quarantine", ()))
    touched: dict[str, set[DocId]] = {}
    for each in verdicts:
        touched.setdefault(each.namespace, set()).add(each.id)

    async def judge(namespace: str, ids: list[DocId]) -> list[Verdict]:
        raise AssertionError((namespace, ids))

    await made.apply(Prepared(verdicts, touched, DONE, judge))
    return made


@pytest.mark.parametrize(
    "poison",
    [{0}, {COUNT - 1}, {49, 50}, {3, 17, 18, 96}, set(range(0, COUNT, 7))],
    ids=["first", "last", "both halves", "some", "many"],
)
async def test_the_refused_are_found_by_halving_and_the_rest_arrives(
    poison: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(frozenset(poison))
    verdicts = [verdict(NS, i) for i in range(COUNT)] + [verdict(OTHER, i) for i in range(5)]
    made = await apply(archive, monkeypatch, verdicts)
    assert set(made.quarantine) == {(NS, doc_id(i)) for i in poison}
    assert {q.code for q in made.quarantine.values()} == {2}
    written, fields = archive.last
    assert written == {(NS, i) for i in range(COUNT) if i not in poison} | {
        (OTHER, i) for i in range(5)
    }
    # The checkpoint moves once, with the list; transactions that only search move nothing.
    assert fields["time"] == 1
    assert len(fields["quarantine"]) == len(poison)
    assert all(not fields for _, fields in archive.transactions[:-1])
    assert len(archive.transactions) + archive.refusals <= 4 + 2 * 7 * len(poison)


async def test_a_refusal_that_passes_quarantines_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(frozenset({3}), times=3)
    made = await apply(archive, monkeypatch, [verdict(NS, i) for i in range(COUNT)])
    assert made.quarantine == {}
    assert archive.last == ({(NS, i) for i in range(COUNT)}, DONE)


async def test_deletes_are_narrowed_down_too(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(frozenset({3}))
    verdicts = [verdict(NS, i, there=i % 2 == 0) for i in range(10)]
    made = await apply(archive, monkeypatch, verdicts)
    assert set(made.quarantine) == {(NS, doc_id(3))}
    assert archive.last[0] == {(NS, i) for i in range(10) if i != 3}


async def test_what_was_refused_before_and_fits_now_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [Quarantined(NS, doc_id(i), 2, "no") for i in (1, 2, 200)]
    made = await apply(
        Archive(frozenset()), monkeypatch, [verdict(NS, 1), verdict(NS, 2)], quarantine=known
    )
    assert set(made.quarantine) == {(NS, doc_id(200))}, "only what the batch touches is judged anew"


async def test_a_document_that_no_write_can_bring_is_refused_without_a_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 MB are MongoDB's limit, but a statement and the oplog hold the ``_id`` once more."""
    document = encode({"_id": "i" * 20_000, "big": b"x" * (16 * 1024 * 1024 - 20_100)})
    large = Verdict(NS, DocId.of_document(document), document)
    archive = Archive(frozenset())
    made = await apply(archive, monkeypatch, [verdict(NS, 1), large])
    assert [q.id for q in made.quarantine.values()] == [large.id]
    assert "too large" in next(iter(made.quarantine.values())).reason
    assert archive.last[0] == {(NS, 1)}

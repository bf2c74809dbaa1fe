"""A refusal that names no document: the ones it is for are found by halving, and all others arrive."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from bson import decode, encode
from pymongo.errors import AutoReconnect, OperationFailure

from thermocline_common.ids import DocId, wrap
from thermocline_feeder import writer
from thermocline_feeder.applier import Applier, Prepared
from thermocline_feeder.checkpoint import Fenced, Quarantined
from thermocline_feeder.plan.batches import Command, Verb
from thermocline_feeder.plan.known import Known
from thermocline_feeder.plan.verdicts import Verdict

NS = "shop.o"
OTHER = "shop.p"
COUNT = 100
DONE = {"time": 1}


def doc_id(number: int) -> DocId:
    return DocId.of_document(encode({"_id": number}))


def verdict(namespace: str, number: int, *, there: bool = True) -> Verdict:
    return Verdict(namespace, doc_id(number), encode({"_id": number}) if there else None)


PAIR = {NS: "pair", OTHER: "pair"}


@dataclass
class Server:
    """Holds documents as a server would: an insert of an ``_id`` that is there is refused. Counts the ways."""

    present: set[int] = field(default_factory=set)
    lost: list[Exception] = field(default_factory=list)
    ways: list[dict[int, str]] = field(default_factory=list)

    async def apply(
        self, _: Any, __: uuid.UUID, commands: Sequence[Command], fields: Mapping[str, Any]
    ) -> None:
        way: dict[int, str] = {}
        for command in commands:
            if command.together:
                numbers = [decode(i.document())["_id"] for i in command.ids]
                if not self.present.issuperset(numbers):
                    raise writer.Unexpected
                way |= dict.fromkeys(numbers, "together")
                continue
            for index, (i, statement) in enumerate(
                zip(command.ids, command.statements, strict=True)
            ):
                number = decode(i.document())["_id"]
                way[number] = command.verb.value
                if command.verb is Verb.INSERT and number in self.present:
                    raise writer.Refused(command, index, 11000, {})
                if command.verb is Verb.UPDATE and isinstance(decode(statement)["u"], list):
                    way[number] = "pipeline"
        if self.lost:
            raise self.lost.pop()
        self.ways.append(way)
        self.present |= way.keys()


async def nobody(_: str, __: list[DocId]) -> list[Verdict]:
    raise AssertionError


def prepared(*numbers: int, fresh: bool = False, pairs: Mapping[str, str] = PAIR) -> Prepared:
    verdicts = [verdict(NS, i) for i in numbers]
    touched = {NS: {v.id for v in verdicts}}
    return Prepared(verdicts, touched, DONE, nobody, fresh=touched if fresh else {}, pairs=pairs)


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


REPEATED = wrap(b"\x10_id\0\1\0\0\0", b"\x10a\0\1\0\0\0", b"\x10a\0\2\0\0\0")


async def ways(
    monkeypatch: pytest.MonkeyPatch, server: Server, *batches: Prepared
) -> list[dict[int, str]]:
    """How each batch was written in the end."""
    monkeypatch.setattr(writer, "apply", server.apply)
    made = Applier(cast("Any", None), uuid.uuid4(), quarantine_limit=1_000)
    for batch in batches:
        await made.apply(batch)
    assert not made.quarantine
    return server.ways


async def test_what_was_written_before_is_written_as_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await ways(monkeypatch, Server(), prepared(1, fresh=True), prepared(1, 2), prepared(2))
    assert found == [{1: "documents"}, {1: "pipeline", 2: "updates"}, {2: "pipeline"}]


async def test_where_one_of_several_is_gone_each_is_written_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody deleted it in the archive, an index that lets documents expire for example."""
    server = Server()
    monkeypatch.setattr(writer, "apply", server.apply)
    made = Applier(cast("Any", None), uuid.uuid4(), quarantine_limit=1_000)
    numbers = range(10)
    for gone in (set(), set(), {3}, set()):
        server.present -= gone
        await made.apply(prepared(*numbers))
    expected = ["updates", "together", "updates", "together"]
    assert server.ways == [dict.fromkeys(numbers, way) for way in expected]


async def test_an_insert_of_what_is_there_becomes_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a restart, for example: the batch was applied and comes again."""
    found = await ways(monkeypatch, Server({2}), prepared(1, 2, 3, fresh=True))
    assert found == [{1: "updates", 2: "updates", 3: "updates"}]


def not_plain() -> Prepared:
    found = prepared(1)
    found.verdicts[:] = [Verdict(NS, doc_id(1), REPEATED)]
    return found


@pytest.mark.parametrize(
    "between",
    [not_plain(), prepared(1, pairs={}), prepared(2, pairs={NS: "another pair"})],
    ids=["a name repeats", "from elsewhere", "another pair"],
)
async def test_what_was_known_is_forgotten(
    between: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline over a document that repeats a name would end the server."""
    found = await ways(monkeypatch, Server(), prepared(1), between, prepared(1), prepared(1))
    assert [way[1] for way in found if 1 in way][-2:] == ["updates", "pipeline"]


async def test_after_an_error_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr(writer, "apply", server.apply)
    made = Applier(cast("Any", None), uuid.uuid4(), quarantine_limit=1_000)
    await made.apply(prepared(1, 2))
    server.lost.append(AutoReconnect("closed"))
    await made.apply(prepared(1))
    assert server.ways[-1] == {1: "updates"}, "the same again would end the server again"
    await made.apply(prepared(2))
    assert server.ways[-1] == {2: "updates"}
    server.lost.append(Fenced("another"))
    with pytest.raises(Fenced):
        await made.apply(prepared(2))
    await made.apply(prepared(2))
    assert server.ways[-1] == {2: "updates"}


def test_the_oldest_ids_are_forgotten_first() -> None:
    known = Known(limit=40)
    for start in range(0, 100, 5):
        known.learn(NS, "pair", {doc_id(i) for i in range(start, start + 5)}, set())
        known.learn(OTHER, "pair", {doc_id(start)}, set())
        assert known.among(OTHER, "pair", [doc_id(start)])
    found = known.among(NS, "pair", [doc_id(i) for i in range(100)])
    assert {doc_id(i) for i in range(85, 100)} <= found
    assert len(found) <= 45
    known.forget(NS)
    assert not known.among(NS, "pair", found)
    assert known.among(OTHER, "pair", [doc_id(95)])

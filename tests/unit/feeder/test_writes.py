"""Verdicts and the commands made of them."""

import datetime
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from bson import Decimal128, ObjectId, decode, encode
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_common.fidelity import zeroing
from thermocline_common.ids import DocId, wrap
from thermocline_common.removals import Kind, Record
from thermocline_feeder.plan.batches import Command, Pace, Unwritable, Verb, commands, parts
from thermocline_feeder.plan.verdicts import Verdict, judge, unexplained

NS = "shop.o"
ID = DocId.of_document(encode({"_id": 1}))
DOCUMENT = encode({"_id": 1, "a": 1})


def record(kind: Kind) -> Record:
    return Record(NS, ID, kind, uuid.uuid4())


@pytest.mark.parametrize(
    ("document", "kind", "expected"),
    [
        (DOCUMENT, None, DOCUMENT),
        (DOCUMENT, Kind.DELETED, DOCUMENT),
        (DOCUMENT, Kind.EVICTED, DOCUMENT),
        (None, Kind.DELETED, "delete"),
        (None, Kind.EXPIRED, "nothing"),
        (None, Kind.EVICTED, "nothing"),
        (None, Kind.LEAVING, "nothing"),
        (None, None, "nothing"),
    ],
)
def test_the_authority_rule(document: bytes | None, kind: Kind | None, expected: object) -> None:
    documents = {} if document is None else {ID: document}
    records = {} if kind is None else {ID: record(kind)}
    found = judge(NS, [ID], documents, records)
    if expected == "nothing":
        assert found == []
    else:
        assert [v.document for v in found] == [None if expected == "delete" else expected]
    assert unexplained([ID], documents, records) == int(document is None and kind is None)


def verdict(document: bytes | None, number: int = 1) -> Verdict:
    doc_id = DocId.of_document(encode({"_id": number}))
    return Verdict(NS, doc_id, document)


def shape(found: list[Command]) -> list[tuple[Verb, int]]:
    return [(c.verb, len(c.statements)) for c in found]


def test_deletes_come_first() -> None:
    found = commands([verdict(DOCUMENT), verdict(None, 2)])
    assert shape(found) == [(Verb.DELETE, 1), (Verb.UPDATE, 1)]
    assert decode(found[0].statements[0]) == {"q": {"_id": 2}, "limit": 1}
    assert decode(found[1].statements[0]) == {
        "q": {"_id": 1},
        "u": {"_id": 1, "a": 1},
        "upsert": True,
    }


@pytest.mark.parametrize(
    "document",
    [encode({"_id": 1, "$x": 1}), encode({"_id": 1, "t": Timestamp(0, 0)})],
    ids=["dollar", "zero timestamp"],
)
def test_what_a_replacement_would_change_goes_through_a_pipeline(document: bytes) -> None:
    """Deleted first: over another document it would reach secondaries otherwise, or end the server."""
    made = commands([verdict(document)])
    assert shape(made) == [(Verb.DELETE, 1), (Verb.UPDATE, 1)]
    statement = decode(made[1].statements[0])
    assert list(statement["u"][0]) == ["$replaceWith"]
    assert statement["upsert"]
    # Whatever else is said: an insert would change it too.
    here = {NS: {ID}}
    for found in (
        commands([verdict(document)], anew=frozenset({NS})),
        commands([verdict(document)], fresh=here, alike=here),
    ):
        assert shape(found) == shape(made)


def test_what_is_known_of_the_archives_document_decides_how_it_is_written() -> None:
    def ids(*numbers: int) -> dict[str, set[DocId]]:
        return {NS: {DocId.of_document(encode({"_id": n})) for n in numbers}}

    verdicts = [verdict(encode({"_id": i, "a": 1}), i) for i in range(4)]
    how = ids(0, 1), ids(1, 2)
    updates, inserts = commands(verdicts, frozenset(), frozenset(), *how)
    assert [decode(s)["_id"] for s in inserts.statements] == [0, 1]
    replacement, literal = map(decode, updates.statements)
    assert literal == {
        "q": {"_id": 2},
        "u": [{"$replaceWith": {"$literal": {"_id": 2, "a": 1}}}],
        "upsert": True,
    }
    assert replacement == {"q": {"_id": 3}, "u": {"_id": 3, "a": 1}, "upsert": True}
    # Ids of another namespace say nothing; neither does anything where all is written anew.
    other = [v._replace(namespace="shop.p") for v in verdicts]
    assert shape(commands(other, frozenset(), frozenset(), *how)) == [(Verb.UPDATE, 4)]
    assert shape(commands(verdicts, frozenset(), frozenset({NS}), *how)) == [
        (Verb.DELETE, 4),
        (Verb.INSERT, 4),
    ]


def test_documents_come_in_the_order_of_f() -> None:
    numbers = [3, 1, 2]
    documents = {
        v.id: v.document for i in numbers if (v := verdict(encode({"_id": i}), i)).document
    }
    found = judge(NS, set(documents), documents, {})
    assert [decode(v.id.document())["_id"] for v in found] == numbers


@pytest.mark.parametrize(
    "document",
    [
        encode({"_id": 1, "in": {"$x": 1, "t": Timestamp(0, 0)}}),
        encode({"_id": 1, "text": "cost: $5", "zero": 0.0}),
        wrap(b"\x10_id\0\1\0\0\0", b"\x10a\0\1\0\0\0", b"\x10a\0\2\0\0\0"),
    ],
    ids=["nested", "innocent", "repeated"],
)
def test_all_else_is_a_replacement(document: bytes) -> None:
    assert shape(commands([verdict(document)])) == [(Verb.UPDATE, 1)]
    assert shape(commands([verdict(document)], anew=frozenset({NS}))) == [
        (Verb.DELETE, 1),
        (Verb.INSERT, 1),
    ]


def test_what_no_write_keeps_is_said() -> None:
    repeated = b"\x10a\0\1\0\0\0" + b"\x10a\0\2\0\0\0"
    document = wrap(b"\x10_id\0\1\0\0\0", repeated, b"\x11t.u\0" + b"\0" * 8)
    with pytest.raises(Unwritable):
        commands([verdict(document)])


def test_repeated_names_beside_dollar_and_zeros_are_deleted_inserted_and_set() -> None:
    repeated = b"\x10a\0\1\0\0\0" + b"\x10a\0\2\0\0\0"
    dollar = wrap(b"\x10_id\0\1\0\0\0", repeated, b"\x10$b\0\1\0\0\0")
    zeros = wrap(b"\x10_id\0\2\0\0\0", repeated, b"\x11t\0" + b"\0" * 8)
    made = commands([verdict(dollar), verdict(zeros)])
    assert shape(made) == [(Verb.DELETE, 2), (Verb.INSERT, 2), (Verb.UPDATE, 1)]
    assert list(made[1].statements) == [dollar, zeros]
    assert list(made[2].statements) == [zeroing(zeros)]


def test_commands_stay_within_the_servers_limit() -> None:
    big = encode({"_id": 1, "x": b"\0" * 5_000_000})
    found = commands([verdict(big, i) for i in range(5)])
    assert shape(found) == [(Verb.UPDATE, 2), (Verb.UPDATE, 2), (Verb.UPDATE, 1)]
    alone = encode({"_id": 1, "x": b"\0" * 15_900_000})
    assert shape(commands([verdict(alone, 1), verdict(DOCUMENT, 2)])) == [
        (Verb.UPDATE, 1),
        (Verb.UPDATE, 1),
    ]


def test_parts_keep_the_order() -> None:
    verdicts = [verdict(encode({"_id": i, "x": b"\0" * 1000}), i) for i in range(10)]
    found = parts(verdicts, 3000)
    assert [v for part in found for v in part] == verdicts
    assert all(len(part) <= 3 for part in found)
    assert parts([], 10) == []


def at_full_speed() -> Pace:
    """After twenty quick batches."""
    pace = Pace(6000)
    for _ in range(20):
        pace.took(0.01)
    assert pace.limit == 6000
    return pace


def test_a_slow_archive_s_first_transaction_is_small() -> None:
    """It is known to be slow only afterwards, and a transaction may live a minute."""
    pace = Pace(6000)
    assert pace.limit == 100
    pace.took(20.0)
    assert pace.limit == 100
    assert Pace(10).limit == 50


def test_pace_learns_from_sizes() -> None:
    pace = at_full_speed()
    for _ in range(20):
        pace.saw(1000, 1000 * 1_000_000)
    assert pace.limit < 100
    for _ in range(60):
        pace.saw(1000, 1000 * 200)
    assert pace.limit == 6000


def test_a_slow_archive_gets_smaller_transactions_and_a_quick_one_bigger_ones_again() -> None:
    pace = at_full_speed()
    for _ in range(3):
        pace.took(5.0)
    assert pace.limit == 750
    for _ in range(10):
        pace.took(0.1)
    assert pace.limit == 6000


@pytest.mark.parametrize(
    "value", [1, Int64(1), "", "x" * 300, {"a": 1}, None, b"\0" * 20], ids=repr
)
def test_a_statement_is_well_formed_for_every_id(value: object) -> None:
    document = encode({"_id": value, "a": [1]})
    verdicts = [Verdict(NS, DocId.of_document(document), document)]
    query, after = {"_id": value}, {"_id": value, "a": [1]}
    replacement = {"q": query, "u": after, "upsert": True}
    assert commands(verdicts)[0].statements[0] == encode(replacement)
    pipeline = {"q": query, "u": [{"$replaceWith": {"$literal": after}}], "upsert": True}
    found = commands(verdicts, alike={NS: {verdicts[0].id}})
    assert found[0].statements[0] == encode(pipeline)


def over(found: Command) -> list[list[Any]]:
    """The ids of each statement that writes several documents; it is what it should be."""
    ids = []
    for statement in map(decode, found.statements):
        wanted = statement["q"]["_id"]["$in"]
        (documents, _) = statement["u"][0]["$replaceWith"]["$arrayElemAt"]
        index = {"$indexOfArray": [{"$literal": wanted}, "$_id"]}
        chosen = {"$arrayElemAt": [{"$literal": [{"_id": i, "a": 1} for i in wanted]}, index]}
        query = {"_id": {"$in": wanted}}
        assert statement == {"q": query, "u": [{"$replaceWith": chosen}], "multi": True}
        assert len(documents["$literal"]) == len(wanted)
        ids.append(wanted)
    return ids


def alike(values: Iterable[Any]) -> list[Command]:
    """The commands for documents with these ids that are surely there."""
    documents = [encode({"_id": value, "a": 1}) for value in values]
    verdicts = [Verdict(NS, DocId.of_document(d), d) for d in documents]
    return commands(verdicts, alike={NS: {v.id for v in verdicts}})


def test_documents_that_are_surely_there_are_written_together() -> None:
    (found,) = alike(range(120))
    assert (found.verb, found.together) == (Verb.UPDATE, True)
    assert over(found) == [list(range(50)), list(range(50, 100)), list(range(100, 120))]
    assert [decode(i.document())["_id"] for i in found.ids] == list(range(120))


def test_what_is_deleted_makes_room_for_those_that_are_written_together() -> None:
    """A unique key may pass from one to the other."""
    verdicts = [verdict(encode({"_id": i, "a": 1}), i) for i in range(10)] + [verdict(None, 10)]
    found = commands(verdicts, alike={NS: {v.id for v in verdicts}})
    assert [(c.verb, c.together) for c in found] == [(Verb.DELETE, False), (Verb.UPDATE, True)]


@pytest.mark.parametrize(
    "make",
    [
        Int64,
        str,
        lambda n: "x" * n,
        lambda n: ObjectId(f"{n:024x}"),
        lambda n: b"b" * n,
        lambda n: datetime.datetime(2026, 1, 1, 0, n),  # noqa: DTZ001 # documents hold UTC without a zone
    ],
    ids=["long", "string", "long string", "object id", "binary", "date"],
)
def test_ids_that_mean_themselves_stand_together(make: Callable[[int], Any]) -> None:
    values = [make(n) for n in range(10)]
    (found,) = alike(values)
    assert over(found) == [values]


@pytest.mark.parametrize(
    "make",
    [float, lambda n: {"$gt": n}, lambda n: Timestamp(1, n), lambda n: Decimal128(str(n))],
    ids=["double", "document", "timestamp", "decimal"],
)
def test_all_other_ids_stand_alone(make: Callable[[int], Any]) -> None:
    (found,) = alike([make(n) for n in range(10)])
    assert (len(found.statements), found.together) == (10, False)


def test_few_and_large_documents_stand_alone() -> None:
    assert [c.together for c in alike(range(3))] == [False]
    large = [encode({"_id": i, "x": b"\0" * 100_000}) for i in range(10)]
    verdicts = [Verdict(NS, DocId.of_document(d), d) for d in large]
    found = commands(verdicts, alike={NS: {v.id for v in verdicts}})
    assert [(c.together, len(c.statements)) for c in found] == [(False, 10)]


def test_statements_for_several_documents_stay_within_the_servers_limit() -> None:
    documents = [encode({"_id": i, "x": b"\0" * 50_000}) for i in range(400)]
    verdicts = [Verdict(NS, DocId.of_document(d), d) for d in documents]
    found = commands(verdicts, alike={NS: {v.id for v in verdicts}})
    assert all(c.together and sum(map(len, c.statements)) < 12_600_000 for c in found)
    assert [i for c in found for i in c.ids] == [v.id for v in verdicts]
    for command in found:
        wanted = [i for s in command.statements for i in decode(s)["q"]["_id"]["$in"]]
        assert [decode(i.document())["_id"] for i in command.ids] == wanted


def test_collections_of_one_name_are_kept_apart() -> None:
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    mixed = [verdict(DOCUMENT)._replace(archive_uuid=u) for u in (one, two, uuid.UUID(int=1))]
    found = commands(mixed)
    assert [(c.archive_uuid, len(c.statements)) for c in found] == [(one, 2), (two, 1)]

"""Statements, parts of batches, pieces."""

from typing import Any

import bson
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from thermocline_common.coverage import Coverage, State, UniqueIndex
from thermocline_common.ids import DocId
from thermocline_common.portions import MOST_ID_BYTES
from thermocline_proxy.commands.command import Command
from thermocline_proxy.writes.pieces import How, cut
from thermocline_proxy.writes.statements import (
    Batch,
    Kind,
    Statement,
    fields_of,
    number,
    parse_batch,
    truth,
)
from thermocline_proxy.writes.targets import FindAndModifyTarget

ACTIVE = Coverage("d.c", State.ACTIVE, State.ACTIVE)
UNIQUE = Coverage("d.c", State.ACTIVE, State.ACTIVE, unique=(UniqueIndex("k", ("k",), plain=True),))


def a_command(document: dict[str, Any], **sequences: list[dict[str, Any]]) -> Command:
    raw = {name: [bson.encode(d) for d in documents] for name, documents in sequences.items()}
    return Command(bson.encode({**document, "$db": "d"}), raw)


def a_batch(document: dict[str, Any], **sequences: list[dict[str, Any]]) -> Batch:
    batch = parse_batch(a_command(document, **sequences))
    assert batch is not None
    return batch


def decoded(command: Command) -> dict[str, Any]:
    body = bson.decode(command.body)
    return {**body, **{n: [bson.decode(d) for d in ds] for n, ds in command.sequences.items()}}


@pytest.mark.parametrize(
    "command",
    [
        a_command({"insert": "c", "documents": []}),
        a_command({"insert": "c"}),
        a_command({"insert": "c", "documents": [1, {}]}),
        a_command({"insert": "c", "documents": [{}]}, documents=[{}]),
        a_command({"update": "c", "updates": [{"q": {}}]}),
        a_command({"update": "c", "updates": [{"q": 5, "u": {}}]}),
        a_command({"delete": "c", "deletes": [{"limit": 1}]}),
        a_command({"update": "c", "updates": [{"q": {}, "u": {}, "upsert": "x"}]}),
        a_command({"update": "c", "updates": [{"q": {}, "u": {}, "multi": {}}]}),
    ],
)
def test_what_the_server_refuses_as_a_whole_is_no_batch(command: Command) -> None:
    assert parse_batch(command) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True), (False, False), (None, False), (0, False), (2, True), (Int64(0), False), (Int64(2**40), True),
        (0.0, False), (-0.0, False), (0.5, True), (float("nan"), True), (Decimal128("0.00"), False),
        (Decimal128("-0E+10"), False), (Decimal128("0.1"), True), (Decimal128("NaN"), True),
    ],
)  # fmt: skip
def test_flags_are_read_as_mongodb_reads_them(value: Any, expected: bool) -> None:
    assert truth(fields_of(bson.encode({"f": value}))[b"f"]) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7), (Int64(2**40), 2**40), (7.9, 7), (float("nan"), -1), (Decimal128("7.9"), 7),
        (Decimal128("1E+30"), -1), (Decimal128("Infinity"), -1), ("7", -1),
    ],
)  # fmt: skip
def test_numbers_of_every_type(value: Any, expected: int) -> None:
    assert number(fields_of(bson.encode({"f": value}))[b"f"], -1) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"update": {}, "upsert": Decimal128("1"), "new": 1.0}, True),
        ({"update": {}, "upsert": None}, True),
        ({"update": {}, "upsert": "x"}, False),
        ({"update": {}, "new": {}}, False),
        ({"remove": "x"}, False),
        ({"remove": True, "update": {}}, False),
        ({"remove": True, "query": 5}, False),
    ],
)
def test_find_and_modify_that_a_server_may_take(fields: dict[str, Any], expected: bool) -> None:
    target = FindAndModifyTarget(a_command({"findAndModify": "c", **fields}))
    assert target.well_formed is expected


def test_statements_come_from_the_body_or_a_sequence() -> None:
    in_body = a_batch({"insert": "c", "documents": [{"_id": 1}], "ordered": False})
    in_sequence = a_batch({"insert": "c"}, documents=[{"_id": 1}])
    assert in_body.documents == in_sequence.documents
    assert (in_body.ordered, in_sequence.ordered) == (False, True)
    assert in_body.kind is Kind.INSERT


def test_the_whole_batch_is_the_clients_own_command() -> None:
    batch = a_batch({"insert": "c"}, documents=[{"_id": 1}, {"_id": 2}])
    assert batch.part([0, 1]) is batch.command


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, None),
        ({"txnNumber": bson.Int64(1)}, [1, 2]),
        ({"txnNumber": bson.Int64(1), "stmtId": 7}, [8, 9]),
        ({"txnNumber": bson.Int64(1), "stmtIds": [4, 9, 6]}, [9, 6]),
    ],
)
def test_a_part_keeps_its_statement_ids(more: dict[str, Any], expected: Any) -> None:
    batch = a_batch({"insert": "c", "documents": [{"_id": i} for i in range(3)], **more})
    part = decoded(batch.part([1, 2]))
    assert part["documents"] == [{"_id": 1}, {"_id": 2}]
    assert part.get("stmtIds") == expected
    assert "stmtId" not in part


@pytest.mark.parametrize(
    ("statement", "multi"),
    [
        ({"q": {}, "u": {}}, False), ({"q": {}, "u": {}, "multi": True}, True),
        ({"q": {}, "limit": 0}, True), ({"q": {}, "limit": 1}, False), ({"q": {}, "limit": 0.0}, True),
    ],
)  # fmt: skip
def test_statements_for_every_match(statement: dict[str, Any], multi: bool) -> None:
    assert Statement(bson.encode(statement)).multi is multi


def test_a_narrowed_statement_never_carries_upsert() -> None:
    statement = Statement(bson.encode({"q": {"a": 1}, "u": {"$set": {"b": 1}}, "upsert": True}))
    changed = bson.decode(statement.changed(query=bson.encode({"c": 1}), upsert=False))
    assert changed == {"q": {"c": 1}, "u": {"$set": {"b": 1}}}


def hows(batch: Batch, coverage: Coverage) -> list[tuple[How, tuple[int, ...]]]:
    ids = [s.doc_id for s in batch.statements] or [DocId.of_document(d) for d in batch.documents]
    return [(piece.how, piece.indexes) for piece in cut(batch, coverage, ids)]


SET = {"$set": {"v": 1}}
KEY = {"$set": {"k.x": 1}}


def test_pieces_of_updates() -> None:
    updates = [
        {"q": {"_id": 1}, "u": SET},
        {"q": {"_id": 2}, "u": SET, "upsert": True},
        {"q": {"a": 1}, "u": SET},
        {"q": {"a": 1}, "u": SET, "multi": True},
        {"q": {"_id": 3}, "u": SET, "multi": True},
        {"q": {"_id": 4}, "u": KEY},
        {"q": {"_id": [1]}, "u": SET},
    ]
    batch = a_batch({"update": "c", "updates": updates})
    assert hows(batch, ACTIVE) == [
        (How.UPDATE_BY_ID, (0, 1)),
        (How.ONE, (2,)),
        (How.MANY, (3,)),
        (How.UPDATE_BY_ID, (4, 5)),
        (How.ONE, (6,)),
    ]
    assert hows(batch, UNIQUE) == [
        (How.ONE, (0,)),
        (How.ONE, (1,)),
        (How.ONE, (2,)),
        (How.MANY, (3,)),
        (How.ONE, (4,)),
        (How.ONE, (5,)),
        (How.ONE, (6,)),
    ]


def test_pieces_of_deletes_and_inserts() -> None:
    deletes = [
        {"q": {"_id": 1}, "limit": 1},
        {"q": {"_id": 2}, "limit": 0},
        {"q": {"a": 1}, "limit": 1},
        {"q": {"a": 1}, "limit": 0},
    ]
    assert hows(a_batch({"delete": "c", "deletes": deletes}), ACTIVE) == [
        (How.DELETE_BY_ID, (0, 1)),
        (How.ONE, (2,)),
        (How.MANY, (3,)),
    ]
    inserts = a_batch({"insert": "c", "documents": [{"_id": i} for i in range(2_100)]})
    assert [len(indexes) for _, indexes in hows(inserts, ACTIVE)] == [1_000, 1_000, 100]
    long = a_batch({"insert": "c", "documents": [{"_id": 1}, {"_id": "x" * (MOST_ID_BYTES + 1)}]})
    assert hows(long, ACTIVE) == [(How.INSERT, (0,)), (How.REFUSED, (1,))]

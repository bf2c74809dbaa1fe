"""The self-check: which answers and documents differ, and how they are named."""

import datetime as dt
import uuid
from dataclasses import replace
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State
from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record
from thermocline_common.ttl import Rule
from thermocline_proxy.verify.answers import MAX_SUSPECTS, compare
from thermocline_proxy.verify.questions import Shape
from thermocline_proxy.verify.verdicts import Difference, describe, is_promised, judge

FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OLD, NEW = FLOOR - dt.timedelta(days=1), FLOOR + dt.timedelta(days=1)
T = Timestamp(100, 1)
DOCUMENT, RESULT = Shape.DOCUMENTS, Shape.RESULTS


def cursor(*documents: dict[str, Any]) -> bytes:
    return bson.encode(
        {
            "cursor": {"firstBatch": list(documents), "id": Int64(0), "ns": "shop.c"},
            "ok": 1.0,
        }
    )


def doc_id(value: Any) -> DocId:
    return DocId.of_document(bson.encode({"_id": value}))


# --- what differs

A, B, B2 = {"_id": 1, "v": 1}, {"_id": 2, "v": 1}, {"_id": 2, "v": 2}


@pytest.mark.parametrize(
    ("shape", "fast", "archive", "equal", "suspects"),
    [
        pytest.param(DOCUMENT, cursor(A, B), cursor(B, A), True, [], id="in another order"),
        pytest.param(DOCUMENT, cursor(A, B), cursor(A, B2), False, [2], id="changed"),
        pytest.param(DOCUMENT, cursor(A), cursor(A, B), False, [2], id="missing"),
        pytest.param(DOCUMENT, cursor(A, B), cursor(A), False, [2], id="extra"),
        pytest.param(DOCUMENT, cursor(), cursor(), True, [], id="nothing"),
        pytest.param(
            DOCUMENT, cursor({"_id": 5}), cursor({"_id": 5.0}), False, [5], id="another number type"
        ),
        pytest.param(RESULT, cursor({"x": 1}, {"x": 2}), cursor({"x": 2}, {"x": 1}), True, [], id="results"),
        pytest.param(RESULT, cursor({"x": 1}, {"x": 1}), cursor({"x": 1}), False, None, id="once more"),
        pytest.param(Shape.COUNT, bson.encode({"n": 3}), bson.encode({"n": Int64(3)}), True, [], id="count"),
        pytest.param(Shape.COUNT, bson.encode({"n": 3}), bson.encode({"n": 4}), False, None, id="counts"),
        pytest.param(Shape.COUNT, cursor(), cursor({"n": 0}), True, [], id="none, by a pipeline"),
        pytest.param(
            Shape.VALUES, bson.encode({"values": [1, "a"]}), bson.encode({"values": ["a", 1.0]}), True, [], id="values"
        ),
        pytest.param(
            Shape.VALUES, bson.encode({"values": [1]}), bson.encode({"values": [1, 2]}), False, None, id="a value more"
        ),
    ],
)  # fmt: skip
def test_compare(
    shape: Shape, fast: bytes, archive: bytes, equal: bool, suspects: list[Any] | None
) -> None:
    found = compare(shape, fast, archive)
    assert found.equal is equal
    ids = None if suspects is None else tuple(doc_id(one) for one in suspects)
    assert found.suspects == ids


def test_under_a_collation_only_the_number_of_values_counts() -> None:
    one, other = bson.encode({"values": ["a"]}), bson.encode({"values": ["A"]})
    assert not compare(Shape.VALUES, one, other).equal
    assert compare(Shape.VALUES, one, other, simple=False).equal


def test_suspects_are_bounded() -> None:
    many = cursor(*({"_id": n} for n in range(5 * MAX_SUSPECTS)))
    found = compare(Shape.DOCUMENTS, many, cursor())
    assert found.suspects is not None
    assert len(found.suspects) == MAX_SUSPECTS


# --- verdicts

AGED = Coverage("shop.c", State.ACTIVE, State.ACTIVE, age_field="t", floor=FLOOR, published_at=T)
WHOLE = Coverage("shop.c", State.ACTIVE, State.ACTIVE, keep_all=True, complete=True, published_at=T)
RECENT, COLD, ODD = {"_id": 1, "t": NEW}, {"_id": 1, "t": OLD}, {"_id": 1, "t": "once"}


def record(kind: Kind) -> Record:
    return Record("shop.c", doc_id(1), kind, uuid.uuid4())


@pytest.mark.parametrize(
    ("here", "there", "kind", "coverage", "expected"),
    [
        pytest.param(RECENT, RECENT, None, AGED, None, id="equal"),
        pytest.param(RECENT, COLD, None, AGED, Difference.CHANGED, id="changed"),
        pytest.param(RECENT, COLD, Kind.LEAVING, AGED, Difference.CHANGED, id="leaving, changed"),
        pytest.param(RECENT, None, None, AGED, Difference.EXTRA, id="extra"),
        pytest.param(None, None, Kind.DELETED, AGED, None, id="nowhere"),
        pytest.param(None, RECENT, None, AGED, Difference.MISSING, id="missing"),
        pytest.param(None, RECENT, Kind.EVICTED, AGED, Difference.MISSING, id="evicted too early"),
        pytest.param(None, ODD, None, AGED, Difference.MISSING, id="no date: never leaves"),
        pytest.param(None, COLD, Kind.EVICTED, AGED, None, id="evicted"),
        pytest.param(None, COLD, None, AGED, None, id="cold"),
        pytest.param(None, COLD, Kind.DELETED, AGED, Difference.DELETED, id="deleted, never replayed"),
        pytest.param(None, RECENT, Kind.EXPIRED, AGED, None, id="the archive's TTL is late"),
        pytest.param(None, COLD, None, WHOLE, Difference.MISSING, id="of a whole collection"),
    ],
)  # fmt: skip
def test_judge(
    here: dict[str, Any] | None,
    there: dict[str, Any] | None,
    kind: Kind | None,
    coverage: Coverage,
    expected: Difference | None,
) -> None:
    found = judge(
        None if here is None else bson.encode(here),
        None if there is None else bson.encode(there),
        None if kind is None else record(kind),
        coverage,
    )
    assert found is expected


def test_what_a_ttl_index_may_have_removed_isnt_extra() -> None:
    rules = (Rule("t_1", "t", 60.0),)
    due = judge(bson.encode(COLD), None, None, AGED, rules=rules, now=FLOOR)
    assert due is None
    young = judge(bson.encode(RECENT), None, None, AGED, rules=rules, now=FLOOR)
    assert young is Difference.EXTRA


@pytest.mark.parametrize(
    "changes",
    [{"state": State.PAUSING}, {"published_at": None}, {"floor": None}, {"age_field": None}],
    ids=str,
)
def test_nothing_is_promised_without(changes: dict[str, Any]) -> None:

    assert is_promised(AGED, bson.encode(RECENT))
    assert not is_promised(replace(AGED, **changes), bson.encode(RECENT))
    assert not is_promised(replace(WHOLE, complete=False), bson.encode(RECENT))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "missing 5"),
        ("a", 'missing "a"'),
        ({"a": 1}, 'missing {"a": 1}'),
        ("x" * 500, 'missing "' + "x" * 119 + "..."),
    ],
    ids=["number", "text", "document", "long"],
)
def test_describe(value: Any, expected: str) -> None:
    assert describe(doc_id(value), Difference.MISSING) == expected


def test_an_id_that_python_cant_decode_is_named_by_its_bytes() -> None:
    broken = DocId.of_value(0x02, b"\x02\0\0\0\xff\0")
    assert describe(broken, Difference.EXTRA) == "extra BSON 025f69640002000000ff00"

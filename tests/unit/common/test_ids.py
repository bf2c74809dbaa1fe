"""Ids: equal exactly where MongoDB's ``_id`` index says so; raw bytes survive."""

import bson
import pytest
from bson import SON, Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from hypothesis import given, strategies as st

from thermocline_common.ids import DocId, elements, in_filter, records_filter, wrap


def id_of(value: object) -> DocId:
    return DocId.of_document(bson.encode({"x": 1, "_id": value}))


@pytest.mark.parametrize(
    "same",
    [
        (5, 5.0, Int64(5), Decimal128("5.00"), Decimal128("0.5E1")),
        (0, -0.0, Int64(0), Decimal128("0E-10"), Decimal128("-0")),
        (0.5, Decimal128("0.50")),
        (2.0**60, Int64(2**60)),
        (1e22, Decimal128("1E22")),
        (float("nan"), Decimal128("NaN")),
        (float("inf"), Decimal128("Infinity")),
        ({"a": 1, "b": [1]}, SON([("a", 1.0), ("b", [Int64(1)])])),
    ],
    ids=str,
)
def test_ids_that_mongodb_calls_equal_are_equal(same: tuple[object, ...]) -> None:
    assert len({id_of(value) for value in same}) == 1


@pytest.mark.parametrize(
    "different",
    [
        (5, "5", Timestamp(0, 5), True),
        (0.1, Decimal128("0.1")),
        (Int64(2**53 + 1), 2.0**53),
        ({"a": 1, "b": 2}, SON([("b", 2), ("a", 1)])),
        ({"a": 1}, {"b": 1}),
        ({"": 1}, {}),
        (Binary(b"x", 0), Binary(b"x", 5)),
        (MinKey(), MaxKey(), None),
        ({"a": [1, 2]}, {"a": {"0": 1, "1": 2}}),
        (Decimal128("Infinity"), Decimal128("-Infinity"), Decimal128("NaN")),
    ],
    ids=str,
)
def test_ids_that_mongodb_tells_apart_differ(different: tuple[object, ...]) -> None:
    assert len({id_of(value) for value in different}) == len(different)


scalars = (
    st.integers(-(2**63), 2**63 - 1).map(Int64)
    | st.floats()
    | st.text(max_size=8).filter(lambda s: "\0" not in s)
    | st.binary(max_size=8)
    | st.booleans()
    | st.none()
    | st.just(ObjectId("0123456789abcdef01234567"))
)
names = st.text(st.characters(exclude_characters="\0$.", codec="utf-8"), min_size=1, max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(names, values), max_size=5, unique_by=lambda pair: pair[0]))
def test_elements_rebuild_the_document(pairs: list[tuple[str, object]]) -> None:
    raw = bson.encode(SON(pairs))
    assert wrap(*(raw[begin:end] for _, _, begin, _, end in elements(raw))) == raw


@given(st.lists(values, max_size=4))
def test_filters_hold_the_ids_unchanged(ids: list[object]) -> None:
    parsed = [id_of(value) for value in ids]
    found = RawBSONDocument(in_filter(parsed))["_id"]["$in"]
    assert [DocId.of_document(bson.encode({"_id": v})) for v in found] == parsed
    records = bson.decode(records_filter("a.b", parsed))["_id"]["$in"]
    assert [r["ns"] for r in records] == ["a.b"] * len(ids)


@pytest.mark.parametrize(
    "value", [Regex("a", "i"), bson.Code("f()"), bson.Code("f()", {"x": 1})], ids=str
)
def test_odd_types_are_walked(value: object) -> None:
    raw = bson.encode({"a": value, "b": 1})
    assert [name for name, *_ in elements(raw)] == [b"a", b"b"]


@pytest.mark.parametrize("raw", [b"\x10\0\0\0\x02a\0\xff\0\0\0x\0\0", b"\x08\0\0\0\x99a\0\0"])
def test_bytes_that_are_not_bson_raise(raw: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        list(elements(raw))


@pytest.mark.parametrize("count", [0, 1, 11, 3_000, 3_001])
def test_a_filter_of_any_length(count: int) -> None:
    ids = [DocId.of_document(bson.encode({"_id": i})) for i in range(count)]
    assert in_filter(ids) == bson.encode({"_id": {"$in": list(range(count))}})

"""Unique keys, and what updates can touch."""

import math
from typing import Any

import bson
import pytest
from bson import Int64, MaxKey

from thermocline_common.ids import ARRAY, DOCUMENT, DocId, wrap
from thermocline_proxy.commands.command import raw_element
from thermocline_proxy.writes.changes import NewId, Touch, new_id, rests_on, touch
from thermocline_proxy.writes.guards import as_seen_at
from thermocline_proxy.writes.keys import (
    NotDecidable,
    UniqueSpec,
    holders,
    keys,
    parse_spec,
    values_at,
)


def field(value: Any) -> tuple[int, bytes]:
    raw = bson.encode({"u": value})
    return raw[4], raw[7:-1]


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        ({"a": 1}, "a", [1]),
        ({}, "a", [None]),
        ({"a": [1, 2, 1]}, "a", [[1, 2, 1], 1, 2]),
        ({"a": []}, "a", [[]]),
        ({"a": {"b": 1}}, "a.b", [1]),
        ({"a": 5}, "a.b", [None]),
        ({"a": [{"b": 1}, {"b": [2]}, {}]}, "a.b", [1, [2], 2, None]),
        ({"a": [{"b": 1}, {"b": 2}]}, "a.1.b", [None, 2]),
    ],
)
def test_values_of_an_index_path(document: dict[str, Any], path: str, expected: list[Any]) -> None:
    found = values_at(bson.encode(document), path.encode())
    values = [bson.decode(wrap(raw_element("v", *value)))["v"] for value in found]
    assert values == expected


def test_keys_compare_as_mongodb_does() -> None:
    spec = UniqueSpec("k", (b"k",))
    assert keys(bson.encode({"k": 5}), spec) == keys(bson.encode({"k": Int64(5), "x": 1}), spec)
    assert keys(bson.encode({"k": 5}), spec) != keys(bson.encode({"k": "5"}), spec)
    assert keys(bson.encode({"k": None}), spec) == keys(bson.encode({}), spec)


def decoded_filter(document: dict[str, Any], spec: UniqueSpec) -> Any:
    found = holders(bson.encode(document), spec)
    assert all(lookup.bounds is None for lookup in found)
    return bson.decode(found[0].query) if found else None


def test_filters_for_the_holders_of_a_key() -> None:
    assert decoded_filter({"a": 1, "b": "x"}, UniqueSpec("p", (b"a", b"b"))) == {
        "$and": [{"a": {"$eq": 1}}, {"b": {"$eq": "x"}}]
    }
    assert decoded_filter({"a": [1, 2]}, UniqueSpec("a", (b"a",))) == {
        "$and": [{"$or": [{"a": {"$eq": [1, 2]}}, {"a": {"$eq": 1}}, {"a": {"$eq": 2}}]}]
    }


def test_sparse_and_partial_indexes() -> None:
    sparse = UniqueSpec("a", (b"a",), sparse=True)
    assert decoded_filter({}, sparse) is None
    assert decoded_filter({"a": None}, sparse) == {
        "$and": [{"a": {"$eq": None}}, {"$or": [{"a": {"$exists": True}}]}]
    }
    partial = UniqueSpec("a", (b"a",), partial=bson.encode({"live": True}))
    assert decoded_filter({"a": 1}, partial) == {"$and": [{"a": {"$eq": 1}}, {"live": True}]}


def test_a_missing_value_on_a_dotted_path_is_looked_for_in_the_index() -> None:
    spec = UniqueSpec("u", (b"c", b"a.b", b"d"), frozenset({b"d"}))
    (lookup,) = holders(bson.encode({"c": 7, "d": 9}), spec)
    assert bson.decode(lookup.query) == {"$and": [{"d": {"$eq": 9}}]}
    assert lookup.hint == "u"
    assert lookup.bounds is not None
    low, high = map(bson.decode, lookup.bounds)
    assert low == {"c": 7, "a.b": None, "d": MaxKey()}
    assert list(high) == ["c", "a.b", "d"]
    assert math.isnan(high["a.b"])


def test_specifications_from_list_indexes() -> None:
    plain = {"v": 2, "key": {"a": 1, "b": -1}, "name": "x", "unique": True}
    assert parse_spec(bson.encode(plain)) == UniqueSpec("x", (b"a", b"b"), frozenset({b"b"}))
    assert parse_spec(bson.encode({"v": 2, "key": {"_id": 1}, "name": "_id_"})) is None
    with pytest.raises(NotDecidable):
        parse_spec(bson.encode({**plain, "key": {"a": "2dsphere"}}))


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({"$set": {"x": 1}}, Touch.NO),
        ({"$set": {"k": 1}}, Touch.PERHAPS),
        ({"$set": {"k.deep": 1}}, Touch.PERHAPS),
        ({"$set": {"a": 1}}, Touch.PERHAPS),
        ({"$set": {"a.0.b": 1}}, Touch.PERHAPS),
        ({"$set": {"a.$[].b": 1}}, Touch.PERHAPS),
        ({"$set": {"a.c": 1}}, Touch.NO),
        ({"$rename": {"x": "k"}}, Touch.PERHAPS),
        ({"$rename": {"k": "x"}}, Touch.PERHAPS),
        ({"$rename": {"x": "y"}}, Touch.NO),
        ({"$setOnInsert": {"k": 1}}, Touch.PERHAPS),
        ({"$set": {"kk": 1}}, Touch.NO),
        ({"k": 1}, Touch.REPLACES),
        ({}, Touch.REPLACES),
        ([{"$set": {"x": "$k"}}], Touch.NO),
        ([{"$set": {"k": "$x"}}], Touch.PERHAPS),
        ([{"$unset": ["x", "k"]}], Touch.PERHAPS),
        ([{"$unset": "x"}], Touch.NO),
        ([{"$project": {"x": 1}}], Touch.PERHAPS),
        ([{"$replaceWith": "$x"}], Touch.PERHAPS),
    ],
)
def test_what_an_update_can_touch(update: Any, expected: Touch) -> None:
    assert touch(field(update), ("k", "a.b")) is expected
    assert touch(field(update), ()) is Touch.NO


@pytest.mark.parametrize(
    ("query", "update", "expected"),
    [
        ({"a": 1}, {"$set": {"b": 1}}, NewId.GENERATED),
        ({"a": 1}, {"b": 1}, NewId.GENERATED),
        ({"a": 1}, {"_id": 7, "b": 1}, 7),
        ({"a": 1}, {"$setOnInsert": {"_id": 7}}, 7),
        ({"a": 1}, {"$set": {"_id": 7}}, 7),
        ({"a": 1}, {"$set": {"_id.x": 7}}, NewId.UNKNOWN),
        ({"a": 1}, {"$rename": {"a": "_id"}}, NewId.UNKNOWN),
        ({"a": 1}, [{"$set": {"b": 1}}], NewId.UNKNOWN),
        ({"_id": {"$gt": 5}}, {"b": 1}, NewId.UNKNOWN),
        ({"$or": [{"_id": 5}]}, {"b": 1}, NewId.UNKNOWN),
        ({"_id.x": 5}, {"b": 1}, NewId.UNKNOWN),
    ],
)
def test_the_id_that_an_upsert_would_insert(
    query: dict[str, Any], update: Any, expected: Any
) -> None:
    found = new_id(bson.encode(query), field(update))
    if isinstance(expected, int):
        assert isinstance(found, DocId)
        assert found == DocId.of_document(bson.encode({"_id": expected}))
    else:
        assert found is expected


def test_the_types_of_updates() -> None:
    assert field([])[0] == ARRAY
    assert field({})[0] == DOCUMENT


@pytest.mark.parametrize(
    ("update", "query", "expected"),
    [
        ({"$set": {"k": 1, "x": 2}}, {"y": 1}, {"k", "a"}),
        ({"$inc": {"a.b": 1}}, {"$expr": True}, {"k", "a"}),
        ({"$rename": {"old.one": "k"}}, {}, {"k", "a", "old"}),
        ({"$set": {"a.$.b": 1}}, {"m.n": 2, "o": 1}, {"k", "a", "m", "o"}),
        ({"$set": {"a.$[].b": 1, "a.$[e].b": 2}}, {"m": 2}, {"k", "a"}),
        ({"$set": {"a.$": 1}}, {"$or": [{"m": 2}]}, None),
        ({"$set": {"a.$": 1}}, {"": 1}, None),
        ({"$set": 5}, {}, None),
    ],
)
def test_what_a_new_key_rests_on(update: Any, query: Any, expected: set[str] | None) -> None:
    found = rests_on(field(update), bson.encode(query), ["k", "a.b"])
    assert found == (None if expected is None else {name.encode() for name in expected})


def test_a_document_is_held_to_some_of_its_fields() -> None:
    document = bson.encode({"_id": 1, "k": 5, "x": "large"})
    condition = bson.decode(as_seen_at(document, [b"a", b"k"]))["$expr"]["$and"]
    assert condition == [
        {"$eq": [{"$type": "$a"}, "missing"]},
        {"$eq": [{"v": "$k"}, {"$literal": {"v": 5}}]},
    ]

"""What a write's filter says about ``_id``, and narrowing."""

import re
from typing import Any

import bson
import pytest
from bson import DBRef, Int64, ObjectId, Regex

from thermocline_common.ids import DocId
from thermocline_proxy.writes.filters import (
    CannotNarrow,
    has_expression,
    id_choices,
    id_equality,
    implies_order,
    is_simple_collation,
    narrow,
    storable,
)


def an_id(value: Any) -> DocId:
    return DocId.of_document(bson.encode({"_id": value}))


OID = ObjectId()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"_id": 5}, 5),
        ({"_id": OID, "v": 3}, OID),
        ({"_id": {"$eq": "x"}}, "x"),
        ({"_id": {"$eq": 5, "$gt": 1}}, 5),
        ({"_id": {"$in": [5]}}, 5),
        ({"_id": {"$in": [5, 5.0]}}, Int64(5)),
        ({"$and": [{"a": 1}, {"_id": 5}]}, 5),
        ({"$and": [{"$and": [{"_id": 5}]}]}, 5),
        ({"_id": {"a": 1}}, {"a": 1}),
        ({"_id": {}}, {}),
        ({"_id": None}, None),
        ({"_id": DBRef("c", 1)}, DBRef("c", 1)),
    ],
)
def test_an_id_equality_is_seen(query: dict[str, Any], expected: Any) -> None:
    assert id_equality(bson.encode(query)) == an_id(expected)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"a": 1},
        {"_id": Regex("^a")},
        {"_id": {"$gt": 5}},
        {"_id": {"$ne": 5}},
        {"_id": {"$in": [1, 2]}},
        {"_id": {"$in": [Regex("a")]}},
        {"_id": {"$not": {"$eq": 5}}},
        {"$or": [{"_id": 5}, {"a": 1}]},
        {"$nor": [{"_id": 5}]},
        {"_id.a": 5},
        {"$expr": {"$eq": ["$_id", 5]}},
        {"_id": {"$eq": Regex("a")}},
        {"_id": [1, 2]},
        {"_id": {"$eq": {"$a": 1}}},
        {"_id": {"$in": [{"$a": 1}]}},
    ],
)
def test_what_is_no_id_equality(query: dict[str, Any]) -> None:
    assert id_equality(bson.encode(query)) is None


def test_a_collation_makes_strings_ambiguous_and_nothing_else() -> None:
    assert id_equality(bson.encode({"_id": "abc"}), collated=True) is None
    assert id_equality(bson.encode({"_id": {"a": ["abc"]}}), collated=True) is None
    assert id_equality(bson.encode({"_id": 5}), collated=True) == an_id(5)


def test_choices_take_the_shortest_list() -> None:
    query = {"_id": {"$in": [1, 2, 3]}, "$and": [{"_id": {"$in": [3, 4]}}]}
    assert id_choices(bson.encode(query)) == [an_id(3), an_id(4)]
    assert id_choices(bson.encode({"_id": {"$in": []}})) == []


@pytest.mark.parametrize(
    ("collation", "simple"),
    [
        (None, True),
        ({}, True),
        ({"locale": "simple"}, True),
        ({"locale": "en"}, False),
        ({"strength": 1, "locale": "de"}, False),
    ],
)
def test_the_simple_collation(collation: dict[str, Any] | None, simple: bool) -> None:
    raw = None if collation is None else bson.encode(collation)
    assert is_simple_collation(raw) is simple


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, True), ("x", True), ({"a": 1}, True), ({}, True), (DBRef("c", 1), True),
        ([1], False), (Regex("a"), False), ({"$a": 1}, False), ({"$ref": "c"}, False),
    ],
)  # fmt: skip
def test_ids_that_can_be_stored(value: Any, expected: bool) -> None:
    assert storable(an_id(value)) is expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"$expr": True}, True),
        ({"a": 1, "$expr": {"$eq": ["$a", 1]}}, True),
        ({"$and": [{"a": 1}, {"$or": [{"$nor": [{"$expr": True}]}]}]}, True),
        ({"a": {"$expr": 1}}, False),
        ({"a": [{"$expr": 1}]}, False),
        ({"$and": [{"a": "$expr"}], "$comment": {"$expr": 1}}, False),
        ({}, False),
    ],
)
def test_expressions_in_filters(query: dict[str, Any], expected: bool) -> None:
    assert has_expression(bson.encode(query)) is expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"p": {"$near": [1, 2]}}, True),
        ({"$and": [{"a": 1}, {"p": {"$nearSphere": [1, 2], "$maxDistance": 1}}]}, True),
        ({"p": {"$geoWithin": {"$center": [[1, 2], 3]}}}, False),
        ({"a": 1}, False),
    ],
)
def test_filters_with_an_order_of_their_own(query: dict[str, Any], expected: bool) -> None:
    assert implies_order(bson.encode(query)) is expected


def test_narrowing_keeps_the_filter_and_adds_the_ids() -> None:
    narrowed = bson.decode(narrow(bson.encode({"a": 1}), [an_id(1), an_id("x")]))
    assert narrowed == {"$and": [{"a": 1}, {"_id": {"$in": [1, "x"]}}]}


@pytest.mark.parametrize("text", ["abc", "a.b*c", "x\n", "", "é", "a\x00b", "\U0001f600", "^$"])
def test_under_a_collation_strings_are_picked_by_exact_expressions(text: str) -> None:
    narrowed = bson.decode(narrow(bson.encode({}), [an_id(text), an_id(1)], collated=True))
    expression, number = narrowed["$and"][1]["_id"]["$in"]
    assert number == 1
    pattern = re.sub(
        r"\\x\{([0-9a-f]+)\}", lambda m: re.escape(chr(int(m[1], 16))), expression.pattern
    )
    pattern = pattern.removeprefix("\\A").removesuffix("\\z")
    assert re.fullmatch(pattern, text)


def test_under_a_collation_strings_inside_documents_cannot_be_picked() -> None:
    with pytest.raises(CannotNarrow):
        narrow(bson.encode({}), [an_id({"a": "x"})], collated=True)
    narrow(bson.encode({}), [an_id({"a": 1})], collated=True)

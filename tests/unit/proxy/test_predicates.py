"""What filters prove: a table, and properties against a small matcher of scalar Dates."""

import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import json_util
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from hypothesis import given, settings, strategies as st

from thermocline_common.coverage import UniqueIndex
from thermocline_common.ids import DocId
from thermocline_proxy.commands.predicates import (
    NO_DATE,
    equalities,
    listed_ids,
    lower_bound,
    only_about,
    point_id,
    understood,
    unique_key,
)

CASES = json.loads((Path(__file__).parents[2] / "cases" / "predicates.json").read_text())["cases"]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def raw(query: Any) -> bytes:
    return bytes(bson.encode(query))


def written(bound: int | None) -> str | None:
    if bound is None or bound == NO_DATE:
        return None if bound is None else "no-date"
    time = EPOCH + dt.timedelta(milliseconds=bound)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_lower_bound(case: dict[str, Any]) -> None:
    query = json_util.loads(json.dumps(case["filter"]))
    assert written(lower_bound(raw(query), case.get("path", "t"))) == case["bound"]


def test_a_repeated_field_is_a_conjunction() -> None:
    one = raw({"t": {"$gte": EPOCH}})
    two = raw({"t": {"$gte": EPOCH + dt.timedelta(seconds=1)}})
    both = bytes((len(one) + len(two) - 5,)) + b"\0\0\0" + one[4:-1] + two[4:-1] + b"\0"
    assert lower_bound(both, "t") == 1_000


def test_depth_and_broken_bytes_prove_nothing() -> None:
    query: dict[str, Any] = {"t": {"$gte": EPOCH}}
    assert lower_bound(raw(query), "t") == 0
    for _ in range(80):
        query = {"$and": [query]}
    assert lower_bound(raw(query), "t") is None
    whole = raw({"t": {"$gte": EPOCH}, "n": {"$in": [1, 2]}})
    for end in range(5, len(whole)):
        assert lower_bound(whole[:end], "t") in (None, 0)
        assert point_id(whole[:end]) is None


# --- properties: a matcher that knows one thing, a document with a scalar Date

MOMENTS = st.integers(-5, 5).map(lambda n: EPOCH + dt.timedelta(milliseconds=n))
OTHERS = st.sampled_from([None, 3, 2.5, "x", True, Int64(7), ObjectId("0" * 24)])
VALUES = MOMENTS | OTHERS
OPERATORS = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"]), VALUES),
    st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(VALUES, max_size=3)),
    st.tuples(st.just("$exists"), st.booleans()),
)
LEAVES = st.one_of(
    st.builds(lambda value: {"t": value}, VALUES),
    st.builds(lambda pairs: {"t": dict(pairs)}, st.lists(OPERATORS, min_size=1, max_size=3)),
    st.builds(lambda pair: {"t": {"$not": {pair[0]: pair[1]}}}, OPERATORS),
    st.builds(lambda value: {"n": value}, st.booleans()),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda name, branches: {name: branches},
        st.sampled_from(["$and", "$or", "$nor"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=12,
)


def compare(operator: str, date: dt.datetime, operand: Any) -> bool:
    """As MongoDB compares a scalar Date with an operand."""
    if operator == "$in":
        return any(compare("$eq", date, one) for one in operand)
    if operator == "$nin":
        return not compare("$in", date, operand)
    if operator == "$ne":
        return not compare("$eq", date, operand)
    if operator == "$exists":
        return bool(operand)
    if not isinstance(operand, dt.datetime):
        return False
    return {
        "$eq": date == operand, "$gt": date > operand, "$gte": date >= operand,
        "$lt": date < operand, "$lte": date <= operand,
    }[operator]  # fmt: skip


def matches(query: dict[str, Any], date: dt.datetime, other: bool) -> bool:
    for name, value in query.items():
        if name == "$and":
            found = all(matches(branch, date, other) for branch in value)
        elif name == "$or":
            found = any(matches(branch, date, other) for branch in value)
        elif name == "$nor":
            found = not any(matches(branch, date, other) for branch in value)
        elif name == "n":
            found = value == other
        elif not isinstance(value, dict):
            found = compare("$eq", date, value)
        else:
            found = all(
                not all(compare(o, date, v) for o, v in operand.items())
                if operator == "$not"
                else compare(operator, date, operand)
                for operator, operand in value.items()
            )
        if not found:
            return False
    return True


@settings(max_examples=400, deadline=None)
@given(query=FILTERS)
def test_no_scalar_date_below_the_bound_matches(query: dict[str, Any]) -> None:
    bound = lower_bound(raw(query), "t")
    assert understood(raw(query))
    if bound is None:
        return
    for offset in range(-7, 8):
        for other in (True, False):
            if offset < bound:
                assert not matches(query, EPOCH + dt.timedelta(milliseconds=offset), other)


# --- ids


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"_id": 5}, 5),
        ({"_id": Int64(5)}, 5),
        ({"_id": {"$eq": 5}}, 5),
        ({"_id": {"$gt": 1, "$eq": 5}}, 5),
        ({"_id": {"a": 1, "b": 2}}, {"a": 1, "b": 2}),
        ({"_id": {"$eq": {"a": 1}}}, {"a": 1}),
        ({"_id": {}}, {}),
        ({"v": 1, "$and": [{"x": 1}, {"$and": [{"_id": "x"}]}]}, "x"),
        ({"_id": 5, "$or": [{"v": 1}, {"v": 2}]}, 5),
        ({"_id": [5]}, None),
        ({"_id": Regex("^x")}, None),
        ({"_id": {"$eq": Regex("^x")}}, None),
        ({"_id": {"$gt": 5}}, None),
        ({"_id": {"$in": [5]}}, None),
        ({"_id": {"$ref": "c", "$id": 5}}, None),
        ({"$or": [{"_id": 5}]}, None),
        ({"$nor": [{"_id": 5}]}, None),
        ({"_id.a": 5}, None),
        ({"x": {"_id": 5}}, None),
        ({"x": {"$elemMatch": {"_id": 5}}}, None),
        ({}, None),
    ],
)
def test_point_id(query: dict[str, Any], expected: Any) -> None:
    found = point_id(raw(query))
    if expected is None:
        assert found is None
    else:
        assert found == DocId.of_document(raw({"_id": expected}))


def test_null_is_an_id() -> None:
    assert point_id(raw({"_id": None})) == DocId.of_document(raw({"_id": None}))


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"_id": {"$in": [1, 2, 2.0, Int64(1)]}}, 2),
        ({"v": 1, "$and": [{"_id": {"$in": ["a"]}}]}, 1),
        ({"_id": {"$in": []}}, None),
        ({"_id": {"$in": [1, None]}}, 2),
        ({"_id": {"$in": [1, Regex("x")]}}, None),
        ({"_id": {"$nin": [1]}}, None),
        ({"_id": {"$not": {"$in": [1]}}}, None),
        ({"$or": [{"_id": {"$in": [1]}}]}, None),
        ({"x": {"$in": [1]}, "_id": {"$gt": 1}}, None),
        ({"_id": 1}, None),
    ],
)
def test_listed_ids(query: dict[str, Any], count: int | None) -> None:
    found = listed_ids(raw(query))
    assert (None if found is None else len(found)) == count


def test_the_first_of_several_equalities_counts() -> None:
    found = equalities(raw({"a": 1, "$and": [{"a": 2}, {"b": {"$eq": 3}}]}))
    assert sorted(found) == [b"a", b"b"]
    assert found[b"a"][1] == b"\1\0\0\0"


@pytest.mark.parametrize(
    ("query", "whole"),
    [
        ({"_id": 1}, True),
        ({"_id": {"$eq": 1}}, True),
        ({"_id": {"$in": [1]}}, True),
        ({"_id": {"$eq": 1, "$gt": 0}}, False),
        ({"_id": 1, "v": 1}, False),
        ({"$and": [{"_id": 1}]}, False),
        ({"_id": 1, "$comment": "x"}, False),
        ({}, False),
    ],
)
def test_only_about(query: dict[str, Any], whole: bool) -> None:
    assert only_about(raw(query), frozenset((b"_id",))) is whole


# --- unique keys

EMAIL = UniqueIndex("email", ("email",), plain=True)
PAIR = UniqueIndex("pair", ("shop", "number"), plain=True)


@pytest.mark.parametrize(
    ("query", "indexes", "name"),
    [
        ({"email": "a"}, (EMAIL,), "email"),
        ({"email": {"$eq": "a"}, "v": 1}, (EMAIL,), "email"),
        ({"number": 1, "shop": "x"}, (EMAIL, PAIR), "pair"),
        ({"shop": "x"}, (PAIR,), None),
        ({"email": None}, (EMAIL,), None),
        ({"email": Regex("a")}, (EMAIL,), None),
        ({"email": ["a"]}, (EMAIL,), None),
        ({"email": {"x": 1}}, (EMAIL,), None),
        ({"email": {"$in": ["a"]}}, (EMAIL,), None),
        ({"email": {"$gt": "a"}}, (EMAIL,), None),
        ({"$or": [{"email": "a"}]}, (EMAIL,), None),
        ({"email": "a"}, (UniqueIndex("email", ("email",), plain=False),), None),
        ({"a.x": 1}, (UniqueIndex("x", ("a.x",), plain=True),), "x"),
        ({"a.x": 1, "a.y": 2}, (UniqueIndex("xy", ("a.x", "a.y"), plain=True),), None),
        ({"a.0": 1}, (UniqueIndex("first", ("a.0",), plain=True),), None),
        ({"email": "a"}, (), None),
    ],
)
def test_unique_key(
    query: dict[str, Any], indexes: tuple[UniqueIndex, ...], name: str | None
) -> None:
    found = unique_key(raw(query), indexes)
    assert (None if found is None else found[0].name) == name


def test_no_date_is_later_than_every_date() -> None:
    assert NO_DATE > 2**63 - 1
    assert math.isfinite(NO_DATE)

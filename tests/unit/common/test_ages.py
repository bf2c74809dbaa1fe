"""Scalar dates in raw documents, and the index of ages."""

import datetime as dt
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp
from hypothesis import given, strategies as st

from thermocline_common.ages import (
    age_index,
    from_milliseconds,
    is_multikey,
    odd_ages_filter,
    scalar_date,
    to_milliseconds,
)

DATE = DatetimeMS(1_000)


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        ({"t": DATE}, "t", 1_000),
        ({"t": DatetimeMS(-(2**63))}, "t", -(2**63)),
        ({"t": DatetimeMS(2**63 - 1)}, "t", 2**63 - 1),
        ({"a": {"b": {"c": DATE}}}, "a.b.c", 1_000),
        ({"x": 1, "a": {"x": 1, "b": DATE}}, "a.b", 1_000),
        ({}, "t", None),
        ({"t": None}, "t", None),
        ({"t": "2026-01-01"}, "t", None),
        ({"t": 1_000}, "t", None),
        ({"t": Timestamp(1, 1)}, "t", None),
        ({"t": [DATE]}, "t", None),
        ({"t": []}, "t", None),
        ({"a": [{"b": DATE}]}, "a.b", None),
        ({"a": {"b": [DATE]}}, "a.b", None),
        ({"a": DATE}, "a.b", None),
        ({"a": {"b": DATE}}, "a", None),
        ({"a.b": DATE}, "a.b", None),
        ({"a": {"0": DATE}}, "a.0", 1_000),
        ({"a": [DATE]}, "a.0", None),
    ],
)
def test_scalar_date(document: Any, path: str, expected: int | None) -> None:
    assert scalar_date(bson.encode(document), path) == expected


def test_the_first_of_repeated_names_counts() -> None:
    both = bson.encode({"t": 1})[4:-1] + bson.encode({"t": DATE})[4:-1]
    assert scalar_date((len(both) + 5).to_bytes(4, "little") + both + b"\0", "t") is None


@given(st.datetimes(timezones=st.just(dt.UTC), min_value=dt.datetime(2, 1, 1)))  # noqa: DTZ001
def test_milliseconds_there_and_back(moment: dt.datetime) -> None:
    there = from_milliseconds(to_milliseconds(moment))
    assert dt.timedelta(0) <= moment - there < dt.timedelta(milliseconds=1)


T = {"key": {"t": 1}, "name": "t"}


@pytest.mark.parametrize(
    ("index", "usable"),
    [
        (T, True),
        ({"key": {"t": -1, "x": 1}, "name": "tx"}, True),
        ({"key": {"t": -1.0}, "name": "t", "expireAfterSeconds": 5}, True),
        ({"key": {"x": 1, "t": 1}, "name": "xt"}, False),
        ({"key": {"t": "hashed"}, "name": "h"}, False),
        ({**T, "sparse": True}, False),
        ({**T, "hidden": True}, False),
        ({**T, "partialFilterExpression": {"t": {"$gt": 1}}}, False),
        ({**T, "collation": {"locale": "de"}}, False),
    ],
)
def test_age_index(index: Any, usable: bool) -> None:
    assert (age_index([index], "t") is index) is usable


def test_the_narrowest_index_is_taken() -> None:
    assert age_index([{"key": {"t": 1, "x": 1}, "name": "a"}, T], "t") is T


def explanation(**scan: Any) -> Any:
    stage = {"stage": "IXSCAN", **scan}
    return {"queryPlanner": {"winningPlan": {"stage": "FETCH", "inputStage": stage}}}


@pytest.mark.parametrize(
    ("explained", "expected"),
    [
        (explanation(isMultiKey=False, multiKeyPaths={"t": []}), False),
        (explanation(isMultiKey=True, multiKeyPaths={"t": ["t"], "x": []}), True),
        (explanation(isMultiKey=True, multiKeyPaths={"t": [], "x": ["x"]}), False),
        (explanation(isMultiKey=True), True),
        (explanation(isMultiKey=False), False),
        ({"queryPlanner": {"winningPlan": {"stage": "COLLSCAN"}}}, True),
        ({}, True),
    ],
)
def test_multikey_where_in_doubt(explained: Any, expected: bool) -> None:
    assert is_multikey(explained, "t") is expected


def test_with_arrays_every_document_is_looked_at() -> None:
    assert odd_ages_filter("a.b", True) == {"$expr": {"$ne": [{"$type": "$a.b"}, "date"]}}
    assert odd_ages_filter("t", False) == {"t": {"$not": {"$gte": DatetimeMS(-(2**63))}}}

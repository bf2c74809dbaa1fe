"""TTL rules."""

import datetime as dt
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS

from thermocline_common.ages import LOWEST_DATE, to_milliseconds
from thermocline_common.ttl import CLOCK_MARGIN, Rule, may_have_expired, rules_of
from thermocline_evictor.plan.expiry import due_filter

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
T: Any = {"key": {"t": 1}, "name": "t"}


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (T, ()),
        ({**T, "expireAfterSeconds": 5}, (Rule("t", "t", 5.0),)),
        ({**T, "expireAfterSeconds": 0}, (Rule("t", "t", 0.0),)),
        (
            {**T, "expireAfterSeconds": 5, "partialFilterExpression": {"a": 1}},
            (Rule("t", "t", 5.0, {"a": 1}),),
        ),
        ({**T, "expireAfterSeconds": float("nan")}, ()),
        ({**T, "expireAfterSeconds": 2**40}, ()),
        ({**T, "expireAfterSeconds": -1}, ()),
        ({"key": {"t": 1, "x": 1}, "name": "tx", "expireAfterSeconds": 5}, ()),
    ],
)
def test_rules_of(index: Any, expected: tuple[Rule, ...]) -> None:
    assert rules_of([index]) == expected


def test_due_filter() -> None:
    limit = DatetimeMS(to_milliseconds(NOW) - 5_000)
    due = {"t": {"$gte": LOWEST_DATE, "$lte": limit}}
    assert due_filter(Rule("t", "t", 5.0), NOW) == due
    assert due_filter(Rule("t", "t", 5.0, {"a": 1}), NOW) == {"$and": [due, {"a": 1}]}


OLD = NOW - dt.timedelta(seconds=10)
YOUNG = NOW + 2 * CLOCK_MARGIN


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        ({"t": OLD}, "t", True),
        ({"t": YOUNG}, "t", False),
        ({"t": [YOUNG, OLD]}, "t", True),
        ({"t": [YOUNG]}, "t", False),
        ({"a": [{"b": YOUNG}, {"b": OLD}]}, "a.b", True),
        ({"a": {"b": OLD}}, "a.b", True),
        ({"a": OLD}, "a.b", False),
        ({"t": None}, "t", False),
        ({"t": "x"}, "t", False),
        ({}, "t", False),
    ],
)
def test_may_have_expired(document: Any, path: str, expected: bool) -> None:
    rules = (Rule("other", "zzz", 0.0), Rule("r", path, 5.0))
    assert may_have_expired(rules, bson.encode(document), NOW) is expected


def test_without_rules_nothing_expires() -> None:
    assert not may_have_expired((), bson.encode({"t": OLD}), NOW)

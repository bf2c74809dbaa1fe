"""Which newest-first lists can be checked, and when a batch of the fast tier is the whole answer."""

import datetime as dt
from typing import Any

import bson
import pytest
from bson.code import Code
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.regex import Regex
from bson.timestamp import Timestamp

from thermocline_proxy.routing.newest import keeps_field, proves, sorts_newest_first

FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FLOOR_MS = int(FLOOR.timestamp() * 1000)
MILLISECOND = dt.timedelta(milliseconds=1)


def raw(document: Any) -> bytes:
    return bytes(bson.encode(document))


@pytest.mark.parametrize(
    ("projection", "path", "kept"),
    [
        ({}, "t", True),
        ({"t": 1}, "t", True),
        ({"v": 1, "t": True}, "t", True),
        ({"t": 1.5, "_id": 0}, "t", True),
        ({"_id": 0}, "t", True),
        ({"_id": 0, "v": 0}, "t", True),
        ({"v": 1}, "t", False),
        ({"_id": 1}, "t", False),
        ({"t": 0}, "t", False),
        ({"t": False}, "t", False),
        ({"t": "$v"}, "t", False),
        ({"t": {"$literal": FLOOR}}, "t", False),
        ({"v": {"$slice": 1}, "t": 1}, "t", False),
        ({"t.$": 1}, "t", False),
        ({"t.x": 1}, "t", False),
        ({"a": 1}, "a.b", True),
        ({"a.b": 1}, "a.b", True),
        ({"a.c": 1}, "a.b", False),
        ({"a.b.c": 1}, "a.b", False),
        ({"a": {"b": 1}}, "a.b", False),
        ({"a": 0}, "a.b", False),
        ({"a.b": 0}, "a.b", False),
        ({"a.b.c": 0}, "a.b", False),
        ({"a.c": 0}, "a.b", True),
        ({"ab": 0}, "a.b", True),
    ],
)
def test_keeps_field(projection: dict[str, Any], path: str, kept: bool) -> None:
    assert keeps_field(raw(projection), path) is kept


@pytest.mark.parametrize(
    ("sort", "found"),
    [
        ({"t": -1}, True),
        ({"t": -1.0, "v": 1}, True),
        ({"t": 1}, False),
        ({"v": -1, "t": -1}, False),
        ({"t": {"$meta": "textScore"}}, False),
        ({"t": "-1"}, False),
        ({}, False),
    ],
)
def test_sorts_newest_first(sort: dict[str, Any], found: bool) -> None:
    assert sorts_newest_first(raw(sort), "t") is found


@pytest.mark.parametrize(
    ("last", "proven"),
    [
        (FLOOR, True),
        (FLOOR + MILLISECOND, True),
        (FLOOR - MILLISECOND, False),
        (Timestamp(1, 1), True),
        (Regex("x"), True),
        (Code("x"), True),
        (Code("x", {"y": 1}), True),
        (MaxKey(), True),
        (MinKey(), False),
        (None, False),
        ("2030", False),
        (5, False),
        (True, False),
        ({"x": FLOOR}, False),
        ([], False),
        ([FLOOR], False),
    ],
)
@pytest.mark.parametrize("path", ["t", "a.b"])
def test_the_last_documents_age_decides(last: Any, proven: bool, path: str) -> None:
    def document(value: Any) -> bytes:
        return raw({"x": 1, "t": value} if path == "t" else {"x": 1, "a": {"c": 0, "b": value}})

    batch = [document(MaxKey()), document(last)]
    assert proves(batch, 2, path, FLOOR_MS) is proven
    assert not proves(batch, 3, path, FLOOR_MS)
    assert not proves(batch[:1], 2, path, FLOOR_MS)
    assert not proves([], 0, path, FLOOR_MS)


@pytest.mark.parametrize(
    "document", [{}, {"a": FLOOR}, {"a": [{"b": FLOOR}]}, {"a": None}, {"a.b": FLOOR}]
)
def test_an_age_that_is_missing_proves_nothing(document: dict[str, Any]) -> None:
    assert not proves([raw(document)], 1, "a.b", FLOOR_MS)

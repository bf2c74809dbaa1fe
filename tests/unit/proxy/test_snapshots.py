"""Times of the archive that clients keep: marked on the way out, unmarked on the way in."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp
from hypothesis import given, strategies as st

from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.readconcern import for_snapshot
from thermocline_proxy.commands.snapshots import (
    for_archive,
    is_archives,
    is_whole,
    mark_reply,
    marked,
    reply_time,
    unmarked,
)

AT = Timestamp(1_796_065_823, 304)
WHOLE, PARTIAL = marked(AT, whole=True), marked(AT, whole=False)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**30 - 1), st.booleans())
def test_marks_come_off(seconds: int, count: int, whole: bool) -> None:
    at = Timestamp(seconds, count)
    assert not is_archives(at)
    assert not is_whole(at)
    assert unmarked(at) == at
    out = marked(at, whole=whole)
    assert is_archives(out)
    assert is_whole(out) is whole
    assert unmarked(out) == at
    assert marked(out, whole=not whole) == marked(at, whole=not whole)
    assert bson.decode(bson.encode({"at": out}))["at"] == out, "drivers carry it"


CURSOR = {"firstBatch": [{"atClusterTime": AT}], "id": Int64(0), "ns": "t.c"}
MORE = {"nextBatch": [{"a": 1}], "id": Int64(7), "ns": "t.c"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            {"cursor": {**CURSOR, "atClusterTime": AT}},
            {"cursor": {**CURSOR, "atClusterTime": WHOLE}},
        ),
        ({"cursor": {**MORE, "atClusterTime": AT}}, {"cursor": {**MORE, "atClusterTime": WHOLE}}),
        (
            {"values": [1, AT], "atClusterTime": PARTIAL},
            {"values": [1, AT], "atClusterTime": WHOLE},
        ),
        ({"cursor": CURSOR}, {"cursor": CURSOR}),
        ({"cursor": 5, "n": 1}, {"cursor": 5, "n": 1}),
        ({"values": [], "atClusterTime": 5}, {"values": [], "atClusterTime": 5}),
    ],
)
def test_replies(reply: dict[str, Any], expected: dict[str, Any]) -> None:
    raw = bson.encode({**reply, "ok": 1.0})
    made = mark_reply(raw, whole=True)
    assert bson.decode(made) == {**expected, "ok": 1.0}
    assert reply_time(made) == (AT if made != raw else None)


def command(fields: dict[str, Any]) -> Command:
    return Command(bson.encode({**fields, "$db": "t"}))


def concern(made: Command) -> Any:
    return bson.decode(made.body).get("readConcern")


@pytest.mark.parametrize("at", [WHOLE, PARTIAL])
def test_the_archive_gets_its_own_time(at: Timestamp) -> None:
    asked = {"find": "c", "readConcern": {"level": "snapshot", "atClusterTime": at}}
    expected = {"level": "snapshot", "atClusterTime": AT}
    assert concern(for_archive(command(asked))) == expected
    explained = bson.decode(for_archive(command({"explain": asked, "verbosity": "x"})).body)
    assert explained["explain"] == {"find": "c", "readConcern": expected}, "and no $db within"
    assert explained["verbosity"] == "x"


@pytest.mark.parametrize(
    "fields",
    [
        {"find": "c"},
        {"find": "c", "readConcern": {"level": "snapshot"}},
        {"find": "c", "readConcern": {"level": "snapshot", "atClusterTime": AT}},
        {"find": "c", "readConcern": {"atClusterTime": 5}},
        {"find": "c", "readConcern": 5},
        {"explain": {"find": "c"}},
        {"explain": 5},
        {"explain": {}},
        {"explain": {"explain": {"find": "c"}}},
    ],
)
def test_anything_else_stays_as_it_is(fields: dict[str, Any]) -> None:
    made = command(fields)
    assert for_archive(made).body == made.body


def test_a_new_snapshot_is_not_older_than_asked_for() -> None:
    asked = command({"find": "c", "readConcern": {"level": "snapshot", "afterClusterTime": WHOLE}})
    assert concern(for_snapshot(asked, AT)) == {"level": "snapshot", "afterClusterTime": AT}
    there = command({"find": "c", "readConcern": {"level": "snapshot", "atClusterTime": WHOLE}})
    assert for_snapshot(there, AT) is there
    assert for_snapshot(asked, None) is asked

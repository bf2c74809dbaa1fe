"""Which retried writes need no look-up: what may be skipped, and what never."""

import datetime as dt
import uuid
from dataclasses import replace

import bson
from bson.int64 import Int64

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_proxy.commands.command import Command
from thermocline_proxy.writes.look_back import Sessions, _switch, question
from thermocline_proxy.writes.statements import parse_batch

ACTIVE = Coverage("a.b", State.ACTIVE, State.ACTIVE, age_field="t", fast_uuid=uuid.uuid4())
PASSTHROUGH = Coverage("a.b", State.PASSTHROUGH, State.PASSTHROUGH, raised=7, look_back=Tier.FAST)


def test_a_number_below_the_first_looked_up_is_asked_for() -> None:
    sessions = Sessions()
    sessions.note("s", 5)
    assert [sessions.newer("s", n) for n in (4, 5, 6)] == [False, True, True]


def test_an_unknown_session_is_asked_for() -> None:
    sessions = Sessions()
    sessions.note("s", 5)
    assert not sessions.newer("another", 9)


def test_an_earlier_look_up_in_vain_lowers_the_bound() -> None:
    sessions = Sessions()
    sessions.note("s", 5)
    sessions.note("s", 3)
    sessions.note("s", 8)
    assert sessions.newer("s", 3)


def test_forgetting_only_costs_another_look_up() -> None:
    sessions = Sessions(limit=2)
    for session in ("first", "second", "third"):
        sessions.note(session, 1)
    assert not sessions.newer("first", 2)
    assert sessions.newer("third", 2)


def test_every_switch_starts_anew_and_a_raised_floor_does_not() -> None:
    raised = replace(ACTIVE, raised=3, floor=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    assert _switch(ACTIVE) == _switch(raised)
    others = [
        replace(ACTIVE, fast_uuid=uuid.uuid4()),
        PASSTHROUGH,
        replace(PASSTHROUGH, raised=9),
        replace(PASSTHROUGH, namespace="a.c"),
    ]
    assert len({_switch(c) for c in [ACTIVE, *others]}) == 5


def test_what_is_asked_about_an_insert_keeps_to_no_api_version_that_would_refuse_it() -> None:
    fields = {
        "insert": "c",
        "documents": [{"_id": 1}, {"_id": 2}],
        "txnNumber": Int64(7),
        "$db": "d",
    }
    version = {"apiVersion": "1", "apiStrict": True}
    batch = parse_batch(Command(bson.encode({**fields, **version})))
    assert batch is not None
    asked = question(batch, [1])
    found = bson.decode(asked.body)
    assert found["collectionUUID"].as_uuid() == uuid.UUID(int=0)
    assert (found["apiVersion"], found["txnNumber"], found["stmtIds"]) == ("1", 7, [1])
    assert "apiStrict" not in found

"""The feeder's tables: states, failures, origin, removal records, running operations."""

import uuid
from typing import Any

import pytest
from bson import encode
from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, SchemaRequest, State, Tier
from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record
from thermocline_feeder.plan.failures import Reading, Writing, after_reading, after_writing
from thermocline_feeder.plan.operations import cursors, transactions, writes
from thermocline_feeder.plan.origin import Origin, Position, compare
from thermocline_feeder.plan.records import FirstSeen, removable
from thermocline_feeder.plan.states import Step, Wanted, next_step, reverted, waits_for_resume
from thermocline_feeder.settings import Settings

NS = "shop.o"
ACTIVE, OFF = Wanted(True, "t"), Wanted(False, "t")
U = uuid.UUID(int=1)
TIME = Timestamp(1, 1)


def cover(state: State, **fields: Any) -> Coverage:
    given = {"age_field": "t", "target": state, **fields}
    return Coverage(NS, state, **given)


P, A = State.PASSTHROUGH, State.ACTIVE
ASKED = SchemaRequest(U, "drop")
GRANTED = SchemaRequest(U, "drop", 3, granted=True)
STEPS: dict[str, tuple[Coverage | None, bool, Wanted | None, bool, Step]] = {
    "unknown": (None, False, None, False, Step.NONE),
    "new: list first": (None, False, ACTIVE, False, Step.LIST),
    "new: then the document": (None, True, ACTIVE, False, Step.CREATE),
    "new, but off": (None, False, OFF, False, Step.NONE),
    "left on the list": (None, True, None, False, Step.UNLIST),
    "a document without its entry": (cover(P), False, ACTIVE, False, Step.LIST),
    "activate": (cover(P), True, ACTIVE, False, Step.ACTIVATE),
    "activate again at once": (cover(P, look_back=Tier.FAST, fast_uuid=U), True, ACTIVE, False, Step.ACTIVATE),
    "policy before activation": (cover(P, age_field="x"), True, ACTIVE, False, Step.SET_POLICY),
    "keep before activation": (cover(P), True, Wanted(True, None, True), False, Step.SET_POLICY),
    "unfinished": (cover(State.PAUSING), True, ACTIVE, False, Step.REVERT),
    "unfinished, not wanted": (cover(State.PAUSING), True, None, True, Step.REVERT),
    "active": (cover(A), True, ACTIVE, True, Step.NONE),
    "active, looking back": (cover(A, look_back=Tier.ARCHIVE), True, ACTIVE, False, Step.NONE),
    "active, looked back": (cover(A, look_back=Tier.ARCHIVE), True, ACTIVE, True, Step.END_LOOK_BACK),
    "active, other policy": (cover(A, age_field="x"), True, ACTIVE, False, Step.CHANGE_POLICY),
    "active, switched off": (cover(A), True, OFF, False, Step.WITHDRAW),
    "active, policy removed": (cover(A, age_field="x"), True, None, False, Step.WITHDRAW),
    "left: clean": (cover(P, fast_uuid=U, look_back=Tier.FAST), True, OFF, False, Step.CLEAN),
    "left: look back": (cover(P, look_back=Tier.FAST), True, None, False, Step.NONE),
    "left: looked back": (cover(P, look_back=Tier.FAST), True, None, True, Step.END_LOOK_BACK),
    "left: forget": (cover(P), True, None, True, Step.FORGET),
    "asked for while active": (cover(A, requests=(ASKED,)), True, ACTIVE, False, Step.WITHDRAW),
    "asked for, other policy": (cover(A, age_field="x", requests=(ASKED,)), True, ACTIVE, False, Step.WITHDRAW),
    "asked for in a switch": (cover(State.PAUSING, requests=(ASKED,)), True, ACTIVE, False, Step.REVERT),
    "asked for, F is full": (cover(P, fast_uuid=U, requests=(ASKED,)), True, ACTIVE, False, Step.CLEAN),
    "asked for, readers of F": (cover(P, archive_time=TIME, requests=(GRANTED,)), True, ACTIVE, False, Step.CLEAN),
    "asked for, F is empty": (cover(P, requests=(ASKED,)), True, ACTIVE, False, Step.GRANT),
    "another asks": (cover(P, requests=(GRANTED, ASKED)), True, ACTIVE, False, Step.GRANT),
    "at work": (cover(P, requests=(GRANTED,)), True, ACTIVE, False, Step.NONE),
    "at work, not wanted": (cover(P, look_back=Tier.FAST, requests=(GRANTED,)), True, None, True, Step.NONE),
}  # fmt: skip


@pytest.mark.parametrize(
    ("coverage", "listed", "wanted", "over", "step"), STEPS.values(), ids=STEPS.keys()
)
def test_next_step(
    coverage: Coverage | None, listed: bool, wanted: Wanted | None, over: bool, step: Step
) -> None:
    assert next_step(coverage, listed=listed, wanted=wanted, look_back_over=over) is step


@pytest.mark.parametrize("step", Step)
def test_a_pause_holds_back_what_nobody_waits_for(step: Step) -> None:
    goes_on = step in (Step.NONE, Step.REVERT, Step.END_LOOK_BACK)
    assert waits_for_resume(step, None) is not goes_on
    assert waits_for_resume(step, cover(A)) is not goes_on
    assert not waits_for_resume(step, cover(A, requests=(ASKED,)))


def test_requests_that_nobody_keeps_alive_expire_first() -> None:
    for state in (P, A):
        coverage = cover(state, fast_uuid=U, requests=(ASKED,))
        step = next_step(
            coverage, listed=True, wanted=ACTIVE, look_back_over=False, stale_requests=True
        )
        assert step is Step.EXPIRE


def test_an_unfinished_switch_goes_back_to_the_tier_that_had_the_writes() -> None:
    assert reverted(cover(State.PAUSING, target=A)) is P
    assert reverted(cover(State.PAUSING, target=P)) is A


E = Position(uuid.UUID(int=7), 5)
ORIGINS: dict[str, tuple[Position | None, int | None, bool, Position | None, int, bool, Origin]] = {
    "first start": (None, None, False, None, 1, False, Origin.FRESH),
    "interrupted start": (E, 9, True, E, 1, True, Origin.FRESH),
    "same": (E, 9, False, E, 1, True, Origin.SAME),
    "F counted on": (E, 9, False, Position(E.epoch, 6), 1, True, Origin.SAME),
    "older counter": (E, 9, False, Position(E.epoch, 4), 1, True, Origin.WENT_BACK),
    "other epoch": (E, 9, False, Position(uuid.UUID(int=8), 50), 1, True, Origin.WENT_BACK),
    "empty F": (E, 9, False, None, 1, False, Origin.WENT_BACK),
    "fork": (E, 9, False, E, 1, False, Origin.WENT_BACK),
    "oplog too short": (E, 9, False, E, 10, False, Origin.TOO_OLD),
    "oplog too short and older": (E, 9, False, Position(E.epoch, 4), 10, False, Origin.WENT_BACK),
}


@pytest.mark.parametrize(
    ("checkpoint", "time", "anew", "marker", "oldest", "entry", "origin"),
    ORIGINS.values(),
    ids=ORIGINS.keys(),
)
def test_origin(
    checkpoint: Position | None,
    time: int | None,
    anew: bool,
    marker: Position | None,
    oldest: int,
    entry: bool,
    origin: Origin,
) -> None:
    at = None if time is None else Timestamp(time, 1)
    assert compare(checkpoint, at, anew, marker, Timestamp(oldest, 1), entry) is origin


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (None, Reading.RETRY), (10107, Reading.RETRY), (286, Reading.RESYNC), (136, Reading.RESYNC),
        (239, Reading.READ_LATER), (246, Reading.READ_LATER), (361, Reading.CHANGED), (43, Reading.REOPEN),
        (280, Reading.REOPEN), (13, Reading.STOP), (99999, Reading.RETRY),
    ],
)  # fmt: skip
def test_after_reading(code: int | None, what: Reading) -> None:
    assert after_reading(code) is what


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (None, Writing.RETRY), (112, Writing.RETRY), (11602, Writing.RETRY), (11000, Writing.CONFLICT),
        (66, Writing.REINSERT), (388, Writing.PARTS), (361, Writing.CHANGED), (16755, Writing.QUARANTINE),
        (121, Writing.QUARANTINE), (99999, Writing.QUARANTINE), (13, Writing.STOP), (251, Writing.RETRY),
    ],
)  # fmt: skip
def test_after_writing(code: int | None, what: Writing) -> None:
    assert after_writing(code) is what


def test_a_full_disk_is_waited_for_and_no_documents_fault() -> None:
    assert after_writing(14031) is Writing.RETRY
    of_an_index = "WiredTigerIndexStandard::_insert: index: t_1; uri: x 28: No space left on device"
    assert after_writing(8, text=of_an_index) is Writing.RETRY
    assert after_writing(8, text="something else") is Writing.QUARANTINE
    assert after_writing(121, text="No space left on device") is Writing.QUARANTINE


def test_a_transient_transaction_error_is_never_a_refusal() -> None:
    assert after_writing(99999, ["TransientTransactionError"]) is Writing.RETRY


def record(number: int, kind: Kind, token: int = 1) -> Record:
    return Record(NS, DocId.of_document(encode({"_id": number})), kind, uuid.UUID(int=token))


def test_a_records_age_counts_from_the_first_look_at_that_token() -> None:
    seen = FirstSeen(300)
    old, new = record(1, Kind.DELETED), record(1, Kind.DELETED, 2)
    assert seen.due([old], 0) == []
    assert seen.due([old], 299) == []
    assert seen.due([old], 300) == [old]
    assert seen.due([new], 400) == []
    assert seen.due([new], 699) == []
    assert seen.due([new], 700) == [new]
    assert seen.due([], 800) == []
    assert seen.due([new], 900) == []


@pytest.mark.parametrize(
    ("kind", "in_fast", "in_archive", "goes"),
    [
        (Kind.DELETED, False, False, True), (Kind.DELETED, False, True, False), (Kind.DELETED, True, True, True),
        (Kind.EXPIRED, False, True, False), (Kind.EXPIRED, False, False, True),
        (Kind.EVICTED, False, True, True), (Kind.LEAVING, True, True, True),
    ],
)  # fmt: skip
def test_removable(kind: Kind, in_fast: bool, in_archive: bool, goes: bool) -> None:
    found = record(1, kind)
    has: dict[DocId, object] = {found.id: 1}
    assert removable([found], has if in_fast else {}, has if in_archive else {}) == (
        [found] if goes else []
    )


def operation(**fields: Any) -> dict[str, Any]:
    return {"type": "op", "opid": 1, "active": True, "ns": NS, "op": "command", **fields}


@pytest.mark.parametrize(
    ("found", "is_write"),
    [
        (operation(op="update"), True),
        (operation(op="insert"), True),
        (operation(command={"findAndModify": "o"}), True),
        (operation(command={"aggregate": "o", "pipeline": [{"$merge": {}}]}), True),
        (operation(ns="shop.$cmd", command={"delete": "o"}), True),
        (operation(ns="shop.$cmd", command={"delete": "other"}), False),
        (operation(command={"somethingNew": "o"}), True),
        (operation(command={"aggregate": "o", "pipeline": []}), False),
        (operation(op="query", command={"find": "o"}), False),
        (operation(op="update", ns="shop.other"), False),
        (operation(op="update", active=False), False),
        (operation(ns="shop.$cmd", command={"collMod": "o", "$db": "shop"}), True),
        (operation(ns="shop", command={"dropDatabase": 1, "$db": "shop"}), True),
        (operation(ns="other", command={"dropDatabase": 1, "$db": "other"}), False),
        (operation(ns="admin.$cmd", command={"renameCollection": NS, "to": "shop.b"}), True),
        (operation(ns="admin.$cmd", command={"renameCollection": "shop.b", "to": NS}), True),
        (operation(ns="admin.$cmd", command={"renameCollection": "shop.b", "to": "shop.c"}), False),
    ],
)
def test_writes(found: dict[str, Any], is_write: bool) -> None:
    assert bool(writes([found], NS)) is is_write


def test_transactions_are_found_by_session_and_number() -> None:
    idle = {
        "type": "idleSession",
        "lsid": {"id": uuid.UUID(int=3)},
        "transaction": {"parameters": {"txnNumber": 4, "autocommit": False}},
    }
    retryable = {**idle, "transaction": {"parameters": {"txnNumber": 4}}}
    assert transactions([idle, retryable, {}]) == {(uuid.UUID(int=3).bytes, 4)}


def test_cursors() -> None:
    idle = {"type": "idleCursor", "ns": NS, "cursor": {"cursorId": 9}}
    tailable = {"type": "idleCursor", "ns": NS, "cursor": {"cursorId": 8, "tailable": True}}
    running = operation(op="getmore", cursor={"cursorId": 7})
    assert cursors([idle, tailable, running, operation(op="update")], NS) == {9, 7}


def test_settings_are_overridden_for_tests_only_by_name() -> None:
    found = Settings.load(
        {"THERMOCLINE_TEST_FEEDER_RECORD_AGE": "2", "THERMOCLINE_TEST_FEEDER_BATCH_CHANGES": "7"}
    )
    assert (found.record_age, found.batch_changes) == (2.0, 7)
    assert Settings.load({}) == Settings()
    with pytest.raises(ValueError, match="could not convert"):
        Settings.load({"THERMOCLINE_TEST_FEEDER_RECORD_AGE": "soon"})

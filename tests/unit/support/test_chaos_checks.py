"""Each check of the chaos machine accepts what is right and finds what is wrong."""

import dataclasses
from typing import Any

import pytest
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from support.chaos import checks
from support.chaos.checks import Span
from support.chaos.errors import outcome_of
from support.chaos.evictions import (
    Change,
    Entry,
    Position,
    judge_ages,
    judge_evictions,
    judge_reports,
)
from support.chaos.histories import Attempt, Kind, Operation, Outcome, Violation
from support.chaos.linearizability import Judgement, judge
from support.chaos.record import SCHEMA, Record, Register
from support.chaos.report import last_line
from support.chaos.rules import Effect, Rule, drops, effect_on

FAULTS = (Span(10, 15), Span(40, 42))


def attempt(ended: float, outcome: Outcome = Outcome.RETRYABLE, began: float = 0) -> Attempt:
    return Attempt("c", "read", began or ended - 1, ended, outcome, "AutoReconnect")


def promises(violations: list[Violation]) -> list[str]:
    return [violation.promise for violation in violations]


@pytest.mark.parametrize(
    ("codes", "labels", "connection", "outcome"),
    [
        (frozenset(), frozenset(), True, Outcome.RETRYABLE),
        ({262}, frozenset(), False, Outcome.RETRYABLE),
        ({43}, frozenset(), False, Outcome.RETRYABLE),
        ({96}, frozenset(), False, Outcome.WRONG),
        ({96}, {"RetryableWriteError"}, False, Outcome.RETRYABLE),
        ({112}, {"TransientTransactionError"}, False, Outcome.RETRYABLE),
        ({112}, frozenset(), False, Outcome.WRONG),
        ({189, 50}, frozenset(), False, Outcome.WRONG),
        (frozenset(), frozenset(), False, Outcome.WRONG),
    ],
)
def test_kinds_of_errors(codes: Any, labels: Any, connection: bool, outcome: Outcome) -> None:
    assert outcome_of(codes, labels, connection) is outcome


FULL = "28: No space left on device"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BulkWriteError({"writeErrors": [{"code": 8, "errmsg": FULL}], "writeConcernErrors": []}), Outcome.RETRYABLE),
        (OperationFailure("OutOfDiskSpace", 14031), Outcome.RETRYABLE),
        (
            BulkWriteError(
                {"writeErrors": [{"code": 8, "errmsg": FULL}], "writeConcernErrors": [{"code": 96, "errmsg": "x"}]}
            ),
            Outcome.WRONG,
        ),
        (OperationFailure("another", 8), Outcome.WRONG),
    ],
)  # fmt: skip
def test_a_full_disk_is_met_where_commands_go_to_the_archive(
    error: PyMongoError, outcome: Outcome
) -> None:
    record = Record()
    assert record.note(SCHEMA, "rename", 0.0, error) is outcome
    assert record.note("client-1", "update", 0.0, error) is Outcome.WRONG


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([attempt(12), attempt(44.9), attempt(71)], []),
        ([attempt(100, Outcome.DONE)], []),
        ([attempt(73)], ["errors end 30 s after the fault"]),
        ([attempt(5)], ["errors end 30 s after the fault"]),
        ([attempt(12, Outcome.WRONG)], ["errors are retryable"]),
        ([attempt(80, Outcome.DONE, began=41)], ["nothing hangs for 30 s after the fault"]),
    ],
)
def test_errors(attempts: list[Attempt], expected: list[str]) -> None:
    assert promises(checks.judge_errors(attempts, FAULTS)) == expected


def test_a_busy_machine_gets_more_time() -> None:
    assert checks.patience(3.5, 2) == 1
    assert checks.patience(12, 2) == 3
    assert not checks.judge_errors([attempt(100)], FAULTS, 2)
    assert checks.judge_errors([attempt(103)], FAULTS, 2)


def test_errors_without_any_fault_are_wrong() -> None:
    assert checks.judge_errors([attempt(3)], [])


def test_registers_are_judged_key_by_key() -> None:
    def read(key: Any, value: Any) -> Operation:
        return Operation("c", Kind.READ, key, None, value, 1, 2)

    found, keys, undecided = checks.judge_registers([read(1, 5), read(2, 6)], {1: 5})
    assert (keys, undecided) == (2, [])
    assert [v.subject for v in found] == ["key 2"]
    assert any("read" in line for line in found[0].trace)


@pytest.mark.parametrize(
    ("document", "right"),
    [
        ({"n": 7, "a": 4, "b": 3}, True),
        ({"n": 8, "a": 4, "b": 4}, True),
        ({"n": 9, "a": 4, "b": 5}, False),
        ({"n": 6, "a": 3, "b": 3}, False),
        ({"n": 8, "a": 4, "b": 3}, False),
    ],
)
def test_counters(document: dict[str, int], right: bool) -> None:
    acknowledged, doubtful = {"a": {1: 4}, "b": {1: 3}}, {"a": {}, "b": {1: 1}}
    found = checks.judge_counters({1: document}, acknowledged, doubtful, [(1, 1), (1, 2)])
    assert (not found) == right


def test_a_total_returned_twice_was_lost_once() -> None:
    document = {1: {"n": 2, "a": 2}}
    assert checks.judge_counters(document, {"a": {1: 2}}, {"a": {}}, [(1, 1), (1, 1)])


@pytest.mark.parametrize(
    ("accounts", "transfers", "acknowledged", "right"),
    [
        ({0: 90, 1: 110}, [7], {7}, True),
        ({0: 90, 1: 110}, [7], set(), True),
        ({0: 100, 1: 100}, [], {7}, False),
        ({0: 90, 1: 100}, [7], {7}, False),
        ({0: 100, 1: 100}, [7], {7}, False),
    ],
)
def test_money(accounts: Any, transfers: list[int], acknowledged: set[int], right: bool) -> None:
    known = {number: {"from": 0, "to": 1, "amount": 10} for number in transfers}
    assert (not checks.judge_money(accounts, known, acknowledged, 100)) == right


def test_unique_keys() -> None:
    one, two = {"_id": 1, "k": 5}, {"_id": 2, "k": 5}
    assert not checks.judge_unique("locks", "k", [one, {"_id": 2, "k": 6}])
    assert checks.judge_unique("locks", "k", [one, two])


@pytest.mark.parametrize(
    ("fast", "archive", "right"),
    [
        ({}, {b"1": b"x"}, True),
        ({b"1": b"x"}, {b"1": b"x"}, True),
        ({b"1": b"x"}, {}, False),
        ({b"1": b"x"}, {b"1": b"y"}, False),
    ],
)
def test_tiers(fast: dict[bytes, bytes], archive: dict[bytes, bytes], right: bool) -> None:
    assert (not checks.judge_tiers("orders", fast, archive)) == right


def test_contents() -> None:
    held = {b"1": b"x"}
    assert not checks.judge_contents("orders", "proxy", held, held)
    assert checks.judge_contents("orders", "proxy", {}, held)
    assert checks.judge_contents("orders", "proxy", {b"1": b"x", b"2": b"y"}, held)
    assert checks.judge_contents("orders", "proxy", {b"1": b"y"}, held)


KEY = ("shop.orders", b"1")


def entry(second: int, change: Change) -> Entry:
    return Entry((second, 1), float(second), KEY, change)


@pytest.mark.parametrize(
    ("positions", "right"),
    [
        ([Position(4.0, (3, 1))], True),
        ([Position(4.0, (3, 0))], False),
        ([Position(9.5, (3, 1))], False),
        ([], False),
    ],
)
def test_evictions_are_confirmed(positions: list[Position], right: bool) -> None:
    entries = [entry(3, Change.WRITTEN), entry(9, Change.EVICTED)]
    assert (not judge_evictions(entries, positions)) == right


def test_an_eviction_of_what_was_only_copied_needs_no_confirmation() -> None:
    assert not judge_evictions([entry(3, Change.COPIED), entry(9, Change.EVICTED)], [])


def test_what_is_evicted_is_old() -> None:
    evicted = [entry(3, Change.WRITTEN), entry(9, Change.EVICTED)]
    assert not judge_ages(evicted, {KEY: 2.0}, 7)
    assert judge_ages(evicted, {KEY: 2.5}, 7)
    assert not judge_ages([*evicted, entry(12, Change.WRITTEN)], {KEY: 2.5}, 7)
    assert not judge_ages(evicted, {}, 7)


def test_evictors_reports() -> None:
    assert not judge_reports({"evictor orders": {"confirmed": 3, "evicted": 3}})
    assert judge_reports({"evictor orders": {"confirmed": 2, "evicted": 3}})


@pytest.mark.parametrize(
    ("effect", "requests", "replies"),
    [
        (Effect.CUT, True, True),
        (Effect.NO_REQUESTS, True, False),
        (Effect.NO_REPLIES, False, True),
        (Effect.SLOW, False, False),
        (None, False, False),
    ],
)
def test_what_a_link_loses(effect: Effect | None, requests: bool, replies: bool) -> None:
    assert (drops(effect, True), drops(effect, False)) == (requests, replies)


def test_the_worst_rule_counts() -> None:
    slow, cut = Rule("a", "b", Effect.SLOW), Rule(None, "b", Effect.CUT)
    assert effect_on([slow, cut], "a".__eq__, "b") is Effect.CUT
    assert effect_on([slow], "a".__eq__, "b") is Effect.SLOW
    assert effect_on([slow], "c".__eq__, "b") is None
    assert effect_on([slow, cut], "b".__eq__, "a") is None


def test_the_last_line() -> None:
    assert last_line(10, 2, 0) == "chaos: operations=10 faults=2 violations=0"


class FakeTrail:
    def __init__(self, repeated: bool) -> None:
        self.repeated = repeated

    def begin(self) -> None:
        pass

    def __str__(self) -> str:
        return "[]"


@pytest.mark.parametrize(
    ("kind", "result", "repeated", "haunted"),
    [
        (Kind.INSERT, False, True, True),
        (Kind.INSERT, False, False, False),
        (Kind.INSERT, True, True, False),
        (Kind.DELETE, False, True, True),
        (Kind.SET, False, True, True),
        (Kind.SWAP, None, True, True),
        (Kind.SWAP, 7, True, False),
        (Kind.PUT, False, True, False),
        (Kind.READ, None, True, False),
    ],
)
def test_an_attempt_that_was_repeated_without_effect_may_come_late(
    kind: Kind, result: Any, repeated: bool, haunted: bool
) -> None:
    """MongoDB remembers statements that had an effect, and executes a late attempt of one that had none."""
    record = Record()
    desk: Any = type("Desk", (), {"trail": FakeTrail(repeated)})
    register = Register(record, desk, "c", kind, "k", 5)
    register.end(result)
    assert register.haunted is haunted
    assert [o.returned is None for o in record.operations] == [False] + [True] * haunted


def test_a_late_attempt_is_no_violation_and_another_value_is() -> None:
    told = Operation("a", Kind.INSERT, "k", 527, False, 143, 155)
    late = dataclasses.replace(told, returned=None, result=None)
    removed = Operation("b", Kind.REMOVE, "k", 496, True, 155, 157)
    read = Operation("c", Kind.READ, "k", None, 527, 202, 203)
    assert judge([told, removed, read], initial=496) is Judgement.NOT
    assert judge([told, late, removed, read], initial=496) is Judgement.LINEARIZABLE
    other = dataclasses.replace(read, result=528)
    assert judge([told, late, removed, other], initial=496) is Judgement.NOT

"""The fail point ``failCommand`` of a proxy: what is taken, which commands meet it, and how often."""

from typing import Any

import bson
import pytest

from thermocline_proxy.commands.catalog import CATALOG
from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.fail_point import (
    FailPoint,
    Failure,
    Switch,
    labels,
    parse,
    switched_off,
    with_concern_error,
)

FIND = frozenset({"find"})


def command(name: str, **fields: Any) -> Command:
    return Command(bson.encode({name: "c", **fields, "$db": "d"}))


def configure(mode: Any, **data: Any) -> dict[str, Any]:
    return {"configureFailPoint": "failCommand", "mode": mode, "data": data, "$db": "admin"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (configure("off"), Switch()),
        ({"configureFailPoint": "failCommand", "mode": "off", "$db": "admin"}, Switch()),
        (
            configure("alwaysOn", failCommands=["find"], closeConnection=True),
            Switch(Failure(FIND, close=True)),
        ),
        (
            configure({"times": 2}, failCommands=["find"], errorCode=91, appName="a"),
            Switch(Failure(FIND, "a", code=91), times=2),
        ),
        (configure({"times": 0}, failCommands=["find"], errorCode=91), Switch()),
        (
            configure({"skip": 3}, failCommands=["findAndModify"], errorCode=6, namespace="d.c"),
            Switch(Failure(frozenset({"findandmodify"}), None, "d.c", code=6), skip=3),
        ),
        (
            configure("alwaysOn", failCommands=["find"], blockConnection=True, blockTimeMS=250),
            Switch(Failure(FIND, block=0.25)),
        ),
        (
            configure(
                "alwaysOn", failCommands=["find"], errorLabels=["L"], writeConcernError={"code": 91}
            ),
            Switch(Failure(FIND, labels=("L",), concern={"code": 91})),
        ),
    ],
)
def test_what_a_proxy_takes(document: dict[str, Any], expected: Switch) -> None:
    assert parse(document) == expected


@pytest.mark.parametrize(
    "document",
    [
        {"configureFailPoint": "maxTimeAlwaysTimeOut", "mode": "alwaysOn"},
        configure({"activationProbability": 0.5}, failCommands=["find"], errorCode=91),
        configure({"times": -1}, failCommands=["find"], errorCode=91),
        configure({"times": True}, failCommands=["find"], errorCode=91),
        configure("sometimes", failCommands=["find"], errorCode=91),
        configure("alwaysOn", failCommands="find", errorCode=91),
        configure("alwaysOn", failCommands=["find"], errorCode="x"),
        configure("alwaysOn", failCommands=["find"], blockConnection=True),
        configure("alwaysOn", failCommands=["find"], errorCode=91, failInternalCommands=True),
        {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": 1},
        {"configureFailPoint": "failCommand", "mode": "alwaysOn"},
    ],
)
def test_the_rest_is_for_the_archive(document: dict[str, Any]) -> None:
    assert parse(document) is None


def point(failure: Failure, times: int | None = None, skip: int = 0) -> FailPoint:
    made = FailPoint()
    made.switch(Switch(failure, times, skip))
    return made


def test_it_is_met_so_many_times() -> None:
    failure = Failure(FIND, code=91)
    made = point(failure, times=2)
    met = [made.before(command("find"), "") for _ in range(4)]
    assert met == [failure, failure, None, None]
    assert (made.on, made.met) == (False, 2)


def test_it_lets_some_pass() -> None:
    failure = Failure(FIND, code=91)
    made = point(failure, skip=2)
    assert [made.before(command("find"), "") for _ in range(4)] == [None, None, failure, failure]


def test_switching_off_ends_it() -> None:
    made = point(Failure(FIND, code=91))
    made.switch(Switch())
    assert not made.on
    assert made.before(command("find"), "") is None


@pytest.mark.parametrize(
    ("failure", "name", "application", "met"),
    [
        (Failure(FIND, code=91), "find", "", True),
        (Failure(FIND, code=91), "insert", "", False),
        (Failure(frozenset({"findandmodify"}), code=91), "findAndModify", "", True),
        (Failure(FIND, "a", code=91), "find", "a", True),
        (Failure(FIND, "a", code=91), "find", "b", False),
        (Failure(FIND, None, "d.c", code=91), "find", "", True),
        (Failure(FIND, None, "d.other", code=91), "find", "", False),
        (Failure(FIND), "find", "", False),
        (Failure(FIND, concern={"code": 64}), "find", "", False),
    ],
)
def test_which_commands_meet_it(failure: Failure, name: str, application: str, met: bool) -> None:
    made = point(failure, times=1)
    assert (made.before(command(name), application) is failure) is met
    assert made.on is not met


def test_write_concern_errors_are_for_commands_that_wrote() -> None:
    failure = Failure(frozenset({"insert", "find"}), concern={"code": 64, "errmsg": "late"})
    made = point(failure, times=1)
    assert made.after(command("find"), CATALOG["find"], "") is None
    assert made.after(command("insert"), CATALOG["insert"], "") is failure
    assert made.after(command("insert"), CATALOG["insert"], "") is None


@pytest.mark.parametrize(
    ("name", "fields", "code", "expected"),
    [
        ("insert", {"txnNumber": 1}, 91, ("RetryableWriteError",)),
        ("insert", {"txnNumber": 1}, 11000, ()),
        ("insert", {}, 91, ()),
        ("find", {}, 91, ()),
        ("find", {"txnNumber": 1, "autocommit": False}, 112, ("TransientTransactionError",)),
        ("find", {"txnNumber": 1, "autocommit": False}, 8, ()),
        ("commitTransaction", {"txnNumber": 1, "autocommit": False}, 91, ("RetryableWriteError",)),
        (
            "commitTransaction",
            {"txnNumber": 1, "autocommit": False},
            251,
            ("TransientTransactionError",),
        ),
        ("aggregate", {}, 91, ("ResumableChangeStreamError",)),
    ],
)
def test_labels(name: str, fields: dict[str, Any], code: int, expected: tuple[str, ...]) -> None:
    asked = command(name, **fields)
    assert labels(Failure(frozenset(), code=code), asked, code) == expected
    assert labels(Failure(frozenset(), code=code, labels=()), asked, code) == ()
    assert labels(Failure(frozenset(), code=code, labels=("X",)), asked, code) == ("X",)


def test_a_reply_with_a_write_concern_error() -> None:
    failure = Failure(frozenset(), concern={"code": 91, "errmsg": "shut down"})
    raw = bson.encode({"n": 1, "ok": 1.0})
    assert bson.decode(with_concern_error(raw, failure, command("insert", txnNumber=1))) == {
        "n": 1,
        "ok": 1.0,
        "writeConcernError": {"code": 91, "errmsg": "shut down"},
        "errorLabels": ["RetryableWriteError"],
    }
    assert "errorLabels" not in bson.decode(with_concern_error(raw, failure, command("insert")))


def test_the_archive_is_asked_to_switch_its_own_off() -> None:
    asked = Command(bson.encode(configure({"times": 1}, failCommands=["find"], errorCode=91)))
    assert bson.decode(switched_off(asked).body) == {
        "configureFailPoint": "failCommand",
        "mode": "off",
        "$db": "admin",
    }

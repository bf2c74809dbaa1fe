"""What agents are told of the proxy itself."""

import datetime as dt
from typing import Any

import bson
import pytest
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_common.errors import CommandError
from thermocline_proxy.commands.command import Command
from thermocline_proxy.cursors import Home
from thermocline_proxy.monitoring import Figures, served_commands, server_status
from thermocline_proxy.operations import asks_for_operations, named_operation, renamed

FIGURES = Figures(
    host="h:27017",
    pid=7,
    uptime=61.5,
    now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    connections=3,
    active=1,
    accepted=9,
    most_connections=2,
    resident=64 << 20,
    virtual=256 << 20,
    page_faults=0,
    bytes_in=10,
    bytes_out=20,
    commands={"find": 5, "insert": 2, "aggregate": 3, "hello": 4, "getMore": 1},
    errors=6,
    own={"leaseAlive": True},
)


def test_server_status_is_the_proxys_own() -> None:
    archive = {"host": "archive", "process": "mongod", "version": "6.0.5", "repl": {}, "pid": 1}
    status = bson.decode(server_status(bson.encode(archive), FIGURES))
    assert status["version"] == "6.0.5"
    assert (status["host"], status["process"], status["pid"]) == ("h:27017", "mongos", 7)
    assert "repl" not in status
    assert status["connections"] == {
        "current": 3, "available": 0, "totalCreated": 9, "active": 1,
    }  # fmt: skip
    assert status["opcounters"] == {
        "insert": 2, "query": 5, "update": 0, "delete": 0, "getmore": 1, "command": 7,
    }  # fmt: skip
    assert status["network"] == {"bytesIn": 10, "bytesOut": 20, "numRequests": 15}
    assert status["mem"]["resident"] == 64
    assert (status["uptime"], status["uptimeMillis"]) == (61.0, 61_500)
    assert status["thermocline"] == {"leaseAlive": True}


def test_only_commands_that_are_served_are_listed() -> None:
    listed = {name: {"help": ""} for name in ("find", "shutdown", "applyOps", "_internalThing")}
    reply = bson.decode(served_commands(bson.encode({"commands": listed, "ok": 1.0})))
    assert reply == {"commands": {"find": {"help": ""}}, "ok": 1.0}
    refused = bson.encode({"ok": 0.0, "code": 13})
    assert served_commands(refused) == refused


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("fast/h:1:5", (Home(Tier.FAST, "h:1"), 5)),
        ("archive/[::1]:27017:-9", (Home(Tier.ARCHIVE, "[::1]:27017"), -9)),
        (5, None),
        (5.0, None),
        (None, None),
    ],
)
def test_an_id_names_where_an_operation_runs(op: Any, expected: Any) -> None:
    assert named_operation(op) == expected


@pytest.mark.parametrize("op", ["", "5", "shard:5", "fast/h:5", "slow/h:1:5", "fast/h:1:x"])
def test_other_texts_are_no_ids(op: str) -> None:
    with pytest.raises(CommandError, match="tier/host:port:opid"):
        named_operation(op)


@pytest.mark.parametrize("opid", [7, Int64(-7), 2**40])
def test_an_operation_is_shown_with_its_id_and_tier(opid: int) -> None:
    home = Home(Tier.FAST, "h:1")
    shown = bson.decode(renamed(bson.encode({"opid": opid, "ns": "d.c"}), home))
    assert shown == {"shard": "fast", "opid": f"fast/h:1:{opid}", "ns": "d.c"}
    assert named_operation(shown["opid"]) == (home, opid)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {}}]}, True),
        ({"aggregate": 1, "pipeline": [{"$match": {}}, {"$currentOp": {}}]}, False),
        ({"aggregate": 1, "pipeline": []}, False),
        ({"aggregate": 1}, False),
        ({"find": "c"}, False),
    ],
)
def test_which_aggregations_are_about_operations(command: dict[str, Any], expected: bool) -> None:
    assert asks_for_operations(Command(bson.encode(command))) is expected

"""The catalog's classes, and which namespaces a command touches."""

from typing import Any

import bson
import pytest

from thermocline_proxy.commands.catalog import CATALOG, Kind, lookup
from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.touched import touched
from thermocline_proxy.commands.views import direct_sources, resolve


@pytest.mark.parametrize(
    "name",
    ["bogus", "PING", "Find", "", "$db", "_shardsvrDropCollection", "_configsvrAddShard", "eval"],
)
def test_unknown_commands_are_unknown(name: str) -> None:
    assert lookup(name) is None


@pytest.mark.parametrize(
    "name", ["applyOps", "shutdown", "replSetReconfig", "clusterFind", "setShardVersion"]
)
def test_what_could_go_round_the_tiering_is_refused(name: str) -> None:
    entry = lookup(name)
    assert entry is not None
    assert entry.kind is Kind.REFUSED


def test_only_what_mongod_allows_is_open_before_login() -> None:
    assert {name for name, entry in CATALOG.items() if entry.before_login} == {
        "hello", "isMaster", "ismaster", "ping", "whatsmyuri", "saslStart", "saslContinue",
        "authenticate", "buildInfo", "buildinfo", "connectionStatus", "getnonce", "listCommands",
        "getLastError", "waitForFailPoint",
    }  # fmt: skip


def test_the_short_path_takes_single_collection_commands_only() -> None:
    assert {name for name, entry in CATALOG.items() if entry.relayed} == {
        "find", "count", "distinct", "insert", "update", "delete", "findAndModify", "findandmodify",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("document", "target", "joined", "written"),
    [
        ({"find": "c"}, "d.c", set(), set()),
        ({"find": 5}, None, set(), set()),
        ({"aggregate": "c", "pipeline": []}, "d.c", set(), set()),
        ({"aggregate": 1, "pipeline": [{"$changeStream": {}}]}, None, set(), set()),
        ({"aggregate": "c", "pipeline": [{"$lookup": {"from": "x", "as": "y"}}]}, "d.c", {"d.x"}, set()),
        ({"aggregate": "c", "pipeline": [{"$unionWith": "x"}]}, "d.c", {"d.x"}, set()),
        (
            {"aggregate": "c", "pipeline": [{"$unionWith": {"coll": "x", "pipeline": [{"$unionWith": "y"}]}}]},
            "d.c", {"d.x", "d.y"}, set(),
        ),
        (
            {"aggregate": "c", "pipeline": [{"$facet": {"a": [{"$graphLookup": {"from": "g"}}]}}]},
            "d.c", {"d.g"}, set(),
        ),
        ({"aggregate": "c", "pipeline": [{"$out": "o"}]}, "d.c", set(), {"d.o"}),
        ({"aggregate": "c", "pipeline": [{"$out": {"db": "e", "coll": "o"}}]}, "d.c", set(), {"e.o"}),
        ({"aggregate": "c", "pipeline": [{"$merge": "m"}]}, "d.c", set(), {"d.m"}),
        ({"aggregate": "c", "pipeline": [{"$merge": {"into": "m"}}]}, "d.c", set(), {"d.m"}),
        (
            {"aggregate": "c", "pipeline": [{"$merge": {"into": {"db": "e", "coll": "m"}}}]},
            "d.c", set(), {"e.m"},
        ),
        ({"explain": {"find": "c"}}, "d.c", set(), set()),
        ({"explain": {"aggregate": "c", "pipeline": [{"$unionWith": "x"}]}}, "d.c", {"d.x"}, set()),
        ({"renameCollection": "d.a", "to": "e.b"}, "d.a", set(), {"e.b"}),
        ({"mapReduce": "c", "out": {"merge": "o", "db": "e"}}, "d.c", set(), {"e.o"}),
        ({"mapReduce": "c", "out": {"inline": 1}}, "d.c", set(), set()),
        ({"getMore": 5, "collection": "c"}, "d.c", set(), set()),
        ({"dropDatabase": 1}, None, set(), set()),
    ],
)  # fmt: skip
def test_touched_namespaces(
    document: dict[str, Any], target: str | None, joined: set[str], written: set[str]
) -> None:
    command = Command(bson.encode({**document, "$db": "d"}))
    entry = lookup(command.name)
    assert entry is not None
    found = touched(command, entry)
    assert (found.target, set(found.joined), set(found.written)) == (target, joined, written)


def test_views_are_resolved_through_views_and_joins() -> None:
    stage = bson.encode({"$lookup": {"from": "other", "pipeline": [{"$unionWith": "more"}]}})
    direct = {
        "d.v": direct_sources("d", "w", [stage]),
        "d.w": direct_sources("d", "c", []),
        "d.loop": frozenset({"d.pool"}),
        "d.pool": frozenset({"d.loop", "d.x"}),
    }
    assert resolve(direct) == {
        "d.v": {"d.c", "d.other", "d.more"},
        "d.w": {"d.c"},
        "d.loop": {"d.x"},
        "d.pool": {"d.x"},
    }

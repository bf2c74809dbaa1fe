"""Operations of all members are shown together, each under an id that names it."""

import types
from collections.abc import Mapping
from typing import Any, cast

import bson
from bson.binary import Binary
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_proxy.commands.command import Command
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.operations import Operations
from thermocline_proxy.ports import Reply, Request

LSID = {"id": Binary(bytes(range(16)), 4)}
MEMBERS = {Tier.ARCHIVE: ["a:1", "a:2"], Tier.FAST: ["f:1"]}


class World:
    """Each member shows one operation, the fast tier's in two batches of one."""

    def __init__(self) -> None:
        self.sent: list[tuple[Tier, str | None, Mapping[str, Any]]] = []
        self.refused: set[str] = set()
        members = {
            tier: types.SimpleNamespace(addresses=addresses) for tier, addresses in MEMBERS.items()
        }
        self.operations = Operations(
            cast(
                "Proxy",
                types.SimpleNamespace(
                    exchange=self,
                    leases=types.SimpleNamespace(anything_tiered=True),
                    upstreams=types.SimpleNamespace(members=members),
                ),
            )
        )

    async def run(
        self, tier: Tier, identity: Any, command: Command, *, member: str | None, deadline: Any
    ) -> Reply:
        document = bson.decode(command.body)
        self.sent.append((tier, member, document))
        answer: dict[str, Any] = {"ok": 1.0}
        one = {
            "opid": len(self.sent),
            "command": {"$x": "$y", "a.b": 1},
            "padding": "x" * 9_000,
        }
        if member in self.refused:
            answer = {"ok": 0.0, "code": 13}
        elif "currentOp" in document:
            answer["inprog"] = [one]
        elif "getMore" in document:
            answer["cursor"] = {"nextBatch": [one], "id": Int64(0), "ns": "admin.$cmd.aggregate"}
        elif "aggregate" in document:
            rest = Int64(77 if tier is Tier.FAST else 0)
            answer["cursor"] = {"firstBatch": [one], "id": rest, "ns": "admin.$cmd.aggregate"}
        return Reply(bson.encode(answer), tier, member or "a:1")


def request(**command: Any) -> Request:
    return Request(Command(bson.encode({**command, "$db": "admin"})), None, 1)


async def test_the_command_shows_all_members() -> None:
    world = World()
    shown = bson.decode(await world.operations.current(request(currentOp=1)))
    ids = ["archive/a:1:1", "archive/a:2:2", "fast/f:1:3"]
    assert [operation["opid"] for operation in shown["inprog"]] == ids
    assert shown["ok"] == 1.0
    world.refused = {"a:1"}
    assert bson.decode(await world.operations.current(request(currentOp=1)))["code"] == 13


async def test_an_aggregation_goes_on_with_what_all_members_show() -> None:
    world = World()
    match = {"$match": {"ns": "d.c"}}
    stage = {"$currentOp": {"allUsers": True, "localOps": False}}
    asked = request(aggregate=1, pipeline=[stage, match], cursor={"batchSize": 5}, lsid=LSID)
    await world.operations.aggregate(asked)
    *parts, more, (tier, member, last) = world.sent
    assert [(tier, member) for tier, member, _ in parts] == [
        (Tier.ARCHIVE, "a:1"), (Tier.ARCHIVE, "a:2"), (Tier.FAST, "f:1"),
    ]  # fmt: skip
    for _, _, part in parts:
        assert part["pipeline"] == [{"$currentOp": {"allUsers": True}}]
        assert part["lsid"]["id"] == LSID["id"]
    assert (more[1], more[2]["getMore"], more[2]["lsid"]["id"]) == ("f:1", 77, LSID["id"])
    assert (tier, member) == (Tier.ARCHIVE, None)
    documents, rest = last["pipeline"]
    shown = documents["$documents"]["$literal"]
    ids = ["archive/a:1:1", "archive/a:2:2", "fast/f:1:3", "fast/f:1:4"]
    assert [operation["opid"] for operation in shown] == ids
    assert shown[0]["command"] == {"$x": "$y", "a.b": 1}
    assert rest == match
    assert last["cursor"] == {"batchSize": 5}


async def test_one_is_killed_where_it_runs() -> None:
    world = World()
    await world.operations.kill(request(killOp=1, op="fast/f:1:9"))
    await world.operations.kill(request(killOp=1, op=9))
    assert [(tier, member, c["op"]) for tier, member, c in world.sent] == [
        (Tier.FAST, "f:1", 9), (Tier.ARCHIVE, None, 9),
    ]  # fmt: skip

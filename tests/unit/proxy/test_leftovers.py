"""What vanished applications left is ended, and nothing that somebody still uses."""

import asyncio
import types
from dataclasses import dataclass
from typing import Any, cast

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_common.errors import CommandError
from thermocline_proxy import leftovers
from thermocline_proxy.commands.command import Command
from thermocline_proxy.cursors import Cursors
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.leftovers import Leftovers
from thermocline_proxy.open_streams import OpenStreams
from thermocline_proxy.owners import OpenCursor, Owner, Owners
from thermocline_proxy.ports import Reply

SESSION = bson.encode({"id": Binary(bytes(range(16)), 4)})[8:-1]


@dataclass
class Pin:
    number: int
    tier: Tier = Tier.FAST
    over: bool = False
    api: tuple[bytes, ...] = ()


class World:
    """``operations``: what ``$currentOp`` shows at each member."""

    def __init__(self) -> None:
        self.operations: list[dict[str, Any]] = []
        self.sent: list[tuple[Tier, str | None, dict[str, Any]]] = []
        self.cursors = Cursors()
        self.owners = Owners(self.cursors)
        self.ended: list[str] = []
        pools = {(Tier.FAST, "m:1", None): None, (Tier.ARCHIVE, "m:9", "other"): None}
        self.leftovers = Leftovers(
            cast(
                "Proxy",
                types.SimpleNamespace(
                    owners=self.owners,
                    cursors=self.cursors,
                    exchange=self,
                    gateway=types.SimpleNamespace(streams=OpenStreams()),
                    observer=types.SimpleNamespace(left=self.ended.append),
                    upstreams=types.SimpleNamespace(pools=types.SimpleNamespace(pools=pools)),
                ),
            )
        )

    async def run(
        self, tier: Tier, identity: Any, command: Command, *, member: str | None, deadline: float
    ) -> Reply:
        document = bson.decode(command.body)
        self.sent.append((tier, member, document))
        if "aggregate" not in document:
            return Reply(bson.encode({"ok": 1.0}), tier, "m:1")
        wanted = document["pipeline"][1]["$match"]
        found = [o for o in self.operations if o["type"] == wanted.get("type", "idleSession")]
        return Reply(bson.encode({"cursor": {"firstBatch": found}, "ok": 1.0}), tier, "m:1")

    def commands(self) -> list[str]:
        return [next(iter(document)) for _, _, document in self.sent]

    def owner(self, *, alone: bool = False) -> Owner:
        owner = Owner(("h", b""), alone=alone)
        for cursor_id in (7, 8):
            self.cursors.remember(cursor_id, Tier.FAST, "m:1")
            self.owners.give(owner, cursor_id, OpenCursor(None, "d.c"))
        owner.transactions[(None, SESSION)] = Pin(3)
        return owner

    async def clean(self, owner: Owner) -> None:
        self.owners.vanished.append(owner)
        task = asyncio.create_task(self.leftovers.run())
        await asyncio.sleep(0.3)
        task.cancel()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(leftovers, "CURSOR_SECONDS", 0.06)
    monkeypatch.setattr(leftovers, "TRANSACTION_SECONDS", 0.01)
    monkeypatch.setattr(leftovers, "_SOON_SECONDS", 0.01)
    return World()


def cursor(cursor_id: int, unused: int) -> dict[str, Any]:
    return {
        "type": "idleCursor",
        "ns": "d.c",
        "cursor": {"cursorId": Int64(cursor_id)},
        "unused": unused,
    }


def transaction(micros: int, kind: str = "idleSession") -> dict[str, Any]:
    return {"type": kind, "transaction": {"timeInactiveMicros": Int64(micros)}}


async def test_what_a_load_balanced_connection_opened_ends_with_it(world: World) -> None:
    await world.clean(world.owner(alone=True))
    assert world.commands() == ["abortTransaction", "killCursors"]
    (_, _, abort), (tier, member, kill) = world.sent
    assert abort["lsid"]["id"] == Binary(bytes(range(16)), 4)
    assert (abort["txnNumber"], abort["autocommit"]) == (3, False)
    assert (tier, member) == (Tier.FAST, "m:1")
    assert (kill["killCursors"], kill["$db"], kill["cursors"]) == ("c", "d", [7, 8])
    assert sorted(world.ended) == ["cursor", "cursor", "transaction"]
    assert len(world.cursors) == 0


async def test_only_what_nobody_used_for_long_is_ended(world: World) -> None:
    world.operations = [cursor(7, 60), cursor(8, 10), transaction(10_000)]
    await world.clean(world.owner())
    ended = [d for _, _, d in world.sent if "aggregate" not in d]
    assert [next(iter(d)) for d in ended] == ["abortTransaction", "killCursors"]
    assert ended[1]["cursors"] == [7]


@pytest.mark.parametrize(
    "operations",
    [
        [],
        [transaction(1_000)],
        [transaction(10_000), transaction(0)],
    ],
    ids=["over", "in use", "one in use"],
)
async def test_a_transaction_that_goes_on_elsewhere_is_left(
    world: World, operations: list[dict[str, Any]]
) -> None:
    world.operations = operations
    await world.clean(world.owner())
    assert "abortTransaction" not in world.commands()


async def test_an_application_that_comes_back_keeps_everything(world: World) -> None:
    world.operations = [cursor(7, 60), cursor(8, 60), transaction(10_000)]
    owner = world.owner()
    again = world.owners.join(owner.key)
    await world.clean(owner)
    assert world.sent == []
    assert sorted(again.cursors) == [7, 8]
    assert list(again.transactions) == [(None, SESSION)]


async def test_a_cursor_that_nobody_was_told_of_is_found_by_its_session(world: World) -> None:
    owner = Owner(None, alone=True)
    owner.unanswered[None, SESSION] = None
    held = world.owners.join("another")
    world.owners.give(held, 9, OpenCursor(None, "d.c"))
    world.operations = [cursor(5, 50), cursor(6, 0), cursor(9, 50)]
    await world.clean(owner)
    assert [member for _, member, _ in world.sent] == ["m:1", "m:1"], "where this user was"
    assert world.sent[-1][2]["cursors"] == [5]


async def test_at_the_end_only_what_is_bound_to_connections_is_ended(world: World) -> None:
    world.owners.vanished += [world.owner(alone=True), Owner("x")]
    await world.leftovers.close()
    assert world.commands() == ["abortTransaction", "killCursors"]
    assert not world.owners.vanished


async def test_what_could_not_be_ended_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [CommandError(50, "the time is up")]
    run = world.run

    async def refusing(*arguments: Any, **options: Any) -> Reply:
        if refusals:
            raise refusals.pop()
        return await run(*arguments, **options)

    monkeypatch.setattr(world, "run", refusing)
    await world.clean(world.owner(alone=True))
    assert world.commands() == ["killCursors"]
    assert len(world.cursors) == 0


async def test_many_cursors_are_asked_for_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_MANY", 10)
    owner = Owner(("h", b""))
    for cursor_id in range(1, 26):
        world.cursors.remember(cursor_id, Tier.FAST, "m:1")
        world.owners.give(owner, cursor_id, OpenCursor(None, "d.c"))
    world.operations = [cursor(cursor_id, 60) for cursor_id in range(1, 26)]
    await world.clean(owner)
    asked = [
        d["pipeline"][1]["$match"]["cursor.cursorId"]["$in"]
        for _, _, d in world.sent
        if "aggregate" in d
    ]
    assert [len(part) for part in asked] == [10, 10, 5]
    assert len(world.cursors) == 0

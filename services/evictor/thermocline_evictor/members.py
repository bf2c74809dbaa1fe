"""What runs on F's members: open cursors everywhere, writes on the primary."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from thermocline_common.raw_reads import find_raw
from thermocline_common.tiers import PLAIN
from thermocline_evictor.plan.steps import Cursor

Client = AsyncMongoClient[dict[str, Any]]
_SERVING = (1, 2)  # PRIMARY, SECONDARY
_ARBITER = 7
_WRITES = ("insert", "update", "delete", "findAndModify", "findandmodify")


@dataclass(frozen=True, slots=True)
class Membership:
    """F's data-bearing members by ``host:port``: those that serve, and those that the primary can't see
    serving."""

    up: frozenset[str]
    down: frozenset[str]


def membership(status: Mapping[str, Any]) -> Membership:
    """From a ``replSetGetStatus`` reply of the primary. Pure."""
    up: set[str] = set()
    down: set[str] = set()
    for member in status["members"]:
        state = member.get("state")
        if state == _ARBITER:
            continue
        serving = member.get("self") or member.get("health") == 1
        (up if serving and state in _SERVING else down).add(str(member["name"]))
    return Membership(frozenset(up), frozenset(down))


def cursors_on(operations: Iterable[Mapping[str, Any]], namespace: str) -> frozenset[int]:
    """Ids of the cursors on a namespace, idle or at work, but for tailable ones. Pure."""
    found = set()
    for operation in operations:
        cursor = operation.get("cursor")
        if cursor and operation.get("ns") == namespace and not cursor.get("tailable"):
            found.add(int(cursor["cursorId"]))
    return frozenset(found)


def writes_on(operations: Iterable[Mapping[str, Any]], namespace: str) -> frozenset[int]:
    """Ids of the operations that write to a namespace now. Pure."""
    database, collection = namespace.split(".", 1)
    found = set()
    for operation in operations:
        kind, where = operation.get("op"), operation.get("ns")
        command = operation.get("command") or {}
        if kind in ("insert", "update", "remove"):
            hit = where == namespace
        elif kind == "command" and where in (namespace, f"{database}.$cmd"):
            hit = any(command.get(name) == collection for name in _WRITES)
        else:
            hit = False
        if hit and "opid" in operation:
            found.add(int(operation["opid"]))
    return frozenset(found)


@dataclass(slots=True)
class FastMembers:
    """Asks F's members. ``open_member`` makes a client of one member alone, by ``host:port``."""

    primary: Client
    open_member: Callable[[str], Client]
    clients: dict[str, Client] = field(default_factory=dict)

    async def membership(self) -> Membership:
        """Who serves now, as the primary sees it. Raises PyMongo's errors."""
        return membership(await self.primary.admin.command("replSetGetStatus"))

    async def cursors(self, member: str, namespace: str) -> frozenset[int] | None:
        """Open cursors on a namespace on one member; None: it doesn't answer."""
        match = {"ns": namespace, "cursor.cursorId": {"$exists": True}}
        try:
            return cursors_on(await _operations(self._client(member), match), namespace)
        except PyMongoError:
            return None

    async def running_writes(self, namespace: str) -> frozenset[int]:
        """Writes on a namespace that run now, on the primary. Raises PyMongo's errors."""
        database = namespace.split(".", 1)[0]
        match = {"type": "op", "active": True, "ns": {"$in": [namespace, f"{database}.$cmd"]}}
        return writes_on(await _operations(self.primary, match), namespace)

    async def kill(self, namespace: str, cursors: Iterable[Cursor]) -> None:
        """Kill cursors, each on its member. Raises PyMongo's errors."""
        database, collection = namespace.split(".", 1)
        for cursor in cursors:
            command = {"killCursors": collection, "cursors": [Int64(cursor.id)]}
            await self._client(cursor.member).get_database(database).command(command)

    def _client(self, member: str) -> Client:
        if member not in self.clients:
            self.clients[member] = self.open_member(member)
        return self.clients[member]

    async def close(self) -> None:
        """Close the clients of single members."""
        for client in self.clients.values():
            await client.close()
        self.clients.clear()


async def _operations(client: Client, match: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = find_raw(
        client,
        "admin",
        {
            "aggregate": 1,
            "pipeline": [
                {"$currentOp": {"allUsers": True, "idleCursors": True}},
                {"$match": dict(match)},
                # Commands may hold anything, also what can't be decoded.
                {
                    "$project": {
                        "type": 1,
                        "op": 1,
                        "ns": 1,
                        "opid": 1,
                        "cursor.cursorId": 1,
                        "cursor.tailable": 1,
                        **{f"command.{name}": 1 for name in _WRITES},
                    }
                },
            ],
            "cursor": {"batchSize": 100_000},
        },
    )
    return [bson.decode(bytes(operation.raw), PLAIN) async for operation in found]

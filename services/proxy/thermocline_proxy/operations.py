"""currentOp, ``$currentOp`` and killOp over every member of both tiers, as a mongos has them over shards.

An operation's id is ``tier/host:port:number``: only so does it name one operation, also after a
failover. Every member is asked as the client's user, and decides what that user may see and kill.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import ARRAY, DOCUMENT, elements, string, wrap
from thermocline_proxy.commands.command import Command, build, element, raw_element
from thermocline_proxy.cursors import Home
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.session_commands import places

_ID: Final = re.compile(r"(archive|fast)/(.+:[0-9]+):(-?[0-9]+)")
_KEPT: Final = ("maxTimeMS", "lsid", "comment", "apiVersion", "apiStrict", "apiDeprecationErrors")
"""Generic fields of an aggregation that its parts have too."""


def asks_for_operations(command: Command) -> bool:
    """Whether it is an aggregation that begins with ``$currentOp``."""
    stages = command.documents("pipeline") if command.name == "aggregate" else []
    return bool(stages) and next((n for n, *_ in elements(stages[0])), b"") == b"$currentOp"


def renamed(operation: bytes, home: Home) -> bytes:
    """A raw operation with an id that names its member, and ``shard``: the tier. Pure."""
    parts = [string(b"shard", home.tier.value)]
    for name, kind, begin, start, end in elements(operation):
        if name == b"opid" and kind in (0x10, 0x12):
            number = int.from_bytes(operation[start:end], "little", signed=True)
            parts.append(string(b"opid", f"{home.tier.value}/{home.member}:{number}"))
        else:
            parts.append(operation[begin:end])
    return wrap(*parts)


def named_operation(op: Any) -> tuple[Home, int] | None:
    """Where an operation runs, and its number there; None: a plain number. Raises ``CommandError`` 2."""
    if isinstance(op, (int, float)) or not isinstance(op, str):
        return None
    found = _ID.fullmatch(op)
    if found is None:
        raise CommandError(
            Code.BadValue,
            f"The op argument to killOp must be of the format tier/host:port:opid but found {op!r}",
        )
    return Home(Tier(found[1]), found[2]), int(found[3])


class Operations:
    """Answers commands about operations that run."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def current(self, request: Request) -> bytes:
        """The command currentOp: what all members show."""
        operations: list[bytes] = []
        for home in self._places():
            reply = await self._at(home, request, request.command)
            if not reply.ok:
                return reply.raw
            operations += _array(reply.raw, b"inprog", home)
        return bson.encode({"inprog": [RawBSONDocument(o) for o in operations], "ok": 1.0})

    async def aggregate(self, request: Request) -> bytes:
        """An aggregation over what all members show; its further stages run at the archive."""
        command = request.command
        stages = command.documents("pipeline")
        kept = [
            raw_element(name, *command.fields[name]) for name in _KEPT if name in command.fields
        ]
        first = build(
            {
                "aggregate": 1,
                "pipeline": [_without_local(stages[0])],
                "cursor": {"batchSize": 1_000_000},
                "$db": "admin",
            },
            kept,
        )
        operations: list[bytes] = []
        for home in self._places():
            reply = await self._at(home, request, first)
            if not reply.ok:
                return reply.raw
            operations += await self._all(reply, home, request, kept)
        shown = {"$documents": {"$literal": [RawBSONDocument(o) for o in operations]}}
        pipeline = [shown, *(RawBSONDocument(stage) for stage in stages[1:])]
        rest = command.changed({"pipeline": element("pipeline", pipeline)}, {})
        return (await self._at(Home(Tier.ARCHIVE, ""), request, rest)).raw

    async def kill(self, request: Request) -> bytes:
        """killOp, at the member that the id names; a plain number: the archive's primary."""
        named = named_operation(request.command.get("op"))
        if named is None:
            return (await self._at(Home(Tier.ARCHIVE, ""), request, request.command)).raw
        home, number = named
        if home not in self._places():
            raise CommandError(Code.HostUnreachable, f"{home.member} can't be reached")
        command = request.command.changed({"op": element("op", Int64(number))})
        return (await self._at(home, request, command)).raw

    def _places(self) -> Sequence[Home]:
        return places(self._proxy) or [Home(Tier.ARCHIVE, "")]

    async def _all(
        self, reply: Reply, home: Home, request: Request, kept: Sequence[bytes]
    ) -> list[bytes]:
        """Every batch of the cursor in ``reply``."""
        found: list[bytes] = []
        while True:
            cursor = reply.decode()["cursor"]
            batch = b"firstBatch" if "firstBatch" in cursor else b"nextBatch"
            found += _array(bytes(cursor.raw), batch, home)
            if not cursor["id"]:
                return found
            more: Mapping[str, Any] = {
                "getMore": Int64(cursor["id"]),
                "collection": "$cmd.aggregate",
                "$db": "admin",
            }
            reply = await self._at(home, request, build(more, [k for k in kept if b"lsid" in k]))
            if not reply.ok:
                raise CommandError(Code.OperationFailed, f"{home.member} lost its answer")

    async def _at(self, home: Home, request: Request, command: Command) -> Reply:
        return await self._proxy.exchange.run(
            home.tier,
            request.identity,
            command,
            member=home.member or None,
            deadline=request.deadline,
        )


def _without_local(stage: bytes) -> RawBSONDocument:
    """The stage as a mongod takes it: ``localOps`` is for a mongos, which has none of its own here."""
    for _, kind, _, start, end in elements(stage):
        if kind == DOCUMENT:
            options = stage[start:end]
            kept = [
                options[begin:stop]
                for name, _, begin, _, stop in elements(options)
                if name != b"localOps"
            ]
            return RawBSONDocument(wrap(b"\x03$currentOp\0" + wrap(*kept)))
    return RawBSONDocument(stage)


def _array(document: bytes, field: bytes, home: Home) -> list[bytes]:
    for name, kind, _, start, end in elements(document):
        if name == field and kind == ARRAY:
            array = document[start:end]
            return [renamed(array[begin:stop], home) for _, _, _, begin, stop in elements(array)]
    return []

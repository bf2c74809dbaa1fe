"""Ends what vanished applications left open at the tiers: cursors and transactions.

An open transaction holds up writers, an open cursor evictions. Everything here runs as the user who
opened it. What a load-balanced connection opened ends with it. Any other cursor or transaction may be
in use through another proxy: it is ended only if its own server says that nobody used it for a while.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64

from thermocline_common.errors import CommandError
from thermocline_proxy.commands.command import Command, build
from thermocline_proxy.cursors import Home
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.owners import Began, OpenCursor, Owner
from thermocline_proxy.ports import Identity
from thermocline_proxy.wire.decoding import decoded

log = logging.getLogger(__name__)

TEST_VARIABLE: Final = "THERMOCLINE_TEST_VANISHED_SECONDS"
"""For tests only: how long a cursor is left alone."""
CURSOR_SECONDS: Final = float(os.environ.get(TEST_VARIABLE, "60"))
"""How long a cursor may be unused after its application's last connection ended (MongoDB: 10 minutes)."""
TRANSACTION_SECONDS: Final = CURSOR_SECONDS / 6
"""The same for a transaction, which others may wait for."""
_TURN_SECONDS: Final = 0.2
_LIMIT_SECONDS: Final = 10.0
_AT_ONCE: Final = 4
"""Owners that are cleaned up after at the same time: applications come first."""
_MANY: Final = 1_000
"""Cursors that one command is about."""
_TRIES: Final = 3
_SOON_SECONDS: Final = 1.0
"""An operation ends that long after its connection, at most."""


class Leftovers:
    """Cleans up after owners that vanished."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Again and again, until cancelled."""
        vanished = self._proxy.owners.vanished
        try:
            while True:
                while vanished:
                    task = asyncio.create_task(self._after(vanished.pop()))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(_TURN_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()

    async def close(self) -> None:
        """End at once what load-balanced connections left; the rest is found through other proxies."""
        owners = [owner for owner in self._proxy.owners.vanished if owner.alone]
        self._proxy.owners.vanished.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT_SECONDS):
                await asyncio.gather(*(self._after(owner) for owner in owners))

    async def _after(self, owner: Owner) -> None:
        for _ in range(_TRIES):
            try:
                if owner.alone:
                    await self._end_bound(owner)
                else:
                    await self._end_unused(owner)
            except CommandError as error:
                # The server ends what is idle by itself, only later.
                log.warning("what an application left open can't be ended: %s", error)
                await asyncio.sleep(_SOON_SECONDS)
            else:
                return

    async def _end_bound(self, owner: Owner) -> None:
        await self._abort(owner, idle=None)
        if owner.unanswered:
            await asyncio.sleep(_SOON_SECONDS)
            await self._find_unanswered(owner, idle=_SOON_SECONDS / 2)
        await self._kill(dict(owner.cursors))

    async def _end_unused(self, owner: Owner) -> None:
        if not await self._still_gone(owner, TRANSACTION_SECONDS):
            return
        await self._abort(owner, idle=TRANSACTION_SECONDS)
        if not await self._still_gone(owner, CURSOR_SECONDS - TRANSACTION_SECONDS):
            return
        await self._find_unanswered(owner, idle=CURSOR_SECONDS / 2)
        await self._kill(await self._unused(dict(owner.cursors)))

    async def _still_gone(self, owner: Owner, seconds: float) -> bool:
        if not owner.leaves:
            return False
        await asyncio.sleep(seconds)
        return not self._proxy.owners.back(owner)

    # Transactions.

    async def _abort(self, owner: Owner, *, idle: float | None) -> None:
        """``idle``: only those that were unused for about so many seconds; None: all."""
        for (identity, session), pin in list(owner.transactions.items()):
            if pin.over:
                continue
            if idle is not None and not await self._idle(identity, session, pin, idle):
                continue
            fields = {
                "abortTransaction": 1,
                "lsid": {"id": _session_id(session)},
                "txnNumber": Int64(pin.number),
                "autocommit": False,
                "$db": "admin",
            }
            pin.over = True
            await self._run(Home(pin.tier, ""), identity, build(fields, pin.api))
            self._proxy.observer.left("transaction")
        owner.transactions.clear()

    async def _idle(
        self, identity: Identity | None, session: bytes, pin: Began, idle: float
    ) -> bool:
        wanted = {
            "lsid.id": _session_id(session),
            "transaction.parameters.txnNumber": Int64(pin.number),
        }
        found = await self._look(Home(pin.tier, ""), identity, {"idleSessions": True}, wanted)
        micros = [
            int(operation["transaction"].get("timeInactiveMicros", 0))
            for operation in found
            if operation.get("type") == "idleSession"
        ]
        return len(micros) == len(found) > 0 and min(micros) >= idle * 0.8e6

    # Cursors.

    async def _find_unanswered(self, owner: Owner, *, idle: float) -> None:
        """Cursors whose ids went to a client that was gone: known by their sessions alone."""
        for identity, session in list(owner.unanswered):
            wanted = {"type": "idleCursor", "lsid.id": _session_id(session)}
            for tier, address, user in list(self._proxy.upstreams.pools.pools):
                if user != identity:
                    continue
                home = Home(tier, address)
                for operation in await self._look(home, identity, {"idleCursors": True}, wanted):
                    cursor_id = int(operation["cursor"]["cursorId"])
                    if self._proxy.cursors.holder(cursor_id) is None and _used(operation) >= idle:
                        self._proxy.cursors.remember(cursor_id, tier, address)
                        cursor = OpenCursor(identity, operation["ns"])
                        self._proxy.owners.give(owner, cursor_id, cursor)
        owner.unanswered.clear()

    async def _unused(self, cursors: Mapping[int, OpenCursor]) -> dict[int, OpenCursor]:
        """Those whose servers say that nobody read on for long."""
        unused: dict[int, OpenCursor] = {}
        for home, identity, ids in self._by_place(cursors):
            wanted = {"type": "idleCursor", "cursor.cursorId": {"$in": [Int64(i) for i in ids]}}
            for operation in await self._look(home, identity, {"idleCursors": True}, wanted):
                cursor_id = int(operation["cursor"]["cursorId"])
                if _used(operation) >= CURSOR_SECONDS * 0.8:
                    unused[cursor_id] = cursors[cursor_id]
        return unused

    async def _kill(self, cursors: Mapping[int, OpenCursor]) -> None:
        for home, identity, ids in self._by_place(cursors):
            by_namespace: dict[str, list[int]] = {}
            for cursor_id in ids:
                by_namespace.setdefault(cursors[cursor_id].namespace, []).append(cursor_id)
            for namespace, some in by_namespace.items():
                database, _, collection = namespace.partition(".")
                killed = {
                    "killCursors": collection,
                    "cursors": [Int64(cursor_id) for cursor_id in some],
                    "$db": database,
                }
                await self._run(home, identity, build(killed))
                for cursor_id in some:
                    self._proxy.observer.left("cursor")
                    self._proxy.gateway.streams.forget(cursor_id)
                    self._proxy.cursors.forget(cursor_id)

    def _by_place(
        self, cursors: Mapping[int, OpenCursor]
    ) -> Iterator[tuple[Home, Identity | None, list[int]]]:
        places: dict[tuple[Home, Identity | None], list[int]] = {}
        for cursor_id, cursor in cursors.items():
            home = self._proxy.cursors.find(cursor_id)
            if home is not None:
                places.setdefault((home, cursor.identity), []).append(cursor_id)
        for (home, identity), ids in places.items():
            for start in range(0, len(ids), _MANY):
                yield home, identity, ids[start : start + _MANY]

    # Commands.

    async def _look(
        self, home: Home, identity: Identity | None, options: Mapping[str, bool], wanted: Any
    ) -> list[Mapping[str, Any]]:
        """What ``$currentOp`` shows of the user's own, each with ``unused``: milliseconds since it was used."""
        unused = {"$subtract": ["$$NOW", "$cursor.lastAccessDate"]}
        pipeline = [
            {"$currentOp": dict(options)},
            {"$match": wanted},
            {"$project": {
                "type": 1, "ns": 1, "transaction": 1, "cursor.cursorId": 1, "unused": unused,
            }},
        ]  # fmt: skip
        command = {
            "aggregate": 1,
            "pipeline": pipeline,
            "cursor": {"batchSize": 10_000},
            "maxTimeMS": int(_LIMIT_SECONDS * 1000),
            "$db": "admin",
        }
        reply = decoded(await self._run(home, identity, build(command)))
        if not reply["ok"]:
            raise CommandError(int(reply.get("code", 0)), str(reply.get("errmsg", "")))
        found: list[Mapping[str, Any]] = reply["cursor"]["firstBatch"]
        return found

    async def _run(self, home: Home, identity: Identity | None, command: Command) -> bytes:
        async with self._turns:
            reply = await self._proxy.exchange.run(
                home.tier,
                identity,
                command,
                member=home.member or None,
                deadline=time.monotonic() + _LIMIT_SECONDS,
            )
        return reply.raw


def _used(operation: Mapping[str, Any]) -> float:
    return float(operation.get("unused") or 0) / 1000


def _session_id(raw: bytes) -> Binary:
    """The raw value of a BSON binary: length, subtype, bytes."""
    return Binary(raw[5:], raw[4])

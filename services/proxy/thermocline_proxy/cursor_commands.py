"""getMore and killCursors: to the member where the cursor is; one of another proxy is looked for."""

from collections.abc import Iterator

import bson
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.awaiting import USUAL_MS, Awaiting
from thermocline_proxy.commands import snapshots
from thermocline_proxy.commands.command import Command, element
from thermocline_proxy.cursors import Home
from thermocline_proxy.exchange import error_code
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.reads import before_more, follow


class CursorCommands:
    """Commands on open cursors."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._awaiting = Awaiting(lambda: proxy.settings().max_connections)

    async def get_more(self, request: Request) -> bytes:
        """The next batch, from wherever the cursor is open."""
        command = request.command
        cursor_id = command.get("getMore")
        if not isinstance(cursor_id, Int64):
            return (await self._at(Home(Tier.ARCHIVE, ""), request, command)).raw
        before = self._proxy.leases.snapshot
        await before_more(request, self._proxy.gateway, cursor_id, before)
        home = self._proxy.cursors.find(cursor_id)
        if home is not None:
            reply = await self._next(home, request, cursor_id)
            self._note(reply, cursor_id, home)
            return (await follow(reply, request, self._proxy.gateway, before)).raw
        answer: Reply | None = None
        for place in self._places():
            try:
                reply = await self._at(place, request, command)
            except CommandError:
                if answer is None and place.tier is Tier.ARCHIVE:
                    raise
                continue  # the fast tier can't be asked: the archive's answer stands
            if error_code(reply.raw) != Code.CursorNotFound:
                self._note(reply, cursor_id, place)
                return (await follow(reply, request, self._proxy.gateway, before)).raw
            answer = answer or reply
        if answer is None:
            raise CommandError(Code.CursorNotFound, f"cursor id {int(cursor_id)} not found")
        return answer.raw

    async def _next(self, home: Home, request: Request, cursor_id: int) -> Reply:
        """The next batch; only cursors that wait for news have a time limit for it."""
        command = request.command
        asked = command.get("maxTimeMS")
        if asked is None and cursor_id in self._proxy.cursors.streams:
            asked = USUAL_MS
        if not isinstance(asked, int) or isinstance(asked, bool) or asked <= 0:
            return await self._at(home, request, command)
        async with self._awaiting.turn(home, asked) as milliseconds:
            if milliseconds != asked:
                command = command.changed({"maxTimeMS": element("maxTimeMS", milliseconds)})
            return await self._at(home, request, command)

    def _note(self, reply: Reply, cursor_id: int, home: Home) -> None:
        """An open cursor is remembered by the exchange; an exhausted or unknown one is forgotten."""
        document = reply.decode()
        streams = self._proxy.gateway.streams
        if document.get("ok"):
            if not document["cursor"]["id"]:
                streams.forget(cursor_id)
                self._proxy.cursors.forget(cursor_id)
            else:
                self._proxy.cursors.remember(cursor_id, home.tier, reply.member)
        elif document.get("code") == Code.CursorNotFound:
            streams.forget(cursor_id)
            self._proxy.cursors.forget(cursor_id)

    def _places(self) -> Iterator[Home]:
        members = self._proxy.upstreams.members
        primaries = [
            Home(tier, primary)
            for tier in (Tier.ARCHIVE, Tier.FAST)
            if (primary := members[tier].primary) is not None
        ]
        yield from primaries
        for tier in (Tier.ARCHIVE, Tier.FAST):
            for address in members[tier].addresses:
                if Home(tier, address) not in primaries:
                    yield Home(tier, address)

    async def _at(self, home: Home, request: Request, command: Command) -> Reply:
        # Some drivers repeat the session's snapshot time with each batch.
        command = snapshots.for_archive(command)
        return await self._proxy.exchange.run(
            home.tier,
            request.identity,
            command,
            member=home.member or None,
            deadline=request.deadline,
        )

    async def kill(self, request: Request) -> bytes:
        """Kill cursors wherever they are; the parts of the reply put together."""
        command = request.command
        ids = command.get("cursors")
        if not isinstance(ids, list) or not ids or not all(isinstance(i, Int64) for i in ids):
            return (await self._at(Home(Tier.ARCHIVE, ""), request, command)).raw
        homes: dict[Home, list[Int64]] = {}
        lost: list[Int64] = []
        for cursor_id in ids:
            home = self._proxy.cursors.find(cursor_id)
            if home is None:
                lost.append(cursor_id)
            else:
                homes.setdefault(home, []).append(cursor_id)
        killed: list[Int64] = []
        alive: list[Int64] = []
        unknown: list[Int64] = []
        for home, known in homes.items():
            part = (await self._at(home, request, _with_cursors(command, known))).decode()
            if not part.get("ok"):
                return bytes(bson.encode(dict(part)))
            killed += part["cursorsKilled"]
            alive += part["cursorsAlive"]
            unknown += part["cursorsUnknown"]
            lost += part["cursorsNotFound"]
            for cursor_id in known:
                self._proxy.cursors.forget(cursor_id)
                self._proxy.gateway.streams.forget(cursor_id)
        failure: bytes | None = None
        for place in self._places():
            if not lost:
                break
            try:
                reply = await self._at(place, request, _with_cursors(command, lost))
            except CommandError:
                continue
            part = reply.decode()
            if not part.get("ok"):
                failure = failure or reply.raw
                continue
            killed += part["cursorsKilled"]
            alive += part["cursorsAlive"]
            unknown += part["cursorsUnknown"]
            lost = list(part["cursorsNotFound"])
        if failure is not None and not killed and not alive:
            return failure
        return bson.encode(
            {
                "cursorsKilled": killed,
                "cursorsNotFound": lost,
                "cursorsAlive": alive,
                "cursorsUnknown": unknown,
                "ok": 1.0,
            }
        )


def _with_cursors(command: Command, ids: list[Int64]) -> Command:
    return command.changed({"cursors": element("cursors", ids)})

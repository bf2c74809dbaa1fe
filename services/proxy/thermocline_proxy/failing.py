"""Lets clients' commands meet the fail point ``failCommand`` where a test switched it on."""

import asyncio
import dataclasses
import time

from thermocline_common.errors import Code, CommandError
from thermocline_proxy.archive_commands import ArchiveCommands
from thermocline_proxy.commands import fail_point
from thermocline_proxy.commands.catalog import Entry
from thermocline_proxy.commands.command import Command
from thermocline_proxy.exchange import error_code
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.ports import Request
from thermocline_proxy.sessions import ClientSession
from thermocline_proxy.wire.decoding import decoded
from thermocline_proxy.wire.header import ProtocolViolation


class Failing:
    """The proxy's fail point, as the dispatcher uses it."""

    def __init__(self, proxy: Proxy, archive: ArchiveCommands) -> None:
        self._proxy = proxy
        self._archive = archive

    async def configure(self, request: Request) -> bytes:
        """``configureFailPoint``. What isn't ``failCommand`` goes to the archive as it is."""
        command = request.command
        switch = fail_point.parse(decoded(command.body))
        if switch is None:
            return await self._archive.plain(request)
        asked = dataclasses.replace(request, command=fail_point.switched_off(command))
        raw = await self._archive.plain(asked)
        if error_code(raw):
            return raw
        point = self._proxy.fail_point
        point.switch(switch)
        self._proxy.leases.forget_plans()
        return fail_point.answer(point.met)

    async def before(
        self, command: Command, session: ClientSession, deadline: float | None = None
    ) -> None:
        """Raise what this command is to meet."""
        failure = self._proxy.fail_point.before(command, session.application)
        if failure is None:
            return
        if failure.close:
            raise ProtocolViolation("a fail point")
        if failure.block:
            left = float("inf") if deadline is None else deadline - time.monotonic()
            await asyncio.sleep(max(0.0, min(failure.block, left)))
            if left <= failure.block:
                raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit")
        if failure.code is not None:
            raise CommandError(
                failure.code,
                fail_point.TEXT,
                labels=fail_point.labels(failure, command, failure.code),
            )

    def after(self, raw: bytes, command: Command, entry: Entry, session: ClientSession) -> bytes:
        """The reply, with the write concern error that this command is to meet."""
        failure = self._proxy.fail_point.after(command, entry, session.application)
        return raw if failure is None else fail_point.with_concern_error(raw, failure, command)

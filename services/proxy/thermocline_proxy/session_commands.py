"""Commands that end, refresh or kill sessions: they go to every server that may know the session.

Which proxy it came through doesn't matter: another one may have taken it to the fast tier.
"""

import time
from typing import Final

from thermocline_common.coverage import Tier
from thermocline_common.errors import CommandError
from thermocline_proxy.commands.catalog import Entry
from thermocline_proxy.cursors import Home
from thermocline_proxy.exchange import error_code
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.ports import Reply, Request

_KILLS: Final = frozenset({"killSessions", "killAllSessions", "killAllSessionsByPattern"})
_PATIENCE_SECONDS: Final = 1.0
"""For the fast tier, which ends idle sessions by itself."""


def places(proxy: Proxy) -> list[Home]:
    """Every member that can be reached and may serve clients, the archive's primary first.

    The fast tier's only where anything is tiered: nobody else has been there.
    """
    tiers = [Tier.ARCHIVE, *([Tier.FAST] if proxy.leases.anything_tiered else [])]
    return [
        Home(tier, address) for tier in tiers for address in proxy.upstreams.members[tier].addresses
    ]


class SessionCommands:
    """Answers commands of :attr:`~thermocline_proxy.commands.catalog.Kind.SESSION`."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def answer(self, request: Request, entry: Entry) -> bytes:
        """The archive's reply, or that of a server that couldn't kill what it was asked to."""
        if entry.name in _KILLS:
            return await self._kill(request)
        members = self._proxy.upstreams.members[Tier.FAST]
        if self._proxy.leases.anything_tiered and members.primary is not None:
            soon = time.monotonic() + _PATIENCE_SECONDS
            try:
                await self._run(Home(Tier.FAST, ""), request, soon)
            except CommandError:
                # The archive's answer counts.
                self._proxy.observer.error("SessionsOnFastTier")
        return (await self._run(Home(Tier.ARCHIVE, ""), request, request.deadline)).raw

    async def _kill(self, request: Request) -> bytes:
        """Cursors and transactions are each at one member, and a kill there concerns no other."""
        answer: Reply | None = None
        failed: CommandError | None = None
        for home in places(self._proxy) or [Home(Tier.ARCHIVE, "")]:
            try:
                reply = await self._run(home, request, request.deadline)
            except CommandError as error:
                failed = failed or error
                continue
            if answer is None or (error_code(reply.raw) and not error_code(answer.raw)):
                answer = reply
        if failed is not None:
            raise failed
        assert answer is not None
        return answer.raw

    async def _run(self, home: Home, request: Request, deadline: float | None) -> Reply:
        return await self._proxy.exchange.run(
            home.tier,
            request.identity,
            request.command,
            member=home.member or None,
            deadline=deadline,
        )

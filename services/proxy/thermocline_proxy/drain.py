"""The end of a proxy's life, step by step as :mod:`~thermocline_proxy.leaving` says."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

from thermocline_proxy.client_protocol import ClientProtocol
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.leaving import IN_HAND_SECONDS, Phase, waits

_TURN_SECONDS: Final = 0.05


class Drain:
    """``stop_listening`` is called once; ``beat`` at each turn: the work goes on."""

    def __init__(
        self,
        proxy: Proxy,
        connections: Collection[ClientProtocol],
        stop_listening: Callable[[], None],
        beat: Callable[[], None],
    ) -> None:
        self._proxy = proxy
        self._connections = connections
        self._stop_listening = stop_listening
        self._beat = beat
        self._quiet: dict[ClientProtocol, tuple[bytes | None, float]] = {}

    async def run(self) -> None:
        """Returns as soon as no client is left, or nobody may wait any longer."""
        leaving = self._proxy.leaving
        leaving.waits = waits(self._proxy.settings().drain_timeout)
        began = time.monotonic()
        leaving.phase = Phase.LISTENING
        await self._until(began + leaving.waits.listen)
        self._stop_listening()
        leaving.since = time.monotonic()
        leaving.phase = Phase.LEAVING
        self._proxy.leases.token = object()  # what went the short path is looked at anew
        await self._until(began + leaving.waits.total, self._close_quiet)
        for connection in list(self._connections):
            connection.leave()
        await self._until(began + leaving.waits.total + IN_HAND_SECONDS)

    async def _until(self, end: float, turn: Callable[[float], None] = lambda now: None) -> None:
        while self._connections and (now := time.monotonic()) < end:
            self._beat()
            turn(now)
            await asyncio.sleep(_TURN_SECONDS)

    def _close_quiet(self, now: float) -> None:
        """A driver looks whether a connection is still open before it uses one that was idle a while."""
        for connection in list(self._connections):
            resting = connection.resting
            last, since = self._quiet.get(connection, (None, now))
            if resting is None or resting is not last or connection.session.owner.bound:
                self._quiet[connection] = (resting, now)
            elif now - since >= self._proxy.leaving.waits.quiet:
                connection.leave()

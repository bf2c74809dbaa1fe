"""Cursors that wait for news: each holds a connection while it waits, so only so many may at a time.

They get half of a member's connections, so that other commands always find one. Where more cursors wait
than that, each waits a shorter while and then makes room; its driver asks again by itself.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from thermocline_proxy.cursors import Home

USUAL_MS: Final = 1_000
"""What a server waits where the client doesn't say."""
_LEAST_MS: Final = 20
_MOST_MS: Final = 5_000
"""A crowd may come while one waits: it must not have to wait for a client's minutes."""


def patience(asked_ms: int, most: int, crowd: int) -> int:
    """How many milliseconds one of ``crowd`` cursors may wait, of which ``most`` do so at a time."""
    if crowd <= most:
        return min(asked_ms, _MOST_MS)
    return min(asked_ms, max(_LEAST_MS, USUAL_MS * most // crowd))


class _Gate:
    """The cursors at one member."""

    __slots__ = ("crowd", "most", "turns")

    def __init__(self, most: int) -> None:
        self.most = most
        self.turns = asyncio.Semaphore(most)
        self.crowd = 0


class Awaiting:
    """The cursors that wait now, of all members. ``connections``: to one member, at most."""

    def __init__(self, connections: Callable[[], int]) -> None:
        self._connections = connections
        self._gates: dict[Home, _Gate] = {}

    @contextlib.asynccontextmanager
    async def turn(self, home: Home, asked_ms: int) -> AsyncIterator[int]:
        """Wait for one's turn; how many milliseconds the server may wait then."""
        gate = self._gates.get(home)
        if gate is None:
            gate = self._gates[home] = _Gate(max(1, self._connections() // 2))
        gate.crowd += 1
        try:
            async with gate.turns:
                yield patience(asked_ms, gate.most, gate.crowd)
        finally:
            gate.crowd -= 1
            if not gate.crowd:
                del self._gates[home]

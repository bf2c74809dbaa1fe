"""A relay before a proxy that swallows replies to writes, so that drivers have to retry."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from support.relay import Ends, Relay

WRITES = (b"\x02insert\0", b"\x02update\0", b"\x02delete\0", b"\x02findAndModify\0")
TRANSACTION_NUMBER = b"\x12txnNumber\0"
SESSION = b"\x03lsid\0"
SESSION_BYTES = 30  # a document with a UUID named "id"


def statement(data: bytes) -> bytes:
    """Session and transaction number of a retryable write: what its retry has in common with it."""
    number = data.index(TRANSACTION_NUMBER) + len(TRANSACTION_NUMBER)
    session = data.index(SESSION) + len(SESSION)
    return data[session : session + SESSION_BYTES] + data[number : number + 8]


class CuttingRelay(Relay):
    """``with CuttingRelay(port) as relay``: listens on ``relay.port``; every ``every``-th write is executed,
    and its connection ends before the reply.

    The retry of such a write is let through: drivers retry once, so a second cut is an error to users.
    """

    def __init__(self, target: int, every: int = 25) -> None:
        super().__init__()
        self.target = target
        self.every = every
        self.cut = 0
        self._writes = 0
        self._swallowed: set[bytes] = set()

    async def connect(self) -> Ends:
        """The target."""
        return await asyncio.open_connection("127.0.0.1", self.target)

    def copies(
        self, client: Ends, server: Ends
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """As of :class:`Relay`, less the replies to swallow."""
        swallow = asyncio.Event()
        return self._requests(client[0], server[1], swallow), self._replies(
            server[0], client[1], swallow
        )

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            if any(name in data[:200] for name in WRITES):
                self._writes += 1
                if self._writes >= self.every and (name := statement(data)) not in self._swallowed:
                    self._writes = 0
                    self._swallowed.add(name)
                    swallow.set()
            writer.write(data)
            await writer.drain()

    async def _replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            if swallow.is_set():
                self.cut += 1
                return
            writer.write(data)
            await writer.drain()

"""A relay before a mongod that ends connections in the middle of a reply."""

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any, Final

from support.mongod import ReplicaSet
from support.relay import Ends, Relay

_LENGTH: Final = struct.Struct("<i")


class TruncatingRelay(Relay):
    """``with TruncatingRelay(port) as relay``: listens on ``relay.port``. Bytes pass, until :meth:`arm`.

    Then the reply to the next requests that hold given bytes ends after some bytes of it, and its
    connection with it. The request was executed.
    """

    def __init__(self, target: int) -> None:
        super().__init__()
        self.target = target
        self.truncated = 0
        self._marker = b""
        self._keep = 0.0
        self._times = 0

    def arm(self, marker: bytes, keep: float, times: int = 1) -> None:
        """Truncate replies to ``times`` requests that hold ``marker``, after ``keep`` bytes; below 1: after
        that share of the reply."""
        self._marker, self._keep, self._times = marker, keep, times

    def disarm(self) -> None:
        """Let everything pass."""
        self._times = 0

    async def connect(self) -> Ends:
        """The target."""
        return await asyncio.open_connection("127.0.0.1", self.target)

    def copies(
        self, client: Ends, server: Ends
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """As of :class:`Relay`, message by message, as far as they may go."""
        doomed: set[bytes] = set()
        return self._requests(client[0], server[1], doomed), self._replies(
            server[0], client[1], doomed
        )

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: set[bytes]
    ) -> None:
        while (message := await _message(reader)) is not None:
            if self._times > 0 and self._marker in message:
                self._times -= 1
                doomed.add(message[4:8])
            writer.write(message)
            await writer.drain()

    async def _replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: set[bytes]
    ) -> None:
        while (message := await _message(reader)) is not None:
            if message[8:12] in doomed:
                keep = self._keep if self._keep >= 1 else self._keep * len(message)
                writer.write(message[: min(int(keep), len(message) - 1)])
                await writer.drain()
                self.truncated += 1
                return
            writer.write(message)
            await writer.drain()


class RelayedSet(ReplicaSet):
    """A replica set of one member that everybody reaches through ``relay``."""

    relay: TruncatingRelay

    def _initiate(self) -> None:
        self.relay = TruncatingRelay(self.members[0].port).__enter__()
        self.members[0].advertised = self.relay.port
        super()._initiate()

    def stop(self) -> None:
        """And the relay."""
        super().stop()
        if hasattr(self, "relay"):
            self.relay.__exit__(None, None, None)


async def _message(reader: asyncio.StreamReader) -> bytes | None:
    """The next whole message; None at the end."""
    try:
        head = await reader.readexactly(4)
        return head + await reader.readexactly(_LENGTH.unpack(head)[0] - 4)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

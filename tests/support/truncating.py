"""A relay before a mongod that ends connections in the middle of a reply."""

import asyncio
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

from support.mongod import ReplicaSet

_LENGTH: Final = struct.Struct("<i")


class TruncatingRelay:
    """``with TruncatingRelay(port) as relay``: listens on ``relay.port``. Bytes pass, until :meth:`arm`.

    Then the reply to the next requests that hold given bytes ends after some bytes of it, and its
    connection with it. The request was executed.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.truncated = 0
        self._marker = b""
        self._keep = 0.0
        self._times = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def arm(self, marker: bytes, keep: float, times: int = 1) -> None:
        """Truncate replies to ``times`` requests that hold ``marker``, after ``keep`` bytes; below 1: after
        that share of the reply."""
        self._marker, self._keep, self._times = marker, keep, times

    def disarm(self) -> None:
        """Let everything pass."""
        self._times = 0

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0, limit=1 << 26)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        doomed: set[bytes] = set()
        copies = [
            asyncio.create_task(self._requests(reader, here, doomed)),
            asyncio.create_task(self._replies(there, writer, doomed)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            writer.close()  # what was written is sent first
            here.transport.abort()
            await asyncio.gather(*copies, return_exceptions=True)
            await asyncio.sleep(0)  # transports close in the next turn

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

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._serve())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async def end() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.05)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


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

"""A relay before a proxy that swallows replies to writes, so that drivers have to retry."""

import asyncio
import threading
from types import TracebackType
from typing import Self

WRITES = (b"\x02insert\0", b"\x02update\0", b"\x02delete\0", b"\x02findAndModify\0")
TRANSACTION_NUMBER = b"\x12txnNumber\0"
SESSION = b"\x03lsid\0"
SESSION_BYTES = 30  # a document with a UUID named "id"


def statement(data: bytes) -> bytes:
    """Session and transaction number of a retryable write: what its retry has in common with it."""
    number = data.index(TRANSACTION_NUMBER) + len(TRANSACTION_NUMBER)
    session = data.index(SESSION) + len(SESSION)
    return data[session : session + SESSION_BYTES] + data[number : number + 8]


class CuttingRelay:
    """``with CuttingRelay(port) as relay``: listens on ``relay.port``; every ``every``-th write is executed,
    and its connection ends before the reply.

    The retry of such a write is let through: drivers retry once, so a second cut is an error to users.
    """

    def __init__(self, target: int, every: int = 25) -> None:
        self.target = target
        self.every = every
        self.port = 0
        self.cut = 0
        self._writes = 0
        self._swallowed: set[bytes] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        swallow = asyncio.Event()
        copies = [
            asyncio.create_task(self._requests(reader, here, swallow)),
            asyncio.create_task(self._replies(there, writer, swallow)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            for end in (writer, here):
                end.transport.abort()
            await asyncio.gather(*copies, return_exceptions=True)
            await asyncio.sleep(0)  # transports close in the next turn

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

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
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

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

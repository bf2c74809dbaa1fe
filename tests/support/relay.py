"""What the relays of these tests share: a thread with an event loop, and an end that leaves nothing open."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

LIMIT = 1 << 26
"""Bytes that a stream may hold: more than MongoDB's largest message."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""One connection."""


class Relay(ABC):
    """``with`` it, it listens on ``port`` of this machine, and makes one connection for each that comes."""

    def __init__(self) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()

    @abstractmethod
    async def connect(self) -> Ends:
        """The other end of a connection that came. Raises OSError: the connection is closed."""

    def copies(
        self,
        client: Ends,
        server: Ends,
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """Requests' and replies' way; the first that ends, ends the connection."""
        return copy(client[0], server[1]), copy(server[0], client[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: a task that is cancelled before its first step would know no writer to close.
        self._open.add(writer)
        # Held by all_tasks() and by what it waits for, until it ends.
        self._loop.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            server = await self.connect()
            ends.append(server[1])
            self._open.add(server[1])
            copies = [asyncio.ensure_future(c) for c in self.copies((reader, writer), server)]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in copies:
                    task.cancel()
                await asyncio.gather(*copies, return_exceptions=True)
        except OSError:
            pass
        finally:
            # What was written to the client is sent first.
            writer.close()
            for end in ends[1:]:
                end.transport.abort()
            await self._closed(ends)

    async def _closed(self, ends: list[asyncio.StreamWriter]) -> None:
        await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)
        self._open.difference_update(ends)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LIMIT)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        self._server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            for end in self._open:
                end.transport.abort()
            await asyncio.wait(tasks, timeout=1)
        for end in self._open:
            end.transport.abort()
        await self._closed(list(self._open))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes as they come, until the end of them."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()

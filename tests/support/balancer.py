"""A TCP balancer before several proxies: each new connection goes to the next one that takes it."""

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class Balancer:
    """``with Balancer(ports) as balancer``: listens on ``balancer.port``.

    ``accepted``: how many connections each target got.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        self.targets = list(targets)
        self.port = 0
        self.accepted = dict.fromkeys(targets, 0)
        self._next = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._relay(reader, writer)
        finally:
            self._connections.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self.targets:
            target = self.targets[self._next % len(self.targets)]
            self._next += 1
            try:
                there, here = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                continue
            self.accepted[target] += 1
            copies = [
                asyncio.create_task(_copy(reader, here)),
                asyncio.create_task(_copy(there, writer)),
            ]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                here.transport.abort()
                await asyncio.gather(*copies, return_exceptions=True)
            break
        writer.transport.abort()
        await asyncio.sleep(0)  # transports close in the next turn

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()

"""Many connections from one process, at the level of messages: what thousands of applications are to a proxy."""

import asyncio
import contextlib
import itertools
import resource
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bson

from support.wire import read_answer

_ids = itertools.count(1)
_HEADER = struct.Struct("<iiii")
CONNECTING_AT_ONCE = 100


def take_descriptors() -> int:
    """Raise this process's limit of open files as far as it goes; the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Caller(asyncio.Protocol):
    """One connection; lean, so that ten thousand of them fit beside what they are to measure."""

    __slots__ = ("_answer", "_data", "asked", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.asked = 0
        self._data = b""
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's callback."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """asyncio's callback."""
        self._data += data
        if len(self._data) >= 4 and len(self._data) >= struct.unpack_from("<i", self._data)[0]:
            answer, self._answer = self._answer, None
            if answer is not None and not answer.done():
                answer.set_result(self._data)
            self._data = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's callback."""
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(exc or ConnectionResetError("closed"))

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command and its reply."""
        body = bson.encode(command)
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(
            _HEADER.pack(21 + len(body), next(_ids) & 0x7FFFFFFF, 0, 2013) + bytes(5) + body
        )
        reply = read_answer(await self._answer).document
        self.asked += 1
        return reply


@dataclass
class Crowd:
    """``callers``: all of them; the first ones are those that work."""

    port: int
    tls: ssl.SSLContext | None = None
    callers: list[Caller] = field(default_factory=list)
    slowest: float = 0.0
    """Seconds that the longest answer to one of those that work took."""

    async def grow(self, size: int, greetings: Sequence[dict[str, Any]]) -> None:
        """Connect until there are ``size``; each one asks ``greetings``, whose replies must be ok."""
        turns = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def one() -> None:
            async with turns:
                _, caller = await asyncio.get_running_loop().create_connection(
                    Caller, "127.0.0.1", self.port, ssl=self.tls
                )
                self.callers.append(caller)
                for greeting in greetings:
                    reply = await caller.ask(greeting)
                    if not reply.get("ok"):
                        raise RuntimeError(f"{greeting}: {reply}")

        await asyncio.gather(*(one() for _ in range(size - len(self.callers))))

    async def work(
        self, size: int, seconds: float, commands: Sequence[dict[str, Any]]
    ) -> list[int]:
        """The first ``size`` ask again and again; how many answers each of them got."""
        end = time.monotonic() + seconds

        async def one(caller: Caller) -> int:
            before = caller.asked
            for command in itertools.cycle(commands):
                started = time.monotonic()
                if started >= end:
                    break
                reply = await caller.ask(command)
                if not reply.get("ok"):
                    raise RuntimeError(f"{command}: {reply}")
                self.slowest = max(self.slowest, time.monotonic() - started)
            return caller.asked - before

        return list(await asyncio.gather(*(one(caller) for caller in self.callers[:size])))

    async def leave(self) -> None:
        """Close every connection."""
        for caller in self.callers:
            caller.transport.abort()
        self.callers.clear()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)

"""Connections to the members of both tiers, pooled per member and user."""

import asyncio
import itertools
import os
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import bson

from thermocline_common import __version__
from thermocline_common.coverage import Tier
from thermocline_common.errors import CommandError
from thermocline_proxy.keep_alive import MEMBER_SECONDS, keep_alive
from thermocline_proxy.log_in import log_in
from thermocline_proxy.observe import Latency
from thermocline_proxy.ports import Identity
from thermocline_proxy.slots import Slots
from thermocline_proxy.times import TierClock, take_times
from thermocline_proxy.wire.frames import FrameBuffer
from thermocline_proxy.wire.header import HEADER_SIZE, INT32, MAX_REPLY_SIZE, ProtocolViolation
from thermocline_proxy.wire.opmsg import encode

CONNECT_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 30.0
"""How long a command waits for a connection where all are busy."""
IDLE_SECONDS: Final = 120.0

_request_ids = itertools.count(1)
_length = INT32.unpack_from


def next_request_id() -> int:
    """A request id for a message of the proxy's own."""
    return next(_request_ids) & 0x7FFFFFFF


class Broken(Exception):
    """The connection ended before the answer came: the command may have been executed."""


class Sink(Protocol):
    """Who waits for the answer on a connection."""

    def on_reply(self, connection: "Upstream", frame: bytes) -> None:
        """The whole reply; the connection isn't released yet."""
        ...

    def on_broken(self, connection: "Upstream") -> None:
        """No reply will come."""
        ...


class FutureSink:
    """A sink for coroutines."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_reply(self, connection: "Upstream", frame: bytes) -> None:
        """Hand the frame to the waiting coroutine."""
        if not self.future.done():
            self.future.set_result(frame)

    def on_broken(self, connection: "Upstream") -> None:
        """Let the waiting coroutine fail."""
        if not self.future.done():
            self.future.set_exception(Broken(connection.pool.address))


class Upstream(asyncio.Protocol):
    """One connection: one command at a time."""

    __slots__ = ("_buffer", "idle_since", "lost", "pool", "sink", "transport")

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.sink: Sink | None = None
        self.lost = False
        self.idle_since = 0.0
        self._buffer = FrameBuffer(MAX_REPLY_SIZE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's callback."""
        self.transport = transport  # type: ignore[assignment]
        keep_alive(transport, MEMBER_SECONDS)

    def send(self, frame: bytes, sink: Sink) -> None:
        """Send one command; exactly one of the sink's methods will be called."""
        self.sink = sink
        assert self.transport is not None
        self.transport.write(frame)

    def data_received(self, data: bytes) -> None:
        """asyncio's callback: a reply, or a part of one."""
        # The usual case without a detour: one whole reply, and somebody waits for it.
        sink = self.sink
        if (
            sink is not None
            and not self._buffer.held
            and len(data) >= HEADER_SIZE
            and _length(data)[0] == len(data)
        ):
            self.sink = None
            sink.on_reply(self, data)
            return
        try:
            frames = self._buffer.feed(data)
        except ProtocolViolation:
            self.abort()
            return
        for frame in frames:
            sink, self.sink = self.sink, None
            if (
                sink is None
            ):  # an answer that nobody asked for: the stream can't be trusted any more
                self.abort()
                return
            sink.on_reply(self, frame)

    def eof_received(self) -> bool:
        """asyncio's callback: the member closes; nothing more is sent to it."""
        self.lost = True
        self.pool.forget(self)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's callback."""
        self.lost = True
        sink, self.sink = self.sink, None
        self.pool.forget(self)
        if sink is not None:
            sink.on_broken(self)

    def discard(self) -> None:
        """Close at once, and let nobody have it any more."""
        self.lost = True
        self.pool.forget(self)
        self.abort()

    def abort(self) -> None:
        """Close at once; whoever waits is told."""
        if self.transport is not None:
            self.transport.abort()

    async def run(self, body: bytes) -> bytes:
        """Send one command and wait for the raw reply document. Raises :class:`Broken`."""
        request_id = next_request_id()
        frame = await self.exchange(encode(request_id, 0, body))
        return frame[21:]

    async def exchange(self, frame: bytes) -> bytes:
        """Send a frame and wait for the reply frame. Raises :class:`Broken`; aborts when cancelled."""
        if self.lost:
            raise Broken(self.pool.address)
        sink = FutureSink()
        self.send(frame, sink)
        try:
            return await sink.future
        except asyncio.CancelledError:
            self.abort()
            raise


@dataclass(slots=True)
class Endpoint:
    """How to reach the members of a tier. ``max_connections``: to one member, of all users."""

    tier: Tier
    clock: TierClock
    max_connections: int
    tls: ssl.SSLContext | None = None
    connect_seconds: float = CONNECT_SECONDS
    latency: Latency = field(default_factory=Latency)


@dataclass(slots=True, eq=False)
class _Waiter:
    """A command that waits for a connection; None: it may open one."""

    future: "asyncio.Future[Upstream | None]"
    since: float

    @property
    def gone(self) -> bool:
        """Whether it was given up."""
        return self.future.done()


class Pool:
    """The connections of one user to one member."""

    def __init__(
        self, endpoint: Endpoint, address: str, identity: Identity | None, slots: "Slots[Pool]"
    ) -> None:
        self.endpoint = endpoint
        self.tier = endpoint.tier
        self.clock = endpoint.clock
        self.latency = endpoint.latency
        self.address = address
        self.identity = identity
        self.slots = slots
        slots.pools.add(self)
        self.idle: list[Upstream] = []
        self.open: set[Upstream] = set()
        self.opening = 0
        self.retired = False
        self.waiting: deque[Any] = deque()

    def take(self) -> Upstream | None:
        """An idle connection, or None."""
        idle = self.idle
        while idle:
            connection = idle.pop()
            if not connection.lost:
                return connection
        return None

    def release(self, connection: Upstream) -> None:
        """Give a connection back after its reply; whoever waits longest gets it."""
        if connection.lost:
            return
        now = connection.idle_since = time.monotonic()
        turn = self.slots.next(self, now) if self.slots.queued else None
        if turn is None:
            self.idle.append(connection)
        elif turn is self:
            self.slots.first(self).future.set_result(connection)
        else:
            connection.abort()  # its end makes room for the other user's

    def forget(self, connection: Upstream) -> None:
        """A connection ended."""
        if connection in self.idle:
            self.idle.remove(connection)
        if connection in self.open:
            self.open.discard(connection)
            self._free()

    def _free(self) -> None:
        """A slot is free: whoever waits longest may open a connection."""
        self.slots.used -= 1
        turn = self.slots.oldest()
        if turn is not None:
            self.slots.used += 1
            self.slots.first(turn).future.set_result(None)

    async def acquire(self, deadline: float) -> Upstream:
        """A connection of one's own until :meth:`release`.

        Raises ``OSError`` or :class:`Broken` where the member can't be reached, ``CommandError``
        where all connections stay busy until ``deadline`` or the member refuses the log-in.
        """
        while True:
            connection = self.take()
            if connection is not None:
                return connection
            if self.slots.take():
                return await self._connect(deadline)
            other = self.slots.idle_elsewhere(self)
            if other is not None:
                other.idle.pop(0).abort()  # its end makes room
            connection = await self._turn(deadline)
            if connection is None:
                return await self._connect(deadline)
            if not connection.lost:
                return connection

    async def _turn(self, deadline: float) -> Upstream | None:
        now = time.monotonic()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), now)
        self.waiting.append(waiter)
        self.slots.queued[self] = None
        try:
            async with asyncio.timeout(max(0.0, deadline - now)):
                return await waiter.future
        except BaseException as error:
            future = waiter.future
            if not future.done() or future.cancelled():
                self.slots.leave(self, waiter)
            elif (connection := future.result()) is None:
                self._free()
            else:
                self.release(connection)
            if isinstance(error, TimeoutError):
                raise CommandError(
                    202,
                    f"no connection to {self.address} became free in time",
                    code_name="NetworkInterfaceExceededTimeLimit",
                ) from None
            raise

    async def _connect(self, deadline: float) -> Upstream:
        self.opening += 1
        host, port = split_address(self.address)
        connection: Upstream | None = None
        limit = min(self.endpoint.connect_seconds, max(0.05, deadline - time.monotonic()))
        try:
            async with asyncio.timeout(limit):
                context = self.endpoint.tls
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Upstream(self),
                    host,
                    port,
                    ssl=context,
                    server_hostname=host if context is not None else None,
                )
                self.open.add(connection)
                await self._greet(connection)
        except BaseException:
            if connection is None:
                self._free()
            else:
                connection.abort()
                self.forget(connection)  # it may have ended before it was known to be open
            raise
        finally:
            self.opening -= 1
        return connection

    async def _greet(self, connection: Upstream) -> None:
        reply = await connection.run(bson.encode({"hello": 1, "client": _METADATA, "$db": "admin"}))
        _, element, operation = take_times(reply)
        self.endpoint.clock.learn(element, operation)
        if self.identity is not None:
            await log_in(connection.run, self.tier.value, self.identity)

    def reap(self, now: float) -> None:
        """Close connections that were idle for long; the most recently used ones stay."""
        while self.idle and now - self.idle[0].idle_since > IDLE_SECONDS:
            connection = self.idle.pop(0)
            if connection.transport is not None:
                connection.transport.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self.open):
            connection.abort()


_METADATA: Final[dict[str, Any]] = {
    "driver": {"name": "thermocline-proxy", "version": __version__},
    "os": {"type": os.uname().sysname},
    "application": {"name": "thermocline-proxy"},
}


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; IPv6 hosts stand in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)

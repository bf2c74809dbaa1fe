"""Connections to the members of both tiers, pooled per member and user."""

import asyncio
import base64
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
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.observe import Latency
from thermocline_proxy.ports import Identity
from thermocline_proxy.scram import ScramError, client_final, client_first
from thermocline_proxy.times import TierClock, take_times
from thermocline_proxy.wire.frames import FrameBuffer
from thermocline_proxy.wire.header import HEADER_SIZE, INT32, MAX_REPLY_SIZE, ProtocolViolation
from thermocline_proxy.wire.opmsg import encode

CONNECT_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 30.0
"""How long a command waits for a connection where all are busy."""
IDLE_SECONDS: Final = 120.0
REAP_SECONDS: Final = 20.0

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
    """How to reach the members of a tier."""

    tier: Tier
    clock: TierClock
    max_connections: int
    tls: ssl.SSLContext | None = None
    connect_seconds: float = CONNECT_SECONDS
    latency: Latency = field(default_factory=Latency)


class Pool:
    """The connections of one user to one member."""

    def __init__(self, endpoint: Endpoint, address: str, identity: Identity | None) -> None:
        self.endpoint = endpoint
        self.tier = endpoint.tier
        self.clock = endpoint.clock
        self.latency = endpoint.latency
        self.address = address
        self.identity = identity
        self.idle: list[Upstream] = []
        self.open: set[Upstream] = set()
        self.opening = 0
        self.retired = False
        self.waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> Upstream | None:
        """An idle connection, or None."""
        idle = self.idle
        while idle:
            connection = idle.pop()
            if not connection.lost:
                return connection
        return None

    def release(self, connection: Upstream) -> None:
        """Give a connection back after its reply."""
        if connection.lost:
            return
        connection.idle_since = time.monotonic()
        self.idle.append(connection)
        if self.waiting:
            self.wake()

    def forget(self, connection: Upstream) -> None:
        """A connection ended."""
        self.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self.wake()

    def wake(self) -> None:
        """Let one of those who wait for a connection look again."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def acquire(self, deadline: float) -> Upstream:
        """A connection of one's own until :meth:`release`.

        Raises ``OSError`` or :class:`Broken` where the member can't be reached, ``CommandError``
        where all connections stay busy until ``deadline`` or the member refuses the log-in.
        """
        while True:
            connection = self.take()
            if connection is not None:
                return connection
            if len(self.open) + self.opening < self.endpoint.max_connections:
                return await self._connect(deadline)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await waiter
            except TimeoutError:
                raise CommandError(
                    202,
                    f"no connection to {self.address} became free in time",
                    code_name="NetworkInterfaceExceededTimeLimit",
                ) from None
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.wake()
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
            if connection is not None:
                connection.abort()
            raise
        finally:
            self.opening -= 1
            if connection is None:
                self.wake()
        return connection

    async def _greet(self, connection: Upstream) -> None:
        reply = await connection.run(bson.encode({"hello": 1, "client": _METADATA, "$db": "admin"}))
        _, element, operation = take_times(reply)
        self.endpoint.clock.learn(element, operation)
        if self.identity is not None:
            await _log_in(connection, self.identity)

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


async def _log_in(connection: Upstream, identity: Identity) -> None:
    """SCRAM with the keys that the client's own proof gave. Raises :class:`CommandError` 18."""
    nonce = base64.b64encode(os.urandom(24)).decode()
    bare, payload = client_first(identity.user, nonce)
    start = await _sasl(
        connection,
        {
            "saslStart": 1,
            "mechanism": identity.mechanism,
            "payload": payload,
            "options": {"skipEmptyExchange": True},
            "$db": identity.database,
        },
    )
    try:
        answer, expected = client_final(
            bare,
            nonce,
            bytes(start["payload"]),
            identity.mechanism,
            identity.client_key,
            identity.server_key,
        )
    except ScramError as error:
        raise CommandError(Code.AuthenticationFailed, "Authentication failed.") from error
    final = await _sasl(
        connection,
        {
            "saslContinue": 1,
            "conversationId": start["conversationId"],
            "payload": answer,
            "$db": identity.database,
        },
    )
    if bytes(final["payload"]) != expected:
        raise CommandError(Code.AuthenticationFailed, "Authentication failed.")
    while not final["done"]:
        final = await _sasl(
            connection,
            {
                "saslContinue": 1,
                "conversationId": start["conversationId"],
                "payload": b"",
                "$db": identity.database,
            },
        )


async def _sasl(connection: Upstream, command: dict[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = bson.decode(await connection.run(bson.encode(command)))
    if not reply.get("ok"):
        raise CommandError(
            int(reply.get("code", Code.AuthenticationFailed)),
            f"the {connection.pool.tier.value} tier refused the log-in: {reply.get('errmsg', '')}",
            code_name=reply.get("codeName"),
        )
    return reply


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; IPv6 hosts stand in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(slots=True)
class Pools:
    """All pools of both tiers."""

    endpoints: dict[Tier, Endpoint]
    pools: dict[tuple[Tier, str, Identity | None], Pool] = field(default_factory=dict)

    def pool(self, tier: Tier, address: str, identity: Identity | None) -> Pool:
        """The pool, made where there is none yet."""
        key = (tier, address, identity)
        found = self.pools.get(key)
        if found is None:
            found = self.pools[key] = Pool(self.endpoints[tier], address, identity)
        return found

    def connected(self, tier: Tier, identity: Identity | None) -> bool:
        """Whether this user has a connection to the tier."""
        return any(
            pool.open for (at, _, who), pool in self.pools.items() if at is tier and who == identity
        )

    async def reap(self) -> None:
        """Close idle connections, again and again."""
        while True:
            await asyncio.sleep(REAP_SECONDS)
            now = time.monotonic()
            for key, pool in list(self.pools.items()):
                pool.reap(now)
                if not pool.open and not pool.opening:
                    pool.retired = True
                    del self.pools[key]

    def close(self) -> None:
        """Close everything."""
        for pool in self.pools.values():
            pool.close()

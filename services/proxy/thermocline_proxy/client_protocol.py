"""One client's connection: cuts frames, relays on the short path, hands the rest to the dispatcher.

Answers come in the order of the commands: one command of a client is in hand at a time. The short
path is synchronous from the client's bytes to the member's socket and back, without a task or a
future; it takes commands on one untiered namespace, and reads by ``_id`` of tiered ones.
"""

import asyncio
import logging
import struct
import time
from collections import deque
from typing import cast

from thermocline_common.coverage import Tier
from thermocline_common.errors import NOT_PRIMARY, Code, CommandError
from thermocline_proxy.commands.catalog import ends_with_client
from thermocline_proxy.cursors import CURSOR_FIRST, first_batch_is_empty, reply_cursor
from thermocline_proxy.dispatch import Dispatcher
from thermocline_proxy.exchange import broken_error, error_code, failure_labels, logged_out
from thermocline_proxy.flow import Flow
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.keep_alive import CLIENT_SECONDS, keep_alive
from thermocline_proxy.legacy import answer_legacy
from thermocline_proxy.relay import BODY, PLAIN, Relay
from thermocline_proxy.sessions import ClientSession
from thermocline_proxy.times import has_tail, learn_tail, swap_tail, with_tail
from thermocline_proxy.upstream import Pool, Upstream, next_request_id
from thermocline_proxy.wire import opmsg
from thermocline_proxy.wire.compression import COMPRESSED, Compressor, announced, pack, unpack
from thermocline_proxy.wire.frames import FrameBuffer
from thermocline_proxy.wire.header import (
    CHECKSUM_PRESENT,
    EXHAUST_ALLOWED,
    HEADER,
    INT32,
    MAX_MESSAGE_SIZE,
    MORE_TO_COME,
    OP_MSG,
    ProtocolViolation,
    WireError,
)
from thermocline_proxy.wire.replies import code_name, error_document, error_reply
from thermocline_proxy.wire.scan import scan

log = logging.getLogger(__name__)

_FIRST = BODY + 4
_INLINE = 32 * 1024
"""Messages of up to so many bytes are packed and unpacked at once; longer ones in another thread."""
_monotonic = time.monotonic
_length = INT32.unpack_from


class ClientProtocol(asyncio.Protocol):
    """See the module."""

    def __init__(
        self, proxy: Proxy, dispatcher: Dispatcher, connections: set["ClientProtocol"], number: int
    ) -> None:
        self._proxy = proxy
        self._dispatcher = dispatcher
        self._connections = connections
        self.session = ClientSession(number, "")
        limits = proxy.limits
        self._limit = MAX_MESSAGE_SIZE if limits is None else limits.message
        self._buffer = FrameBuffer(self._limit)
        self._compressor: Compressor | None = None
        """How the command in hand was packed; its answer will be, too."""
        self._waiting: deque[bytes] = deque()
        self._busy = False
        self._closing = False
        self._leaving = False
        self._frame = b""
        self._upstream: Upstream | None = None
        self._started = 0.0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._flow: Flow
        self._relay = Relay(proxy, self.session)
        self._fast_clock = proxy.clock(Tier.FAST)
        self._sampler = proxy.gateway.sampler
        self._owners = proxy.owners
        self._observer = proxy.observer

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        # uvloop's transports don't inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._flow = Flow(self._transport)
        peer = transport.get_extra_info("peername")
        self.session.peer = f"{peer[0]}:{peer[1]}" if peer else ""
        self.session.owner = self._owners.join((self.session.host, b""))
        keep_alive(transport, CLIENT_SECONDS)
        self._connections.add(self)
        self._observer.connections += 1
        self._observer.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what reads for it stops, what has begun to write goes on to its end."""
        self._closing = True
        self.session.gone = True
        self._waiting.clear()
        self._connections.discard(self)
        self._observer.connections -= 1
        if self._upstream is not None:
            self._upstream.abort()
        elif self._task is not None and ends_with_client(self._frame):
            self._task.cancel()
        frame = self._frame if self._busy else b""
        self._owners.leave(self.session.owner, self.session.identity, frame)

    def pause_writing(self) -> None:
        """The client doesn't take its answers."""
        self._flow.block()

    def resume_writing(self) -> None:
        """It does again."""
        self._flow.unblock()
        self._pump()

    def eof_received(self) -> bool:
        """The client sends no more: close."""
        return False

    def data_received(self, data: bytes) -> None:
        """The next bytes of the client."""
        self._observer.bytes_in += len(data)
        quiet = not (self._busy or self._waiting or self._flow.blocked)
        if quiet and not self._buffer.held and len(data) > 26 and _length(data)[0] == len(data):
            # The usual case without a detour: one whole command, much like the one before.
            routed = self._relay.repeat(data)
            if routed is not None:
                upstream, frame = routed
                self._busy = True
                self._frame = data
                self._compressor = None
                self._upstream = upstream
                self._started = _monotonic()
                upstream.sink = self
                upstream.transport.write(frame)  # type: ignore[union-attr]
                return
        try:
            frames = self._buffer.feed(data)
        except ProtocolViolation:
            self._proxy.complaints.unreadable(self.session.host, data)
            self._close()
            return
        if quiet and len(frames) == 1:
            self._begin(frames[0])
            return
        self._waiting.extend(frames)
        self._pump()

    # One command after the other.

    def _pump(self) -> None:
        waiting = self._waiting
        while waiting and not self._busy and not self._flow.blocked and not self._closing:
            self._begin(waiting.popleft())
        self._flow.waiting(len(waiting))

    def _begin(self, frame: bytes) -> None:
        self._busy = True
        self._compressor = None
        if frame[12:16] == COMPRESSED:
            try:
                if max(len(frame), announced(frame)) > _INLINE:
                    self._frame = frame
                    self._serve(frame)
                    return
                frame, self._compressor = unpack(frame, self._limit)
            except ProtocolViolation:
                self._close()
                return
        self._frame = frame
        if frame[12:BODY] == PLAIN:
            try:
                routed = self._relay.route(frame)
            except (WireError, CommandError, struct.error, ValueError, LookupError):
                routed = None  # the long path says what is wrong with it
            if routed is not None:
                self._send(*routed)
                return
        self._serve(frame)

    def _send(self, upstream: Upstream, frame: bytes) -> None:
        self._upstream = upstream
        self._started = _monotonic()
        upstream.sink = self
        upstream.transport.write(frame)  # type: ignore[union-attr]

    def _serve(self, frame: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._answer(frame))

    def _done(self) -> None:
        self._busy = False
        if self._waiting:
            self._pump()
        if self._leaving and not self._busy:
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._transport.close()

    def leave(self) -> None:
        """Close as soon as no command is in hand."""
        self._leaving = True
        if not self._busy:
            self._close()

    @property
    def resting(self) -> bytes | None:
        """The command that was answered last, another object for each; None: one is in hand."""
        return None if self._busy else self._frame

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._transport.abort()

    # The short path.

    def on_reply(self, connection: Upstream, frame: bytes) -> None:
        """The answer to a relayed command."""
        self._upstream = None
        pool = connection.pool
        if frame[8:12] != self._frame[4:8]:
            connection.abort()
            self.abort()
            return
        now = _monotonic()
        latency = pool.latency
        latency.add(took := now - self._started)
        self._relay.read.add(took)
        clock = pool.clock
        good = frame.endswith(clock.ok_tail)
        if not good and has_tail(frame):
            good = True
            learn_tail(frame, clock)
        if good and frame.startswith(CURSOR_FIRST, _FIRST) and (cursor_id := reply_cursor(frame)):
            self._proxy.cursors.remember(cursor_id, pool.tier, pool.address)
            self._owners.opened(self.session, cursor_id, frame)
        connection.idle_since = now
        if pool.slots.queued:
            pool.release(connection)
        else:
            pool.idle.append(connection)
        if not good:
            if logged_out(pool, frame):
                connection.discard()
            self._on_unusual_reply(pool, frame)
            return
        if clock is not self._fast_clock:
            frame = swap_tail(frame, self._fast_clock.tail)
        elif first_batch_is_empty(frame):
            self._serve(self._frame)
            return
        else:
            self._relay.fast.n += 1
        latency.relayed += 1
        self._relay.count.n += 1
        self._observer.bytes_out += len(frame)
        if self._compressor is None:
            self._transport.write(frame)
        elif len(frame) <= _INLINE:
            self._transport.write(pack(frame, self._compressor))
        else:
            self._task = asyncio.get_running_loop().create_task(self._deliver(frame))
            return
        self._busy = False
        if self._sampler.share and clock is self._fast_clock:
            self._sampler.relayed(self._frame, frame, self.session.identity)
        if self._waiting or self._leaving:
            self._done()

    def _on_unusual_reply(self, pool: Pool, frame: bytes) -> None:
        if pool.tier is Tier.FAST:
            self._serve(self._frame)  # the long path knows what to make of F's errors
            return
        pool.latency.relayed += 1
        self._relay.count.n += 1
        reply = self._proxy.exchange.received(pool, frame)
        self._deliver_soon(reply.raw)

    def on_broken(self, connection: Upstream) -> None:
        """The member's connection ended behind a relayed command, which may have been executed."""
        self._upstream = None
        if self._closing:
            return
        pool = connection.pool
        spans = scan(self._frame, 21)
        name = self._frame[26 : self._frame.index(0, 26)].decode("utf-8", "replace")
        error = broken_error(pool.address, pool.tier, failure_labels(spans, name))
        self._observer.error(error.code_name)
        self._deliver_soon(error_reply(error))

    def _deliver_soon(self, body: bytes) -> None:
        frame = self._reply(body, HEADER.unpack_from(self._frame)[1])
        self._task = asyncio.get_running_loop().create_task(self._deliver(frame))

    async def _deliver(self, frame: bytes) -> None:
        """The end of the short path for answers that may take a while to pack."""
        try:
            await self._write(frame)
        finally:
            self._task = None
        self._done()

    def _reply(self, body: bytes, response_to: int, flags: int = 0) -> bytes:
        body = with_tail(body, self._fast_clock.tail)
        return opmsg.encode(next_request_id(), response_to, body, flags=flags)

    async def _write(self, frame: bytes) -> None:
        compressor = self._compressor
        if compressor is not None:
            if len(frame) <= _INLINE:
                frame = pack(frame, compressor)
            else:
                frame = await asyncio.to_thread(pack, frame, compressor)
        if not self._closing:
            self._observer.bytes_out += len(frame)
            self._transport.write(frame)

    # The long path.

    async def _answer(self, frame: bytes) -> None:
        try:
            if frame[12:16] == COMPRESSED:
                frame, self._compressor = await asyncio.to_thread(unpack, frame, self._limit)
                self._frame = frame
            await self._answer_frame(frame)
        except ProtocolViolation:
            self._close()
        except Exception:  # noqa: BLE001  # logged there, unless the client is to blame
            await self._apologize(frame)
        finally:
            self._task = None
        self._done()

    async def _apologize(self, frame: bytes) -> None:
        """Within an exception that nobody foresaw: damage within the documents, or a fault of the proxy."""
        if HEADER.unpack_from(frame)[3] != OP_MSG:
            self._close()
            return
        damage = opmsg.damage(frame)
        if damage is None:
            log.exception("a command of %s could not be answered", self.session.peer)
            damage = WireError(Code.InternalError, "the proxy failed to answer: see its log")
        if not opmsg.read_flags(frame) & MORE_TO_COME:
            body = error_document(damage.code, damage.message, code_name(damage.code))
            await self._write(self._reply(body, HEADER.unpack_from(frame)[1]))

    async def _answer_frame(self, frame: bytes) -> None:
        opcode = HEADER.unpack_from(frame)[3]
        if opcode != OP_MSG:
            await self._write(await answer_legacy(frame, opcode, self._dispatcher, self.session))
            return
        flags = opmsg.read_flags(frame)
        response_to: int = HEADER.unpack_from(frame)[1]
        try:
            message = opmsg.parse(frame)
        except WireError as error:
            body = error_document(error.code, error.message, code_name(error.code))
            if not flags & MORE_TO_COME:
                await self._write(self._reply(body, response_to, flags & CHECKSUM_PRESENT))
            return
        self._observer.command(frame[26 : frame.find(b"\0", 26)].decode("utf-8", "replace"))
        while True:
            body = await self._body(message)
            if flags & MORE_TO_COME:
                if error_code(body) in NOT_PRIMARY:
                    raise ProtocolViolation("the primary changed under unacknowledged writes")
                return
            more = flags & EXHAUST_ALLOWED and self._goes_on(message, body)
            reply = self._reply(
                body, response_to, flags & CHECKSUM_PRESENT | (MORE_TO_COME if more else 0)
            )
            await self._write(reply)
            if not more:
                return
            response_to = HEADER.unpack_from(reply)[1]
            await self._flow.writable()

    async def _body(self, message: opmsg.Message) -> bytes:
        try:
            body = await self._dispatcher.answer(message, self.session)
            if cursor_id := reply_cursor(body, 4):
                self._owners.opened(self.session, cursor_id, body, 4)
            return body
        except WireError as error:
            return error_document(error.code, error.message, code_name(error.code))
        except CommandError as error:
            self._observer.error(error.code_name)
            return error_reply(error)

    def _goes_on(self, message: opmsg.Message, body: bytes) -> bool:
        """Whether an exhaust cursor has more to give, which the client gets without asking."""
        asked = message.body.startswith(b"getMore\0", 5)
        return asked and reply_cursor(body, 4) != 0 and not (self._closing or self._proxy.draining)

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
from thermocline_common.sessions import PREFIX
from thermocline_proxy.commands.catalog import CATALOG, RELAYED, Kind
from thermocline_proxy.cursors import first_batch_is_empty, reply_cursor
from thermocline_proxy.dispatch import Dispatcher
from thermocline_proxy.exchange import broken_error, error_code, failure_labels
from thermocline_proxy.flow import Flow
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.legacy import answer_legacy
from thermocline_proxy.ports import Identity
from thermocline_proxy.sessions import ClientSession
from thermocline_proxy.state import Standing
from thermocline_proxy.times import ELEMENT_SIZE, has_tail, learn_tail, swap_tail, with_tail
from thermocline_proxy.upstream import Pool, Upstream, next_request_id
from thermocline_proxy.wire import opmsg
from thermocline_proxy.wire.frames import FrameBuffer
from thermocline_proxy.wire.header import (
    HEADER,
    INT32,
    MORE_TO_COME,
    OP_MSG,
    ProtocolViolation,
    WireError,
)
from thermocline_proxy.wire.replies import code_name, error_document, error_reply
from thermocline_proxy.wire.scan import Spans, scan

log = logging.getLogger(__name__)

_PLAIN = INT32.pack(OP_MSG) + bytes(5)
"""Opcode, no flags, and a kind-0 section first."""
_AFTER = b"afterClusterTime"
_CONCERNS = frozenset((b"level", b"provenance", _AFTER))
_LEVELS = frozenset((b"local\0", b"majority\0", b"available\0"))
_POINT_FIELDS = frozenset(
    (b"find", b"filter", b"limit", b"singleBatch", b"batchSize", b"lsid", b"$clusterTime", b"$db", b"projection", b"comment", b"readConcern")
)  # fmt: skip
_U64 = struct.Struct("<Q")
_monotonic = time.monotonic


class ClientProtocol(asyncio.Protocol):
    """See the module."""

    def __init__(
        self, proxy: Proxy, dispatcher: Dispatcher, connections: set["ClientProtocol"], number: int
    ) -> None:
        self._proxy = proxy
        self._dispatcher = dispatcher
        self._connections = connections
        self.session = ClientSession(number, "")
        self._buffer = FrameBuffer()
        self._waiting: deque[bytes] = deque()
        self._busy = False
        self._closing = False
        self._frame = b""
        self._upstream: Upstream | None = None
        self._started = 0.0
        self._point = False
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._flow: Flow
        self._pools: dict[Tier, Pool] = {}
        self._pooled_for: Identity | None = None
        self._leases = proxy.leases
        self._archive_clock = proxy.clock(Tier.ARCHIVE)
        self._fast_clock = proxy.clock(Tier.FAST)

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        # uvloop's transports don't inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._flow = Flow(self._transport)
        peer = transport.get_extra_info("peername")
        self.session.peer = f"{peer[0]}:{peer[1]}" if peer else ""
        self._connections.add(self)
        self._proxy.observer.connections += 1
        self._proxy.observer.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what reads for it stops, what writes goes on to its end."""
        self._closing = True
        self._waiting.clear()
        self._connections.discard(self)
        self._proxy.observer.connections -= 1
        if self._upstream is not None:
            self._upstream.abort()
        elif self._task is not None and self._reads():
            self._task.cancel()

    def _reads(self) -> bool:
        end = self._frame.find(b"\0", 26)
        entry = CATALOG.get(self._frame[26:end].decode("utf-8", "replace"))
        return entry is None or entry.kind in (Kind.READ, Kind.CURSOR, Kind.LOCAL, Kind.LOGIN)

    def pause_writing(self) -> None:
        """The client doesn't take its answers."""
        self._flow.blocked = True

    def resume_writing(self) -> None:
        """It does again."""
        self._flow.blocked = False
        self._pump()

    def eof_received(self) -> bool:
        """The client sends no more: close."""
        return False

    def data_received(self, data: bytes) -> None:
        """The next bytes of the client."""
        try:
            frames = self._buffer.feed(data)
        except ProtocolViolation:
            self._close()
            return
        if len(frames) == 1 and not self._busy and not self._waiting and not self._flow.blocked:
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
        self._frame = frame
        if frame[12:21] == _PLAIN:
            try:
                if self._relay(frame):
                    return
            except (WireError, CommandError, struct.error, ValueError, IndexError):
                pass  # the long path says what is wrong with it
        self._serve(frame)

    def _serve(self, frame: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._answer(frame))

    def _done(self) -> None:
        self._busy = False
        if self._proxy.draining:
            self._close()
        elif self._waiting:
            self._pump()

    def _close(self) -> None:
        self._closing = True
        self._transport.close()

    def drain(self) -> None:
        """Close as soon as no command is in hand."""
        if not self._busy:
            self._close()

    @property
    def busy(self) -> bool:
        """Whether a command is in hand."""
        return self._busy

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._transport.abort()

    # The short path.

    def _relay(self, frame: bytes) -> bool:
        """Send the command to its member now; False: it needs the long path."""
        entry = RELAYED.get(frame[26 : frame.index(0, 26)])
        if entry is None:
            return False
        session = self.session
        proxy = self._proxy
        if session.identity is None and proxy.logins.may_be_required:
            return False
        spans = scan(frame, 21)
        kind, _, start, end = next(iter(spans.values()))
        database = spans[b"$db"]
        if kind != 2 or database[0] != 2:
            return False
        leases = self._leases
        snapshot = leases.snapshot
        standing = leases.standing(
            frame[database[2] + 4 : database[3] - 1] + b"." + frame[start + 4 : end - 1]
        )
        if standing is Standing.UNTIERED:
            if _monotonic() >= snapshot.untiered_expires:
                return False
            tier = Tier.ARCHIVE
            clock = self._archive_clock
        elif standing is Standing.POINTS_ON_FAST:
            if (
                entry.name != "find"
                or _monotonic() >= snapshot.expires
                or not is_point(frame, spans)
            ):
                return False
            tier = Tier.FAST
            clock = self._fast_clock
        else:
            return False
        lsid = spans.get(b"lsid")
        if lsid is not None and frame.find(PREFIX, lsid[2], lsid[3]) >= 0:
            return False
        preference = spans.get(b"$readPreference")
        if preference is None or entry.kind is Kind.WRITE:
            if entry.any_member and proxy.settings().default_preference is not None:
                return False
            address = proxy.upstreams.members[tier].primary
        else:
            address = proxy.upstreams.members[tier].choose(frame[preference[2] : preference[3]])
        if address is None:
            return False
        pool = self._pools.get(tier)
        if (
            pool is None
            or pool.address != address
            or pool.retired
            or self._pooled_for is not session.identity
        ):
            if self._pooled_for is not session.identity:
                self._pools.clear()
                self._pooled_for = session.identity
            pool = self._pools[tier] = proxy.upstreams.pools.pool(tier, address, session.identity)
        concern = spans.get(b"readConcern")
        if concern is not None:
            if tier is Tier.FAST:
                now = 0
            elif address == proxy.upstreams.members[tier].primary:
                now = clock.operation
                if not now:
                    return False
            else:
                return False
            changed = with_time(frame, concern, now)
            if changed is None:
                return False
            frame = changed
        if tier is Tier.ARCHIVE:
            cluster_time = spans.get(b"$clusterTime")
            if cluster_time is not None:
                _, begin, _, finish = cluster_time
                if finish - begin != ELEMENT_SIZE or len(clock.element) != ELEMENT_SIZE:
                    return False
                frame = frame[:begin] + clock.element + frame[finish:]
        upstream = pool.take()
        if upstream is None:
            return False
        self._point = tier is Tier.FAST
        self._upstream = upstream
        self._started = _monotonic()
        upstream.send(frame, self)
        return True

    def on_reply(self, connection: Upstream, frame: bytes) -> None:
        """The answer to a relayed command."""
        self._upstream = None
        pool = connection.pool
        if frame[8:12] != self._frame[4:8]:
            connection.abort()
            self.abort()
            return
        proxy = self._proxy
        tier = pool.tier
        latency = _monotonic() - self._started
        proxy.observer.latency[tier].add(latency)
        if has_tail(frame):
            if frame[25:33] == b"\x03cursor\0":
                cursor_id = reply_cursor(frame)
                if cursor_id:
                    proxy.cursors.remember(cursor_id, tier, pool.address)
            if tier is Tier.ARCHIVE:
                learn_tail(frame, self._archive_clock)
                pool.release(connection)
                proxy.observer.relayed[tier] += 1
                self._transport.write(swap_tail(frame, self._fast_clock.tail))
                self._done()
                return
            learn_tail(frame, self._fast_clock)
            pool.release(connection)
            if self._point and first_batch_is_empty(frame):
                self._serve(self._frame)
                return
            proxy.observer.relayed[tier] += 1
            self._transport.write(frame)
            self._done()
            return
        pool.release(connection)
        if tier is Tier.FAST:
            self._serve(self._frame)  # the long path knows what to make of F's errors
            return
        proxy.observer.relayed[tier] += 1
        reply = proxy.exchange.received(pool, frame)
        self._write_reply(reply.raw, HEADER.unpack_from(self._frame)[1])
        self._done()

    def on_broken(self, connection: Upstream) -> None:
        """The member's connection ended behind a relayed command, which may have been executed."""
        self._upstream = None
        if self._closing:
            return
        pool = connection.pool
        spans = scan(self._frame, 21)
        name = self._frame[26 : self._frame.index(0, 26)].decode("utf-8", "replace")
        error = broken_error(pool.address, pool.tier, failure_labels(spans, name))
        self._proxy.observer.error(error.code_name)
        self._write_reply(error_reply(error), HEADER.unpack_from(self._frame)[1])
        self._done()

    def _write_reply(self, body: bytes, response_to: int) -> None:
        if not self._closing:
            body = with_tail(body, self._fast_clock.tail)
            self._transport.write(opmsg.encode(next_request_id(), response_to, body))

    # The long path.

    async def _answer(self, frame: bytes) -> None:
        try:
            await self._answer_frame(frame)
        except ProtocolViolation:
            self._close()
        except Exception:
            log.exception("a command of %s could not be answered", self.session.peer)
            body = error_document(
                Code.InternalError,
                "the proxy failed to answer: see its log",
                Code.InternalError.name,
            )
            self._write_reply(body, HEADER.unpack_from(frame)[1])
        finally:
            self._task = None
        self._done()

    async def _answer_frame(self, frame: bytes) -> None:
        opcode = HEADER.unpack_from(frame)[3]
        if opcode != OP_MSG:
            reply = await answer_legacy(frame, opcode, self._dispatcher, self.session)
            if not self._closing:
                self._transport.write(reply)
            return
        flags = opmsg.read_flags(frame)
        try:
            body = await self._dispatcher.answer(opmsg.parse(frame), self.session)
        except WireError as error:
            body = error_document(error.code, error.message, code_name(error.code))
        except CommandError as error:
            self._proxy.observer.error(error.code_name)
            body = error_reply(error)
        if flags & MORE_TO_COME:
            if error_code(body) in NOT_PRIMARY:
                raise ProtocolViolation("the primary changed under unacknowledged writes")
            return
        self._write_reply(body, HEADER.unpack_from(frame)[1])


def is_point(frame: bytes, spans: Spans) -> bool:
    """Whether a find asks for one ``_id`` and nothing else that could matter to its completeness."""
    found = spans.get(b"filter")
    if found is None or found[0] != 3 or not spans.keys() <= _POINT_FIELDS:
        return False
    inner = scan(frame, found[2])
    if len(inner) != 1:
        return False
    value = inner.get(b"_id")
    if value is None or value[0] in (0x04, 0x06, 0x0B):
        return False  # arrays match elements too, and regular expressions match strings
    return value[0] != 3 or frame[value[2] + 4] == 0 or frame[value[2] + 5] != 0x24


def with_time(frame: bytes, concern: tuple[int, int, int, int], now: int) -> bytes | None:
    """The frame with ``now`` (0: leave it) in place of the ``afterClusterTime`` of its readConcern.

    None: a readConcern for the long path.
    """
    kind, _, start, _ = concern
    if kind != 3:
        return None
    fields = scan(frame, start)
    if not fields.keys() <= _CONCERNS:
        return None
    level = fields.get(b"level")
    if level is not None and (level[0] != 2 or frame[level[2] + 4 : level[3]] not in _LEVELS):
        return None
    after = fields.get(_AFTER)
    if after is None or now == 0:
        return frame if after is None or after[0] == 0x11 else None
    if after[0] != 0x11:
        return None
    return frame[: after[2]] + _U64.pack(now) + frame[after[3] :]

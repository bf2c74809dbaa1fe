"""The short path: commands that need no decision beyond their namespace, routed without waiting.

:meth:`Relay.route` reads a command's top-level fields and finds a free connection for it.
:meth:`Relay.repeat` does the same for a command that differs from the one before only inside one
value (a filter, documents), which is what most traffic of a connection looks like: then comparing
two byte strings proves everything that was read from the one before.
"""

import struct
import time
from dataclasses import dataclass

from thermocline_common.coverage import Tier
from thermocline_common.sessions import PREFIX
from thermocline_proxy.commands.catalog import RELAYED, Kind
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.leaving import Phase
from thermocline_proxy.members import Members
from thermocline_proxy.observe import Counter, Latency, Uncounted
from thermocline_proxy.ports import Identity
from thermocline_proxy.sessions import ClientSession
from thermocline_proxy.state import Standing
from thermocline_proxy.times import ELEMENT_SIZE, TierClock
from thermocline_proxy.upstream import Pool, Upstream
from thermocline_proxy.wire.header import INT32, OP_MSG
from thermocline_proxy.wire.scan import Spans, scan

PLAIN = INT32.pack(OP_MSG) + bytes(5)
"""Opcode, no flags, and a kind-0 section first."""
BODY = 21
"""Where the body of such a message begins."""
_FIRST = BODY + 4
_AFTER = b"afterClusterTime"
_CONCERN_FIELDS = frozenset((b"level", b"provenance", _AFTER))
_LEVELS = frozenset((b"local\0", b"majority\0", b"available\0"))
_POINT_FIELDS = frozenset(
    (
        b"find", b"filter", b"limit", b"singleBatch", b"batchSize", b"lsid", b"$clusterTime",
        b"$db", b"projection", b"comment", b"readConcern",
    )
)  # fmt: skip
_WINDOWS = (b"filter", b"documents", b"updates", b"deletes", b"query")
_SAFE_IDS = {0x01: 8, 0x07: 12, 0x09: 8, 0x10: 4, 0x12: 8}
"""Types of ``_id`` whose equality is plain, with the size of their values."""
_NO_READ = Uncounted()
_U64 = struct.Struct("<Q")
_unpack = INT32.unpack_from
_monotonic = time.monotonic


@dataclass(slots=True)
class Plan:
    """What was found out about a command, for its likes.

    ``head``: the bytes from the first field to ``window``, where the one value begins that may
    differ; ``tail``: all behind that value; ``sent_tail``: what is sent in its place.
    ``cluster_time``: where in the tail the ``$clusterTime`` is that was replaced by ``element``, or
    -1. ``points``: only filters by a plain ``_id`` qualify.
    """

    token: object
    identity: Identity | None
    head: bytes
    window: int
    tail: bytes
    sent_tail: bytes
    cluster_time: int
    element: bytes
    points: bool
    pool: Pool
    members: Members
    clock: TierClock


class Relay:
    """Routes the commands of one client connection."""

    def __init__(self, proxy: Proxy, session: ClientSession) -> None:
        self._proxy = proxy
        self._session = session
        self._leases = proxy.leases
        self._plan: Plan | None = None
        self.count = Counter()
        """Of the command that was routed last."""
        self.read: Latency = _NO_READ
        """Where that command's time counts, if it is a read."""
        self.fast = Counter()
        """Where it counts if the fast tier has the answer: of the collection that it reads."""

    def repeat(self, frame: bytes) -> tuple[Upstream, bytes] | None:
        """A connection and the frame to send, for a command like the last; None: not that simple."""
        plan = self._plan
        if plan is None:
            return None
        window = plan.window
        tail = plan.tail
        size = len(frame)
        leases = self._leases
        if (
            plan.token is not leases.token
            or not frame.startswith(PLAIN, 12)
            or not frame.startswith(plan.head, _FIRST)
            or size < window + 5 + len(tail)
            or not frame.endswith(tail)
            or _unpack(frame, BODY)[0] != size - BODY
            or _unpack(frame, window)[0] != size - window - len(tail)
            or plan.identity is not self._session.identity
        ):
            return None
        now = _monotonic()
        snapshot = leases.snapshot
        pool = plan.pool
        if plan.points:
            if now >= snapshot.expires or not _plain_point(frame, window, size - len(tail)):
                return None
        elif now >= snapshot.untiered_expires:
            return None
        if pool.retired or pool.address != plan.members.primary_at(now) or not pool.idle:
            return None
        upstream = pool.idle.pop()
        if upstream.lost:
            return None
        at = plan.cluster_time
        if at < 0:
            return upstream, frame
        element = plan.clock.element
        if element is not plan.element:
            plan.element = element
            plan.sent_tail = tail[:at] + element + tail[at + ELEMENT_SIZE :]
        return upstream, frame[: size - len(tail)] + plan.sent_tail

    def route(self, frame: bytes) -> tuple[Upstream, bytes] | None:
        """A connection and the frame to send; None: it needs the long path.

        ``frame`` begins with a header, no flags and a kind-0 section. Raises ``WireError``,
        ``LookupError``, ``ValueError``, ``struct.error`` or ``CommandError`` for what isn't a
        proper command; the long path words the error.
        """
        self._plan = None
        entry = RELAYED.get(frame[_FIRST + 1 : frame.index(0, _FIRST + 1)])
        session = self._session
        proxy = self._proxy
        if entry is None or (session.identity is None and proxy.logins.may_be_required):
            return None
        if proxy.leaving.phase is Phase.LEAVING or proxy.fail_point.on:
            return None
        spans = scan(frame, BODY)
        kind, _, start, end = next(iter(spans.values()))
        database = spans[b"$db"]
        if kind != 2 or database[0] != 2 or b"autocommit" in spans:
            return None
        leases = self._leases
        snapshot = leases.snapshot
        namespace = frame[database[2] + 4 : database[3] - 1] + b"." + frame[start + 4 : end - 1]
        standing = leases.standing(namespace)
        tier = Tier.ARCHIVE
        if standing is Standing.UNTIERED:
            expires = snapshot.untiered_expires
        elif (
            standing is Standing.POINTS_ON_FAST and entry.name == "find" and is_point(frame, spans)
        ):
            tier = Tier.FAST
            expires = snapshot.expires
        else:
            return None
        lsid = spans.get(b"lsid")
        if lsid is not None and frame.find(PREFIX, lsid[2], lsid[3]) >= 0:
            return None
        members = proxy.upstreams.members[tier]
        primary = members.primary
        preference = spans.get(b"$readPreference")
        address = primary
        if entry.any_member:
            if preference is not None:
                address = members.choose(frame[preference[2] : preference[3]])
            elif proxy.settings().preference(tier) is not None:
                return None
        if address is None or (address != primary and not proxy.clock(Tier.FAST).operation):
            return None
        clock = proxy.clock(tier)
        sent = frame
        concern = spans.get(b"readConcern")
        if concern is not None:
            now = 0 if tier is Tier.FAST else clock.operation
            if tier is Tier.ARCHIVE and (address != primary or not now):
                return None
            changed = with_time(sent, concern, now, clock.time)
            if changed is None:
                return None
            sent = changed
        cluster_time = spans.get(b"$clusterTime")
        if cluster_time is not None:
            # Also for F: a client may have spoken to the archive directly, and F would take its
            # time for its own (without logins) or refuse the command (with them).
            _, begin, _, finish = cluster_time
            if finish - begin != ELEMENT_SIZE or len(clock.element) != ELEMENT_SIZE:
                return None
            sent = sent[:begin] + clock.element + sent[finish:]
        if _monotonic() >= expires:
            return None
        pool = proxy.upstreams.pools.pool(tier, address, session.identity)
        upstream = pool.take()
        if upstream is None:
            return None
        self.count = proxy.observer.commands[entry.name]
        if tier is Tier.FAST:
            self.fast = proxy.observer.collection(namespace.decode(errors="replace")).fast
        self.read = _NO_READ
        if entry.kind is Kind.READ:
            wanted = None if preference is None else frame[preference[2] : preference[3]]
            self.read = proxy.observer.read(tier, members.choice(wanted, address))
        if (
            preference is None
            and concern is None
            and (tier is Tier.FAST or entry.kind in (Kind.READ, Kind.WRITE))
        ):
            self._plan = self._planned(
                frame, sent, spans, pool, members, clock, points=tier is Tier.FAST
            )
        return upstream, sent

    def _planned(
        self,
        frame: bytes,
        sent: bytes,
        spans: Spans,
        pool: Pool,
        members: Members,
        clock: TierClock,
        *,
        points: bool,
    ) -> Plan | None:
        if _unpack(frame, BODY)[0] != len(frame) - BODY:
            return None  # further sections
        for name in _WINDOWS:
            found = spans.get(name)
            if found is not None and found[0] in (3, 4):
                break
        else:
            return None
        _, _, window, end = found
        at = -1
        cluster_time = spans.get(b"$clusterTime")
        if cluster_time is not None:
            at = cluster_time[1] - end
            if at < 0:
                return None
        return Plan(
            token=self._leases.token,
            identity=self._session.identity,
            head=frame[_FIRST:window],
            window=window,
            tail=frame[end:],
            sent_tail=sent[end:],
            cluster_time=at,
            element=clock.element,
            points=points,
            pool=pool,
            members=members,
            clock=clock,
        )


def is_point(frame: bytes, spans: Spans) -> bool:
    """Whether a find asks for one ``_id``, and nothing else that could matter to its completeness."""
    found = spans.get(b"filter")
    if found is None or found[0] != 3 or not spans.keys() <= _POINT_FIELDS:
        return False
    batch = spans.get(b"batchSize")
    if batch is not None and not any(frame[batch[2] : batch[3]]):
        return False  # opens a cursor, and tells nothing
    inner = scan(frame, found[2])
    if len(inner) != 1:
        return False
    value = inner.get(b"_id")
    if value is None or value[0] in (0x04, 0x06, 0x0A, 0x0B):
        return False  # an array, nothing, or a pattern: not plain equality
    return value[0] != 3 or frame[value[2] + 4] == 0 or frame[value[2] + 5] != 0x24


def _plain_point(frame: bytes, start: int, end: int) -> bool:
    """Whether the filter between the offsets is ``{_id: <a plain value>}``."""
    size = _SAFE_IDS.get(frame[start + 4])
    return (
        size is not None and end - start == 10 + size and frame[start + 5 : start + 9] == b"_id\0"
    )


def with_time(
    frame: bytes, concern: tuple[int, int, int, int], now: int, known: int
) -> bytes | None:
    """The frame with ``now`` (0: leave it) in place of the ``afterClusterTime`` of its readConcern.

    ``known``: the latest time that goes along with the command; the long path finds a later one.
    None: a readConcern for the long path.
    """
    kind, _, start, _ = concern
    if kind != 3:
        return None
    fields = scan(frame, start)
    if not fields.keys() <= _CONCERN_FIELDS:
        return None
    level = fields.get(b"level")
    if level is not None and (level[0] != 2 or frame[level[2] + 4 : level[3]] not in _LEVELS):
        return None
    after = fields.get(_AFTER)
    if after is None:
        return frame
    if after[0] != 0x11:
        return None
    if now == 0:
        return frame if _U64.unpack_from(frame, after[2])[0] <= known else None
    return frame[: after[2]] + _U64.pack(now) + frame[after[3] :]

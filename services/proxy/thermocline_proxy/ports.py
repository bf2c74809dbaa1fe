"""The seams of the proxy: what the read and write handlers get, and who provides it.

Handlers depend on these Protocols alone, so that tests can drive them with fakes or with pause
points around the real parts.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bson.timestamp import Timestamp

from thermocline_common.copy_in import Tiers
from thermocline_common.coverage import Tier
from thermocline_common.ids import DocId
from thermocline_proxy.commands.command import Command
from thermocline_proxy.open_streams import OpenStreams
from thermocline_proxy.routing.snapshot import Snapshot

__all__ = [
    "DocId",
    "Exchange",
    "Gateway",
    "Identity",
    "Leases",
    "Reply",
    "Request",
    "Sampler",
    "Tier",
    "Tiers",
]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is, with what a log-in at either tier as that user needs (never a password).

    ``client_key`` and ``server_key`` are SCRAM keys of ``mechanism``, recovered from the client's
    own proof. Equal identities share upstream connections.
    """

    database: str
    user: str
    mechanism: str
    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """An upstream server's answer to one command, without ``$clusterTime`` and ``operationTime``.

    ``raw``: the raw document. ``operation_time``: the answering tier's, never shown to a client
    unless ``tier`` is the fast one. ``member``: ``host:port`` that answered.
    """

    raw: bytes
    tier: Tier
    member: str
    operation_time: Timestamp | None = None

    def decode(self) -> Mapping[str, Any]:
        """The reply with nested documents raw."""
        from bson.raw_bson import RawBSONDocument

        from thermocline_proxy.commands.command import CODEC

        return RawBSONDocument(self.raw, CODEC)

    @property
    def ok(self) -> bool:
        """Whether the command as a whole succeeded (write errors may still be inside)."""
        return bool(self.decode().get("ok"))


def _never() -> bool:
    return False


@dataclass(slots=True)
class Request:
    """One command of one client. ``deadline``: monotonic seconds after which to answer 50, or None.

    ``gone``: whether the client's connection has ended meanwhile.
    """

    command: Command
    identity: Identity | None
    connection_id: int
    deadline: float | None = None
    gone: Callable[[], bool] = _never


class Exchange(Protocol):
    """Sends commands to a tier as a client's user, over pooled connections."""

    async def run(
        self,
        tier: Tier,
        identity: Identity | None,
        command: Command,
        *,
        to_primary: bool = True,
        member: str | None = None,
        after: Timestamp | None = None,
    ) -> Reply:
        """Run one command and return the whole reply (an ``ok: 0`` reply is returned, not raised).

        The client's ``$clusterTime`` is replaced by the tier's own; ``after`` is made known to the
        member by it. ``readConcern`` is the caller's business. ``to_primary=False`` selects among
        the members by the command's ``$readPreference``. A cursor in the reply is remembered, so
        that getMore and killCursors find its member. Raises :class:`CommandError`: with
        ``HostUnreachable`` where no member could be reached in time (labelled
        ``RetryableWriteError`` where the command has a ``txnNumber``); a connection that breaks
        after the command was sent is answered so, and never sent again by the exchange itself.
        """
        ...


class Leases(Protocol):
    """The coverage snapshot and its lease."""

    async def current(self, deadline: float | None = None) -> Snapshot:
        """A snapshot whose leases are both alive; waits for one. Raises ``CommandError`` 262."""
        ...

    async def untiered(self, deadline: float | None = None) -> Snapshot:
        """A snapshot whose ``untiered_expires`` is alive: all that statements on untiered namespaces need."""
        ...

    def alive(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot's coverage lease still runs, now."""
        ...

    async def wait_for_change(self, snapshot: Snapshot, deadline: float | None) -> Snapshot:
        """The next newer snapshot (a namespace was pausing). Raises ``CommandError`` 262 in the end."""
        ...


class Barrier(Protocol):
    """Waits until the archive holds every write that the fast tier had acknowledged."""

    async def passed(
        self,
        deadline: float | None,
        *,
        patience: float | None = None,
        whole: Collection[str] = (),
    ) -> Timestamp:
        """Wait; the archive time to read at (``afterClusterTime``, level majority). Raises 50, 96 or 262.

        ``patience``, ``whole``: see :class:`~thermocline_proxy.barrier.SharedBarrier`.
        """
        ...


class Sampler(Protocol):
    """Is told of answers of the fast tier, and has a share of them checked (``proxy.verify``).

    ``share``: 0 where none is. Nothing here waits, or fails.
    """

    share: float

    def answered(self, request: Request, reply: Reply) -> None:
        """A request on tiered namespaces got this answer, which is F's."""
        ...

    def relayed(self, frame: bytes, reply: bytes, identity: Identity | None) -> None:
        """The same on the short path, as whole frames."""
        ...


class NoSampler:
    """:class:`Sampler` that takes none."""

    share = 0.0

    def answered(self, request: Request, reply: Reply) -> None:
        """Nothing."""

    def relayed(self, frame: bytes, reply: bytes, identity: Identity | None) -> None:
        """Nothing."""


@dataclass(slots=True)
class Gateway:
    """Everything a handler of tiered statements works with.

    ``tiers``: PyMongo clients logged in as the proxy's own user, for records, copies, coverage and
    look-ups only, never for a client's commands. ``clock``: monotonic seconds. ``count(reason, tier)``
    counts a route's reason for metrics; reasons of writes begin with ``write-``. ``streams``: change streams that are open on tiered collections.
    """

    exchange: Exchange
    leases: Leases
    barrier: Barrier
    tiers: Tiers
    clock: Callable[[], float]
    proxy_id: uuid.UUID
    count: Callable[[str, str], None]
    answered: Callable[[Iterable[str], Tier, str], None] = lambda *_: None
    """Counts an answered read: its tiered collections, who answered, and the reason for that tier."""
    streams: OpenStreams = field(default_factory=OpenStreams)
    preference: Callable[[Tier], bytes | None] = lambda _: None
    """The raw ``$readPreference`` of a tier for reads that state none; None: the primary."""
    sampler: Sampler = field(default_factory=NoSampler)


class Handler(Protocol):
    """Answers one command on tiered namespaces."""

    async def __call__(self, request: Request, gateway: Gateway, snapshot: Snapshot) -> Reply: ...


Documents = Sequence[bytes]

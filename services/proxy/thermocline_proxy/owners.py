"""Who may go on with what a connection opened: the cursors and transactions of each application. Pure.

A driver takes any of its connections for the next batch or statement, so what was opened belongs to
all connections of one application process. One that says ``loadBalanced`` in its hello keeps to the
connection, so there it belongs to that one alone.
"""

from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from thermocline_common.coverage import Tier
from thermocline_proxy.commands.catalog import CATALOG, Kind
from thermocline_proxy.cursors import Cursors, describe
from thermocline_proxy.ports import Identity
from thermocline_proxy.wire.header import INT32, OP_MSG, WireError
from thermocline_proxy.wire.scan import scan

_PLAIN: Final = INT32.pack(OP_MSG) + bytes(5)
"""Opcode, no flags, and a kind-0 section first."""
_BINARY: Final = 0x05
MOST_SESSIONS: Final = 1_000
"""Of one owner; the servers end what is forgotten by themselves."""

Key = tuple[Identity | None, bytes]
"""Whose session it is, and the raw value of its id."""


class Began(Protocol):
    """A transaction, as :class:`~thermocline_proxy.transactions.pins.Pin` knows it."""

    number: int
    tier: Tier
    over: bool
    api: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class OpenCursor:
    """As whom a cursor was opened or last read, and on which ``db.collection``."""

    identity: Identity | None
    namespace: str


@dataclass(slots=True, eq=False)
class Owner:
    """One application process as this proxy sees it, or one load-balanced connection (``alone``).

    ``connections``: how many it has here now. ``cursors``: by id. ``unanswered``: sessions of commands
    whose answers came when nobody was there to take them; they may have opened a cursor.
    """

    key: Hashable
    alone: bool = False
    connections: int = 0
    cursors: dict[int, OpenCursor] = field(default_factory=dict)
    transactions: dict[Key, Began] = field(default_factory=dict)
    unanswered: dict[Key, None] = field(default_factory=dict)

    @property
    def bound(self) -> bool:
        """Whether something is open that one connection alone can go on with."""
        begun = any(not transaction.over for transaction in self.transactions.values())
        return self.alone and (begun or bool(self.cursors))

    @property
    def leaves(self) -> bool:
        """Whether anything of it may be open at a server."""
        return bool(self.cursors or self.transactions or self.unanswered)


class Connection(Protocol):
    """What is known of a client's connection."""

    identity: Identity | None
    owner: Owner


class Owners:
    """Every owner that has connections here. The process is told apart by its host and by what it
    said of itself in its first hello; two that look alike count as one, which only means patience."""

    def __init__(self, cursors: Cursors) -> None:
        self._cursors = cursors
        self._owners: dict[Hashable, Owner] = {}
        self.vanished: list[Owner] = []
        """Those whose last connection ended while something was open; whoever cleans up takes them out."""

    def __len__(self) -> int:
        return len(self._owners)

    def join(self, key: Hashable) -> Owner:
        """A connection of an application is there."""
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = Owner(key)
        owner.connections += 1
        return owner

    def move(self, owner: Owner, host: str, metadata: bytes, *, alone: bool) -> Owner:
        """The connection said in its hello who it is; its owner from now on."""
        if owner.alone:
            return owner
        if not alone:
            new = self.join((host, metadata))
        else:
            new = Owner(object(), alone=True, connections=1)
        self.leave(owner)
        return new

    def leave(self, owner: Owner, identity: Identity | None = None, frame: bytes = b"") -> None:
        """A connection ended; ``frame``: the command of ``identity`` that was in hand."""
        if frame and (session := session_of(frame)):
            owner.unanswered[identity, session] = None
            trim(owner.unanswered)
        owner.connections -= 1
        if owner.connections:
            return
        self._owners.pop(owner.key, None)
        if owner.leaves:
            self.vanished.append(owner)

    def back(self, owner: Owner) -> bool:
        """Whether the application has connections again; what it left is then its own again."""
        now = self._owners.get(owner.key)
        if now is None:
            return False
        now.transactions = {**owner.transactions, **now.transactions}
        now.unanswered |= owner.unanswered
        trim(now.unanswered)
        for cursor_id, cursor in list(owner.cursors.items()):
            if self._cursors.holder(cursor_id) is owner.cursors:
                now.cursors[cursor_id] = cursor
                self._cursors.give(cursor_id, now.cursors)
        return True

    def opened(self, by: Connection, cursor_id: int, reply: bytes, start: int = 25) -> None:
        """A cursor was opened, or read on, over a connection. ``start``: as of ``reply_cursor``."""
        namespace, stream = describe(reply, start)
        if stream:
            self._cursors.streams.add(cursor_id)
        self.give(by.owner, cursor_id, OpenCursor(by.identity, namespace))

    def give(self, owner: Owner, cursor_id: int, cursor: OpenCursor) -> None:
        """It is the owner's from now on."""
        owner.cursors[cursor_id] = cursor
        self._cursors.give(cursor_id, owner.cursors)


def trim(sessions: MutableMapping[Key, Any]) -> None:
    """Forget the oldest where there are too many: an application may live for years."""
    while len(sessions) > MOST_SESSIONS:
        del sessions[next(iter(sessions))]


def session_of(frame: bytes) -> bytes:
    """The raw value of ``lsid.id`` of an OP_MSG whose answer may tell of a new cursor; else empty."""
    if frame[12:21] != _PLAIN:
        return b""
    entry = CATALOG.get(frame[26 : frame.find(b"\0", 26)].decode("utf-8", "replace"))
    if entry is None or not (entry.kind is Kind.READ or entry.name == "listCollections"):
        return b""
    try:
        fields = scan(frame, 21)
        inner = scan(frame, fields[b"lsid"][2])
        kind, _, start, end = inner[b"id"]
    except (WireError, LookupError):
        return b""
    return frame[start:end] if kind == _BINARY else b""

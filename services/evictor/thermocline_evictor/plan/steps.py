"""The wait between a raised floor and the first eviction under it.

Readers that still trust the old floor must be gone first: the proxies' leases run out, then the
cursors that were opened under them end. One look can miss a live cursor, so what was seen must be
absent from several looks over a second.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from thermocline_common.leases import LEASE_MARGIN

LOOKS: Final = 4
"""Looks that must not see a cursor before it counts as gone."""
SPAN_SECONDS: Final = 1.0
"""The time that these looks span at least."""


class Phase(StrEnum):
    """What a namespace is waiting for; shown in the status."""

    LEASE = "waiting for leases to end"
    CURSORS = "waiting for open cursors to end"
    READY = "evicting"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor on one member (``host:port``)."""

    member: str
    id: int


@dataclass(frozen=True, slots=True)
class MemberWatch:
    """The looks at one member. ``seen``: for each cursor, the looks since it was last seen."""

    began: float
    span: float = SPAN_SECONDS
    looks: int = 0
    seen: Mapping[int, int] = field(default_factory=dict)
    last_seen: Mapping[int, float] = field(default_factory=dict)
    over: bool = False

    def look(self, now: float, found: Iterable[int]) -> "MemberWatch":
        """After one more look at ``now``, which found these cursors (not tailable ones)."""
        there = set(found)
        looks = self.looks + 1
        # Cursors that appear after the first second were opened under the raised floor.
        gathering = looks <= LOOKS or now - self.began < self.span
        watched = set(self.seen) | (there if gathering else set())
        seen = {c: 0 if c in there else self.seen.get(c, 0) + 1 for c in watched}
        last = {c: now if c in there else self.last_seen.get(c, now) for c in watched}
        gone = all(seen[c] >= LOOKS and now - last[c] >= self.span for c in watched)
        over = gone and looks >= LOOKS and now - self.began >= self.span
        return MemberWatch(self.began, self.span, looks, seen, last, self.over or over)

    @property
    def open(self) -> frozenset[int]:
        """Cursors that were there at the last look."""
        return frozenset(c for c, missed in self.seen.items() if missed == 0)


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for one value of ``raised`` (and one activation, ``epoch``) of one namespace.

    ``read_at``: monotonic seconds just after that value had been read. ``down``: members that the
    primary reported down, to be asked when they are back.
    """

    epoch: object
    raised: int
    read_at: float
    span: float = SPAN_SECONDS
    members: Mapping[str, MemberWatch] = field(default_factory=dict)
    down: frozenset[str] = frozenset()

    def phase(self, now: float, lease: float, up: Iterable[str]) -> Phase:
        """Where the wait is. ``up``: the members that serve now; each must have been asked."""
        if now - self.read_at < lease * LEASE_MARGIN:
            return Phase.LEASE
        serving = set(up)
        if not serving:
            return Phase.CURSORS
        watches = [self.members.get(member) for member in serving]
        return Phase.READY if all(w is not None and w.over for w in watches) else Phase.CURSORS

    def look(self, now: float, found: Mapping[str, Iterable[int]], down: Iterable[str]) -> "Wait":
        """After a look at the members that answered (``found``: cursors by member)."""
        gone = frozenset(down)
        members = {m: watch for m, watch in self.members.items() if m not in gone}
        for member, cursors in found.items():
            members[member] = members.get(member, MemberWatch(now, self.span)).look(now, cursors)
        return replace(self, members=members, down=gone)

    def returned(self, member: str) -> bool:
        """Whether a member was down when it should have been asked: its cursors are killed at once."""
        return member in self.down

    def overdue(self, now: float, limit: float) -> list[Cursor]:
        """Cursors that are still open ``limit`` seconds after the looks at their member began."""
        return [
            Cursor(member, cursor)
            for member, watch in self.members.items()
            if not watch.over and now - watch.began > limit
            for cursor in sorted(watch.open)
        ]


def start(epoch: object, raised: int, read_at: float, span: float = SPAN_SECONDS) -> Wait:
    """The wait for a value of ``raised`` that was just read."""
    return Wait(epoch, raised, read_at, span)

"""How much of the fast tier's oplog replay still needs, and what writers wait for that. Pure.

Bytes count, not seconds: an oplog that reaches back for days is overwritten within seconds by a burst
after a quiet time. MongoDB counts the bytes that were ever written to it; what was written since the
checkpoint is the difference to a mark set before it.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bson.timestamp import Timestamp

SLOW_FROM: Final = 0.25
"""Used share of the window from which on writers wait."""
HOLD_FROM: Final = 0.9
"""From here on they wait for room. MongoDB removes the oldest entries in pieces, up to a tenth at once."""
FIRST_DELAY: Final = 0.001
DOUBLES_EVERY: Final = 0.05
"""The delay doubles with each such share: 32 ms at a half, 1 s at three quarters."""
UNIT_BYTES: Final = 16 * 1024
"""A command of up to this size waits once the delay; a bigger one in proportion."""
LONGEST_DELAY: Final = 5.0
MARK_SHARE: Final = 1 / 256
"""Marks are set this share of the oplog apart, which is how exact the result is."""


@dataclass(frozen=True, slots=True)
class Look:
    """F's primary's oplog at one moment.

    ``process`` tells one run of one mongod from all others. ``written``: bytes that this process ever
    put into its oplog, counted no later than ``time``, its newest entry. ``size``, ``most``: bytes that
    it holds, and may hold. ``oldest``: the time of its first entry.
    """

    process: Hashable
    time: Timestamp
    written: int
    size: int
    most: int
    oldest: Timestamp


@dataclass(frozen=True, slots=True)
class Window:
    """What replay has still to read: ``behind`` of ``capacity`` bytes, ``seconds`` long.

    ``gone``: the oplog no longer reaches back to the checkpoint.
    """

    behind: int
    capacity: int
    seconds: int
    gone: bool

    @property
    def used(self) -> float:
        """The share of the oplog that replay still needs; from 1 on nothing is sure."""
        return self.behind / self.capacity


@dataclass(frozen=True, slots=True)
class Track:
    """Marks of one mongod process: (time, bytes written until then), oldest first."""

    process: Hashable = None
    marks: tuple[tuple[Timestamp, int], ...] = ()

    def saw(self, look: Look, checkpoint: Timestamp) -> "Track":
        """With one more look, without the marks that nobody needs any more."""
        mark = (look.time, look.written)
        if look.process != self.process or not self.marks or look.written < self.marks[-1][1]:
            return Track(look.process, (mark,))
        marks = self.marks
        if look.written - marks[-1][1] >= look.most * MARK_SHARE:
            marks = (*marks, mark)
        passed = sum(1 for time, _ in marks if time <= checkpoint)
        return Track(self.process, marks[max(0, passed - 1) :])

    def window(self, look: Look, checkpoint: Timestamp) -> Window:
        """What replay has still to read at this look, rather too much than too little.

        What was written before the first mark, so before this service looked at that mongod, is
        estimated: evenly spread over the time.
        """
        capacity = max(look.most, look.size, 1)
        seconds = max(0, look.time.time - checkpoint.time)
        gone = look.oldest > checkpoint
        if checkpoint >= look.time or not self.marks:
            return Window(0, capacity, seconds, gone)
        first, written = self.marks[0]
        if checkpoint >= first:
            written = max(count for time, count in self.marks if time <= checkpoint)
            return Window(look.written - written, capacity, seconds, gone)
        counted = look.written - written
        before = max(0, look.size - counted)
        span = max(1, first.time - look.oldest.time)
        share = min(1.0, (first.time - checkpoint.time) / span)
        return Window(counted + int(before * share), capacity, seconds, gone)


class Brake(Enum):
    """What is done with writers."""

    FREE = "free"
    SLOWED = "slowed"
    HELD = "held"
    GONE = "gone"
    """Too late: replay resynchronises, and there is nothing to wait for."""


def brake_for(window: Window | None) -> Brake:
    """``None``: nothing is known."""
    if window is None or window.used < SLOW_FROM:
        return Brake.FREE
    if window.gone:
        return Brake.GONE
    return Brake.HELD if window.used >= HOLD_FROM else Brake.SLOWED


def delay_seconds(used: float, size: int) -> float:
    """How long a write command of ``size`` bytes waits where ``used`` of the window is used."""
    if used < SLOW_FROM:
        return 0.0
    doublings = min(60.0, (used - SLOW_FROM) / DOUBLES_EVERY)
    delay: float = FIRST_DELAY * 2**doublings * max(1.0, size / UNIT_BYTES)
    return min(LONGEST_DELAY, delay)


def describe(window: Window) -> str:
    """``45% of the fast tier's oplog (450 of 1,000 MB)``, in steps of 5%, for people."""
    percent = int(window.used * 20) * 5
    return f"{percent}% of the fast tier's oplog ({window.capacity / 1e6:,.0f} MB)"

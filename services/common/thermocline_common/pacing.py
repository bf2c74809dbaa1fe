"""How fast background work may go: a number of documents a second, or whatever leaves room. Pure."""

from dataclasses import dataclass
from typing import Final

AUTO: Final = "Auto"

RECENT_WEIGHT: Final = 0.2
"""Share of the newest measurement in the recent latency."""
FORGET: Final = 1.005
"""The usual latency drifts up by this factor a measurement, so that a lucky one is forgotten."""
TOLERATED: Final = 2.0
"""Up to this multiple of the usual latency, nobody is disturbed."""
FLOOR_SECONDS: Final = 0.005
"""Latencies below this are all the same: noise of the event loop, not load."""
LONGEST_REST: Final = 4.0
"""Rest at most this multiple of the time that the work took: slow, but never at a standstill."""


@dataclass(frozen=True, slots=True)
class Latency:
    """What a server's answers took, in seconds: as a rule, and of late."""

    usual: float = 0.0
    recent: float = 0.0

    def observe(self, seconds: float) -> "Latency":
        """With one more measurement."""
        if not self.recent:
            return Latency(seconds, seconds)
        recent = self.recent + RECENT_WEIGHT * (seconds - self.recent)
        return Latency(min(self.usual * FORGET, recent), recent)

    @property
    def strain(self) -> float:
        """How many times the usual latency the recent one is; 1.0 where nothing is known."""
        if not self.recent:
            return 1.0
        return max(self.recent, FLOOR_SECONDS) / max(self.usual, FLOOR_SECONDS)


def rest_seconds(pace: str | int, documents: int, took: float, latency: Latency) -> float:
    """How long to rest after work on ``documents`` that took ``took`` seconds.

    ``pace``: documents a second, or ``"Auto"``, which rests the longer the more the server's
    answers are slowed down.
    """
    if isinstance(pace, int):
        return max(0.0, documents / pace - took)
    excess = latency.strain - TOLERATED
    return took * min(LONGEST_REST, excess) if excess > 0 else 0.0


# The archive: what work costs those who read there at the same time.

DISTURBED: Final = 1.2
"""Reads beside our work may take this multiple of reads without it."""
COST_FLOOR_SECONDS: Final = 0.002
"""Below this a read comes from memory, and all are the same. Servers count whole milliseconds."""
COST_WEIGHT: Final = 0.1
LEAST_REST: Final = 0.25
MOST_REST: Final = 30.0
"""Background work goes on for a thirtieth of the time, whatever it costs: warming must end some day."""
CLOSE: Final = 1.25
OPEN: Final = 0.85
"""Steps of nearly one size: reads vary, and of work that costs nothing some would seem disturbed."""
LONGEST_PAUSE: Final = 5.0
LEAST_PIECE: Final = 20
REPLAY_BACKLOG: Final = 200
"""Documents of a batch from which on replay has a backlog; smaller ones are what was just written."""
REPLAY_REST: Final = 1.0
"""Replay rests no longer than it works: readers wait for it, too, at the barrier."""
REPLAY_WINDOW: Final = 0.1
"""It doesn't rest at all once so much of F's oplog is behind."""
YIELDING_LAG: Final = 1.0
"""Seconds that replay may be behind before warming and eviction make way for it."""
LONGEST_LAG_REST: Final = 10.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What the archive's reads took, in seconds: ``alone`` while we rested, ``beside`` our work."""

    alone: float = 0.0
    beside: float = 0.0

    def saw_alone(self, seconds: float) -> "Cost":
        """With one more read that our work didn't touch."""
        return Cost(_mixed(self.alone, seconds), self.beside)

    def saw_beside(self, seconds: float) -> "Cost":
        """With one more read beside our work."""
        return Cost(self.alone, _mixed(self.beside, seconds))

    @property
    def strain(self) -> float:
        """How many times longer reads take beside our work; 1.0 where that isn't known.

        Load that isn't ours is in both parts alike, so it isn't taken for ours, nor ours for usual.
        """
        if not self.alone or not self.beside:
            return 1.0
        return max(self.beside, COST_FLOOR_SECONDS) / max(self.alone, COST_FLOOR_SECONDS)


def _mixed(before: float, seconds: float) -> float:
    return before + COST_WEIGHT * (seconds - before) if before else seconds


@dataclass(frozen=True, slots=True)
class Throttle:
    """How long background work rests, as a multiple of the time that it works."""

    rest: float = 0.0

    def adjusted(self, strain: float) -> "Throttle":
        """A little more where others are disturbed, a little less where they aren't."""
        if strain > DISTURBED:
            return Throttle(min(MOST_REST, max(LEAST_REST, self.rest * CLOSE)))
        return Throttle(0.0 if self.rest < LEAST_REST else self.rest * OPEN)

    def piece(self, most: int) -> int:
        """Documents to take at once: the longer the rests, the smaller the pieces between them."""
        return max(min(most, LEAST_PIECE), int(most / (1 + self.rest)))

    def seconds(self, took: float) -> float:
        """How long to rest after work that took so long."""
        return min(LONGEST_PAUSE, self.rest * took)


def lag_rest(lag: float) -> float:
    """How long warming and eviction rest for a feeder that is ``lag`` seconds behind."""
    return min(LONGEST_LAG_REST, lag) if lag > YIELDING_LAG else 0.0


def replay_rest(
    pace: str | int, documents: int, took: float, throttle: Throttle, window_used: float | None
) -> float:
    """How long replay rests after a batch.

    ``"Auto"``: for the archive's readers, where there is a backlog. ``window_used``: the share of F's
    oplog that is behind (None: not known yet); with too much of it, replay rests no more, whatever
    the pace.
    """
    if (window_used or 0.0) >= REPLAY_WINDOW:
        return 0.0
    if isinstance(pace, int):
        return max(0.0, documents / pace - took)
    return took * min(REPLAY_REST, throttle.rest) if documents >= REPLAY_BACKLOG else 0.0

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

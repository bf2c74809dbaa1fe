"""How much at once, and how much ahead."""

from typing import Final

LARGEST_BATCH: Final = 50
"""Documents a transaction deletes at most: an open one makes writers of these documents wait."""
OPEN_SECONDS: Final = 0.02
"""How long it should have changes open at most."""
AHEAD_SECONDS: Final = 90.0
"""Announcements reach this far ahead. The feeder removes a record five minutes after it first saw
it, and then the announcement was for nothing."""
LEAST_AHEAD: Final = 500
MOST_AHEAD: Final = 50_000
TOLERATED_LAG: Final = 1.0
"""Seconds the feeder may be behind before eviction makes way for it."""
LONGEST_REST: Final = 10.0


def next_batch(size: int, open_seconds: float) -> int:
    """The next transaction's size, from the last one's and the time it had changes open."""
    if open_seconds > OPEN_SECONDS:
        return max(1, size // 2)
    if open_seconds < OPEN_SECONDS / 2:
        return min(LARGEST_BATCH, size + max(1, size // 4))
    return size


def ahead(per_second: float) -> int:
    """How many announcements may be pending, at the rate at which they were carried out of late."""
    return int(min(MOST_AHEAD, max(LEAST_AHEAD, per_second * AHEAD_SECONDS)))


def lag_rest(lag: float) -> float:
    """How long to rest for a feeder that is ``lag`` seconds behind."""
    return min(LONGEST_REST, lag) if lag > TOLERATED_LAG else 0.0

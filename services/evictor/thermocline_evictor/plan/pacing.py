"""How much at once, and how much ahead."""

from typing import Final

LARGEST_BATCH: Final = 50
"""Documents a transaction deletes at most: an open one makes writers of these documents wait."""
LEAST_BATCH: Final = 10
"""Below this, the time is spent on the way and not on the documents."""
OPEN_SECONDS: Final = 0.02
"""How long it should hold documents before its commit, at most."""
CONFLICTS_BEFORE_SPLIT: Final = 3
AHEAD_SECONDS: Final = 90.0
"""Announcements reach this far ahead. The feeder removes a record five minutes after it first saw
it, and then the announcement was for nothing."""
LEAST_AHEAD: Final = 500
MOST_AHEAD: Final = 50_000


def next_batch(size: int, open_seconds: float) -> int:
    """The next transaction's size, from the last one's and the time it held documents."""
    if open_seconds > OPEN_SECONDS:
        return max(min(size, LEAST_BATCH), size // 2)
    if open_seconds < OPEN_SECONDS / 2:
        return min(LARGEST_BATCH, size + max(1, size // 4))
    return size


def after_conflict(size: int, in_a_row: int) -> int:
    """The next transaction's size after conflicts ``in_a_row``.

    One may be another evictor's, which smaller batches would only make likelier; several point to
    documents that applications write to.
    """
    return max(1, size // 2) if in_a_row >= CONFLICTS_BEFORE_SPLIT else size


def conflict_rest(in_a_row: int, took: float, chance: float) -> float:
    """How long to stay away after conflicts, so that two evictors get out of step. ``chance``: 0 to 1."""
    return min(1.0, took * chance * min(in_a_row, 4))


def ahead(per_second: float) -> int:
    """How many announcements may be pending, at the rate at which they were carried out of late."""
    return int(min(MOST_AHEAD, max(LEAST_AHEAD, per_second * AHEAD_SECONDS)))

"""How far warming is, and how long it will take."""

import datetime as dt
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """``percent`` of the policy that is warm; ``seconds_left`` None: unknown, or nothing is left."""

    percent: float
    seconds_left: float | None = None


def share_by_age(floor: dt.datetime | None, horizon: dt.datetime, now: dt.datetime) -> float:
    """The share, 0 to 1, of the time between now and the horizon that is covered."""
    if floor is None:
        return 0.0
    whole = (now - horizon).total_seconds()
    if whole <= 0:
        return 1.0
    return min(1.0, max(0.0, (now - floor).total_seconds() / whole))


def share_by_count(copied: int, estimated: int) -> float:
    """The share, 0 to 1, of a collection's documents; below 1 until it is complete."""
    if estimated <= 0:
        return 0.0
    return min(0.99, copied / estimated)


def progress(share: float, share_at_start: float, elapsed: float) -> Progress:
    """From the share now and at the start of this run, ``elapsed`` seconds ago."""
    percent = round(100 * share, 1)
    gained = share - share_at_start
    if share >= 1 or gained <= 0 or elapsed <= 0:
        return Progress(percent)
    return Progress(percent, round((1 - share) / gained * elapsed, 1))

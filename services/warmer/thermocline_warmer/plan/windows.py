"""What to warm next, and how a slice of it is claimed.

First everything whose age isn't a scalar Date, together with the newest slice; then slices newest
first, down to the horizon.

A claim protects everything at or above it from eviction. Between two raises of the floor it is
only ever lowered, or removed by the publication of a floor at or below it. Otherwise a claim could
be raised and lowered again while somebody copies under it, and what was evicted in between would
be published as held.
"""

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from thermocline_common.ages import from_milliseconds, to_milliseconds
from thermocline_common.coverage import Coverage, State

SLACK_SHARE: Final = 100
"""Nothing is warmed for a gap below this fraction of the age: clocks of two machines differ more."""
LONGEST_SLACK: Final = dt.timedelta(seconds=60)

LATEST: Final = to_milliseconds(dt.datetime(9999, 12, 31, tzinfo=dt.UTC))
"""A floor is a date that every driver can read; MongoDB's own reach further."""

FIRST_SLICE: Final = 1_000
SMALLEST_SLICE: Final = 100
LARGEST_SLICE: Final = 20_000
SLICE_SECONDS: Final = 3.0
"""A slice should be about this long: shorter ones cost barriers, longer ones are lost to evictors."""


class Idle(StrEnum):
    """Why there is nothing to do; shown in the status."""

    WARM = "warm"
    NOT_ACTIVE = "namespace isn't active"
    NO_COVERAGE = "no coverage document yet"
    OTHER_POLICY = "the coverage document is for another policy"


@dataclass(frozen=True, slots=True)
class Policy:
    """A collection's policy: ``age_field`` and ``max_age``, or neither for ``keep: All``."""

    namespace: str
    age_field: str | None = None
    max_age: dt.timedelta | None = None

    @property
    def keep_all(self) -> bool:
        """Whether the collection lives in F whole."""
        return self.age_field is None


@dataclass(frozen=True, slots=True)
class WarmAll:
    """Copy the whole collection, then set ``complete``."""


@dataclass(frozen=True, slots=True)
class WarmSlice:
    """Copy a slice below ``upper``, at most down to ``horizon``.

    ``upper`` None: nothing is covered yet, so the slice has no upper end and the odd ages come
    with it.
    """

    upper: dt.datetime | None
    horizon: dt.datetime


def next_work(
    coverage: Coverage | None, policy: Policy, now: dt.datetime
) -> Idle | WarmAll | WarmSlice:
    """What is to be done for a policy. ``now`` only says what is wished for."""
    if coverage is None:
        return Idle.NO_COVERAGE
    if coverage.state is not State.ACTIVE or coverage.target is not State.ACTIVE:
        return Idle.NOT_ACTIVE
    if coverage.keep_all != policy.keep_all or coverage.age_field != policy.age_field:
        return Idle.OTHER_POLICY
    if policy.max_age is None:
        return Idle.WARM if coverage.complete else WarmAll()
    horizon = horizon_of(policy.max_age, now)
    if coverage.floor is None:
        return WarmSlice(None, horizon)
    slack = min(policy.max_age / SLACK_SHARE, LONGEST_SLACK)
    if coverage.floor - horizon <= slack:
        return Idle.WARM
    return WarmSlice(coverage.floor, horizon)


def horizon_of(max_age: dt.timedelta, now: dt.datetime) -> dt.datetime:
    """The age down to which documents belong into F, to the millisecond, as MongoDB stores dates."""
    return from_milliseconds(to_milliseconds(now - max_age))


def choose_lower(work: WarmSlice, found: int | None) -> dt.datetime:
    """Where the slice ends. ``found``: the age (ms) of the document that would make it full, or None.

    Documents of exactly that age all belong to the slice, so it always covers some time.
    """
    lowest = to_milliseconds(work.horizon)
    if found is None or found <= lowest:
        return work.horizon
    if work.upper is not None and found >= to_milliseconds(work.upper):
        return work.horizon
    return from_milliseconds(min(found, LATEST))


def claim_for(claim: dt.datetime | None, lower: dt.datetime) -> dt.datetime | None:
    """The claim to write before copying down to ``lower``; None: the one that stands protects enough."""
    return lower if claim is None or claim > lower else None


def ends_claim(claim: dt.datetime | None, floor: dt.datetime) -> bool:
    """Whether publishing ``floor`` also removes the claim: only one that the floor takes over from."""
    return claim is not None and claim >= floor


def next_slice_size(size: int, took: float, lost: bool) -> int:
    """How many documents the next slice should have, from the last one's size and seconds."""
    if lost or took > 2 * SLICE_SECONDS:
        return max(SMALLEST_SLICE, size // 2)
    if took < SLICE_SECONDS / 2:
        return min(LARGEST_SLICE, size * 2)
    return size

"""Below which age documents may leave, and when the floor is raised."""

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from thermocline_common.ages import from_milliseconds, to_milliseconds
from thermocline_common.coverage import Coverage, State

HYSTERESIS: Final = 20
"""The floor is raised once it is below the horizon by more than this fraction of the age: each
raise costs readers a lease and evictors a wait."""


class Off(StrEnum):
    """Why nothing may be evicted from a namespace; shown in the status."""

    NO_COVERAGE = "no coverage document yet"
    NOT_ACTIVE = "namespace isn't active"
    OTHER_POLICY = "the coverage document is for another policy"
    KEPT_WHOLE = "the whole collection is kept"


@dataclass(frozen=True, slots=True)
class Policy:
    """A collection's policy; ``keep: All`` has neither field."""

    namespace: str
    age_field: str | None = None
    max_age: dt.timedelta | None = None


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise the floor to this date (None: there is none and there will be none); a claim is void."""

    floor: dt.datetime | None


def off(coverage: Coverage | None, policy: Policy) -> Off | None:
    """Whether eviction is off for this namespace, and why."""
    if coverage is None:
        return Off.NO_COVERAGE
    if coverage.state is not State.ACTIVE or coverage.target is not State.ACTIVE:
        return Off.NOT_ACTIVE
    if policy.max_age is None:
        return Off.KEPT_WHOLE
    if coverage.keep_all or coverage.age_field != policy.age_field:
        return Off.OTHER_POLICY
    return None


def horizon_of(max_age: dt.timedelta, now: dt.datetime) -> dt.datetime:
    """The age from which on documents belong into F, to the millisecond, as MongoDB stores dates."""
    return from_milliseconds(to_milliseconds(now - max_age))


def raise_needed(coverage: Coverage, horizon: dt.datetime, max_age: dt.timedelta) -> Raise | None:
    """Whether the floor or a claim is too far below the horizon.

    A floor that is absent, or above the horizon, stays as it is: raising never lowers.
    """
    lowest = horizon - max_age / HYSTERESIS
    standing = [bound for bound in (coverage.floor, coverage.claim) if bound is not None]
    if all(bound >= lowest for bound in standing):
        return None
    return Raise(None if coverage.floor is None else max(coverage.floor, horizon))


def bound_of(coverage: Coverage, horizon: dt.datetime) -> int:
    """Only scalar Dates below this (ms) may leave: the least of horizon, floor and claim."""
    standing = [bound for bound in (coverage.floor, coverage.claim) if bound is not None]
    return to_milliseconds(min([horizon, *standing]))

"""Is F still the tier that the checkpoint was written for? Asked at every opening of the stream."""

import uuid
from dataclasses import dataclass
from enum import Enum

from bson.timestamp import Timestamp


class Origin(Enum):
    """The answer."""

    FRESH = "fresh"
    """There is no checkpoint yet, or a start from scratch was begun and not finished."""
    SAME = "same"
    WENT_BACK = "went back"
    """Restored, replaced or rolled back: the archive is the truth, F's tiered data is set aside."""
    TOO_OLD = "too old"
    """The same tier, but its oplog no longer reaches back to the checkpoint: resynchronise."""


@dataclass(frozen=True, slots=True)
class Position:
    """An epoch and how often it was counted up."""

    epoch: uuid.UUID
    counter: int


def compare(
    checkpoint: Position | None,
    time: Timestamp | None,
    beginning_anew: bool,
    marker: Position | None,
    oldest: Timestamp,
    has_entry: bool,
) -> Origin:
    """``checkpoint``, ``time``, ``beginning_anew``: from A. ``marker``: F's, read linearizably.
    ``oldest``: of F's oplog; ``has_entry``: it has an entry at exactly ``time``.

    A fork of F keeps the epoch but has no entry at exactly the checkpoint's time.
    """
    if checkpoint is None or time is None or beginning_anew:
        return Origin.FRESH
    if marker is None or marker.epoch != checkpoint.epoch or marker.counter < checkpoint.counter:
        return Origin.WENT_BACK
    if oldest > time:
        return Origin.TOO_OLD
    return Origin.SAME if has_entry else Origin.WENT_BACK

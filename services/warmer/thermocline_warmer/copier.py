"""Copies ids into the fast tier and makes sure that they are there, at majority."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.timestamp import Timestamp

from thermocline_common.clock import Clock, monotonic
from thermocline_common.copy_in import Kept, Pause, keep
from thermocline_common.coverage import Coverage
from thermocline_common.errors import ThermoclineError
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_by_ids
from thermocline_common.tiers import Tiers


class NotHeld(ThermoclineError):
    """Documents that were copied weren't found in the fast tier again and again."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Counts of one batch: ``asked`` ids, ``copied`` of them brought in by it."""

    asked: int
    copied: int


def reading_after(coverage: Coverage, archive_time: Timestamp) -> Coverage:
    """The coverage document with its ``archive_time`` at least at this time of the archive."""
    known = coverage.archive_time
    later = archive_time if known is None or archive_time > known else known
    return dataclasses.replace(coverage, archive_time=later)


async def copy_ids(
    tiers: Tiers,
    coverage: Coverage,
    ids: Iterable[DocId],
    *,
    rounds: int = 5,
    pause: Pause | None = None,
    clock: Clock = monotonic,
) -> Copied:
    """Copy, and look by id at majority that F holds every id that exists.

    What isn't found may have been deleted since: another round of copying tells. Raises
    :class:`NotHeld`, and what :func:`keep` raises.
    """
    wanted = list(ids)
    copied = 0
    left = wanted
    for _ in range(rounds):
        kept: Kept = await keep(tiers, coverage, left, pause=pause, clock=clock)
        copied += len(kept.copied)
        if pause is not None:
            await pause("verify")
        found = await _held(tiers, coverage, kept.present)
        left = [i for i in kept.present if i not in found]
        if not left:
            return Copied(len(wanted), copied)
    raise NotHeld(
        f"{coverage.namespace}: {len(left)} documents were copied into the fast tier and not found "
        f"there {rounds} times; is somebody else deleting them?"
    )


async def _held(tiers: Tiers, coverage: Coverage, ids: Iterable[DocId]) -> set[DocId]:
    fields: dict[str, Any] = {"projection": {"_id": 1}, "readConcern": {"level": "majority"}}
    if coverage.fast_uuid is not None:
        fields["collectionUUID"] = Binary.from_uuid(coverage.fast_uuid)
    return set(await find_by_ids(tiers.fast, coverage.namespace, ids, fields=fields))

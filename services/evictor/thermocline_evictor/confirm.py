"""Looks at both tiers at one and the same point: the feeder's checkpoint."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient

from thermocline_common import names
from thermocline_common.coverage import Coverage
from thermocline_common.errors import ThermoclineError
from thermocline_common.ids import DocId
from thermocline_common.quarantine import quarantined_ids
from thermocline_common.raw_reads import find_by_ids, run_raw
from thermocline_common.tiers import Tiers


class NoCheckpoint(ThermoclineError):
    """The archive has no checkpoint: the feeder has never replayed."""


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """One majority snapshot of the archive.

    ``checkpoint``: a time of F; every write of F up to it is in this snapshot. ``time`` and
    ``cluster_time``: the archive's own time of the snapshot, and a signed ``$clusterTime`` for it.
    """

    checkpoint: Timestamp
    time: Timestamp
    cluster_time: Mapping[str, Any]
    quarantined: frozenset[DocId] = frozenset()
    documents: Mapping[DocId, bytes] = field(default_factory=dict)


async def look_archive(tiers: Tiers, coverage: Coverage, ids: Iterable[DocId]) -> ArchiveView:
    """The checkpoint and the archive's copies of these ids, from its primary.

    Raises :class:`NoCheckpoint`, and PyMongo's errors (361 where the collection is another one).
    """
    command = {
        "find": names.CHECKPOINT,
        "filter": {"_id": names.CHECKPOINT_ID},
        "limit": 1,
        "singleBatch": True,
        "readConcern": {"level": "snapshot"},
    }
    reply = await run_raw(tiers.archive, names.DATABASE, command)
    batch = reply["cursor"]["firstBatch"]
    if not batch or "time" not in batch[0]:
        raise NoCheckpoint("the archive holds no checkpoint yet: is the feeder running?")
    time = reply["cursor"]["atClusterTime"]
    fields: dict[str, Any] = {"readConcern": {"level": "snapshot", "atClusterTime": time}}
    if coverage.archive_uuid is not None:
        fields["collectionUUID"] = Binary.from_uuid(coverage.archive_uuid)
    found = await find_by_ids(tiers.archive, coverage.namespace, ids, fields=fields)
    return ArchiveView(
        batch[0]["time"],
        time,
        reply["$clusterTime"],
        quarantined_ids(batch[0], coverage.namespace),
        {i: bytes(document.raw) for i, document in found.items()},
    )


async def look_fast(
    client: AsyncMongoClient[dict[str, Any]],
    coverage: Coverage,
    ids: Iterable[DocId],
    at: Timestamp,
) -> dict[DocId, bytes]:
    """F's copies of these ids at exactly a time of F. Raises PyMongo's errors (239: too long ago)."""
    fields: dict[str, Any] = {"readConcern": {"level": "snapshot", "atClusterTime": at}}
    if coverage.fast_uuid is not None:
        fields["collectionUUID"] = Binary.from_uuid(coverage.fast_uuid)
    found = await find_by_ids(client, coverage.namespace, ids, fields=fields)
    return {i: bytes(document.raw) for i, document in found.items()}

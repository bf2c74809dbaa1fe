"""Both tiers seen at one and the same point: the feeder's checkpoint, and the archive that holds it.

The archive's documents and the checkpoint commit together, so in one snapshot of the archive its copies
are what the fast tier held at exactly the checkpoint's time; whatever is written meanwhile is in neither.
Read as the proxy's own user, by ``_id``, like every other look-up; a client's command never is.
"""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from thermocline_common import names
from thermocline_common.coverage import Coverage, State, parse_coverage
from thermocline_common.errors import ThermoclineError
from thermocline_common.ids import DocId, records_filter
from thermocline_common.indexes import list_indexes
from thermocline_common.quarantine import quarantined_ids
from thermocline_common.raw_reads import find_by_ids, find_raw, run_raw
from thermocline_common.removals import Record
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.ttl import rules_of
from thermocline_proxy.verify.answers import digest
from thermocline_proxy.verify.verdicts import Difference, judge

AT_ONCE = 5
"""Documents of up to 16 MB that are held of each tier."""


class NotComparable(ThermoclineError):
    """The tiers can't be compared now: there is no checkpoint, or the namespace isn't active."""


@dataclass(frozen=True, slots=True)
class Point:
    """``fast``: the checkpoint's time, one of F. ``archive``: the time of A's snapshot that holds it."""

    fast: Timestamp
    archive: Timestamp
    checkpoint: RawBSONDocument


@dataclass(frozen=True, slots=True)
class Found:
    """A difference. ``content``: a digest of F's copy; None: F has none."""

    difference: Difference
    content: bytes | None


async def common_point(tiers: Tiers) -> Point:
    """The newest point. Raises :class:`NotComparable`, and PyMongo's errors."""
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
        raise NotComparable("the archive holds no checkpoint")
    return Point(batch[0]["time"], reply["cursor"]["atClusterTime"], batch[0])


def concern(time: Timestamp) -> dict[str, Any]:
    """The readConcern of a read at exactly a time."""
    return {"level": "snapshot", "atClusterTime": time}


async def coverage_at(tiers: Tiers, namespace: str, point: Point) -> Coverage:
    """The coverage document as it was. Raises :class:`NotComparable`, and PyMongo's errors."""
    command = {
        "find": names.COVERAGE,
        "filter": {"_id": namespace},
        "readConcern": concern(point.fast),
    }
    async for document in find_raw(tiers.fast, names.DATABASE, command):
        coverage = parse_coverage(_decode(bytes(document.raw)))
        if coverage.state is State.ACTIVE:
            return coverage
    raise NotComparable(f"{namespace} isn't active")


def _decode(raw: bytes) -> dict[str, Any]:
    return bson.decode(raw, codec_options=PLAIN)


async def differences(
    tiers: Tiers, coverage: Coverage, ids: Iterable[DocId], point: Point
) -> dict[DocId, Found]:
    """Which of these documents differ at ``point``. ``coverage``: as it was there.

    Raises PyMongo's errors: 361 where a collection is another one by now, 239 and 246 where the point
    is too long ago.
    """
    namespace = coverage.namespace
    quarantined = quarantined_ids(point.checkpoint, namespace)
    wanted = [doc_id for doc_id in ids if doc_id not in quarantined]
    found: dict[DocId, Found] = {}
    for start in range(0, len(wanted), AT_ONCE):
        found |= await _some_differences(tiers, coverage, wanted[start : start + AT_ONCE], point)
    return found


async def _some_differences(
    tiers: Tiers, coverage: Coverage, ids: list[DocId], point: Point
) -> dict[DocId, Found]:
    namespace = coverage.namespace
    here_fields: dict[str, Any] = {"readConcern": concern(point.fast)}
    there_fields: dict[str, Any] = {"readConcern": concern(point.archive)}
    if coverage.fast_uuid is not None:
        here_fields["collectionUUID"] = Binary.from_uuid(coverage.fast_uuid)
    if coverage.archive_uuid is not None:
        there_fields["collectionUUID"] = Binary.from_uuid(coverage.archive_uuid)
    here = await find_by_ids(tiers.fast, namespace, ids, fields=here_fields)
    there = await find_by_ids(tiers.archive, namespace, ids, fields=there_fields)
    records = await _records(tiers, namespace, ids, point)
    found: dict[DocId, Found] = {}
    for doc_id in ids:
        copy = _bytes(here, doc_id)
        difference = judge(copy, _bytes(there, doc_id), records.get(doc_id), coverage)
        if difference is Difference.EXTRA:
            rules = rules_of(await list_indexes(tiers.archive, namespace))
            now = await _archive_clock(tiers) if rules else None
            difference = judge(copy, None, None, coverage, rules=rules, now=now)
        if difference is not None:
            found[doc_id] = Found(difference, None if copy is None else digest(copy))
    return found


def _bytes(documents: Mapping[DocId, RawBSONDocument], doc_id: DocId) -> bytes | None:
    document = documents.get(doc_id)
    return None if document is None else bytes(document.raw)


async def _records(
    tiers: Tiers, namespace: str, ids: list[DocId], point: Point
) -> dict[DocId, Record]:
    command = {
        "find": names.REMOVED,
        "filter": RawBSONDocument(records_filter(namespace, ids)),
        "readConcern": concern(point.fast),
    }
    records = [Record.parse(d) async for d in find_raw(tiers.fast, names.DATABASE, command)]
    return {record.id: record for record in records}


async def _archive_clock(tiers: Tiers) -> dt.datetime:
    """Its wall clock, by which its TTL monitor goes."""
    hello = await tiers.archive.admin.command("hello")
    now: dt.datetime = hello["localTime"]
    return now

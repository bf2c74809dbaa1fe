"""What was where at the transaction's time: look-ups in both tiers as the proxy's own user.

The truth at a time T of F, by the authority rule: F's copies at T, the removal records at T, and of
what neither tells, the archive. A document that is only in the archive doesn't change there, so the
archive is read at a time that is before T by the feeder's count (it holds no write behind T), and
not before the ``archiveTime`` that F's coverage document has at T (it holds all that left F by then).
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from thermocline_common import names
from thermocline_common.coverage import Coverage, State, parse_coverage
from thermocline_common.ids import DocId, records_filter
from thermocline_common.portions import portions
from thermocline_common.raw_reads import find_by_ids, find_raw, read_records
from thermocline_common.removals import Record
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_proxy.transactions.refusals import MustRepeat

IN_CHUNK = 1_000


class Past:
    """One namespace at one time. Every method raises PyMongo's errors, or :class:`MustRepeat`."""

    def __init__(
        self, tiers: Tiers, seen: Coverage, at: Timestamp, archive_at: Timestamp | None
    ) -> None:
        self._tiers = tiers
        self._seen = seen
        self._namespace = seen.namespace
        self._at = at
        self._archive_at = archive_at
        self._coverage: Coverage | None = None

    @property
    def _concern(self) -> dict[str, Any]:
        return {"level": "snapshot", "atClusterTime": self._at}

    async def coverage(self) -> Coverage:
        """The coverage document as it was at the time."""
        if self._coverage is None:
            reply = await self._tiers.fast.get_database(
                names.DATABASE, codec_options=PLAIN
            ).command(
                {
                    "find": names.COVERAGE,
                    "filter": {"_id": self._namespace},
                    "singleBatch": True,
                    "readConcern": self._concern,
                },
                codec_options=PLAIN,
            )
            batch = reply["cursor"]["firstBatch"]
            found = parse_coverage(batch[0]) if batch else None
            seen = self._seen
            if (
                found is None
                or found.state is State.PASSTHROUGH
                or (found.epoch, found.fast_uuid) != (seen.epoch, seen.fast_uuid)
            ):
                raise MustRepeat(f"{self._namespace} is being switched")
            self._coverage = found
        return self._coverage

    async def in_fast(self, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Which of these F held."""
        found: set[DocId] = set()
        fields: dict[str, Any] = {"projection": {"_id": 1}, "readConcern": self._concern}
        if self._seen.fast_uuid is not None:
            fields["collectionUUID"] = Binary.from_uuid(self._seen.fast_uuid)
        for chunk in portions(dict.fromkeys(ids)):
            found |= set(await find_by_ids(self._tiers.fast, self._namespace, chunk, fields=fields))
        return frozenset(found)

    async def hidden(self, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Which of these had a record that says that they don't exist."""
        found: set[DocId] = set()
        for chunk in portions(dict.fromkeys(ids)):
            command = {
                "find": names.REMOVED,
                "filter": RawBSONDocument(records_filter(self._namespace, chunk)),
                "batchSize": len(chunk) + 1,
                "readConcern": self._concern,
            }
            async for document in find_raw(self._tiers.fast, names.DATABASE, command):
                record = Record.parse(document)
                if record.hides:
                    found.add(record.id)
        return frozenset(found)

    async def hidden_now(self, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Which of these have such a record now."""
        found: set[DocId] = set()
        for chunk in portions(dict.fromkeys(ids)):
            records = await read_records(self._tiers.fast, self._namespace, chunk)
            found |= {doc_id for doc_id, record in records.items() if record.hides}
        return frozenset(found)

    async def in_archive(self, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Which of these the archive holds now, or later than the time at least."""
        coverage = await self.coverage()
        if coverage.archive_uuid is None:
            return frozenset()
        concern: dict[str, Any] = {"level": "majority"}
        if coverage.archive_time is not None:
            concern["afterClusterTime"] = coverage.archive_time
        found: set[DocId] = set()
        for chunk in portions(dict.fromkeys(ids)):
            fields = {
                "projection": {"_id": 1},
                "readConcern": concern,
                "collectionUUID": Binary.from_uuid(coverage.archive_uuid),
            }
            found |= set(
                await find_by_ids(
                    self._tiers.archive,
                    self._namespace,
                    chunk,
                    fields=fields,
                    cluster_time=coverage.archive_cluster_time,
                )
            )
        return frozenset(found)

    async def archive_matches(
        self, query: bytes, fields: Mapping[str, Any]
    ) -> AsyncIterator[list[DocId]]:
        """Ids of the archive's matches at that time, in groups; copies of what F held are among them."""
        coverage = await self.coverage()
        if coverage.archive_uuid is None:
            return
        times = [t for t in (coverage.archive_time, self._archive_at) if t is not None]
        database, _, collection = self._namespace.partition(".")
        command = {
            "find": collection,
            "filter": RawBSONDocument(query),
            "projection": {"_id": 1},
            "batchSize": IN_CHUNK,
            "readConcern": {"level": "snapshot", "atClusterTime": max(times)},
            "collectionUUID": Binary.from_uuid(coverage.archive_uuid),
            **fields,
        }
        found = find_raw(
            self._tiers.archive, database, command, cluster_time=coverage.archive_cluster_time
        )
        group: list[DocId] = []
        async with aclosing(found):
            async for document in found:
                group.append(DocId.of_document(bytes(document.raw)))
                if len(group) == IN_CHUNK:
                    yield group
                    group = []
        if group:
            yield group

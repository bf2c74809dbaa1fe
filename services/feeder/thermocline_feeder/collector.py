"""Removes removal records that nothing rests on any more, and markers of processes that are gone."""

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from pymongo import WriteConcern
from pymongo.read_concern import ReadConcern

from thermocline_common import names
from thermocline_common.clock import Clock
from thermocline_common.coverage_store import MAJORITY, outlive_leases, raise_archive_time
from thermocline_common.ids import DocId, record_id
from thermocline_common.portions import cut
from thermocline_common.raw_reads import find_by_ids, find_raw
from thermocline_common.removals import Record
from thermocline_common.reserved import reserved_sessions
from thermocline_common.tiers import Tiers
from thermocline_feeder.plan.records import FirstSeen, removable
from thermocline_feeder.registry import Registry
from thermocline_feeder.replay import Replay
from thermocline_feeder.settings import Settings
from thermocline_feeder.switch import archive_now

CHUNK = 500


@dataclass(slots=True)
class Collector:
    """``records``: how many there were at the last scan. ``removed``: since this process started."""

    tiers: Tiers
    settings: Settings
    registry: Registry
    replay: Replay
    clock: Clock
    records: int = 0
    removed: int = 0
    _seen: FirstSeen = field(init=False)

    def __post_init__(self) -> None:
        self._seen = FirstSeen(self.settings.record_age)

    async def scan(self) -> None:
        """One scan. Raises PyMongo's errors."""
        records = await self._read()
        self.records = len(records)
        due = defaultdict(list)
        for record in self._seen.due(records, self.clock()):
            if record.namespace in self.registry.pairs:
                due[record.namespace].append(record)
        if not due:
            return
        # Replay has passed everything that these records were written for: A's answer is final.
        await self.replay.past_now()
        for namespace, of_namespace in due.items():
            gone: list[Record] = []
            for start in range(0, len(of_namespace), CHUNK):
                chunk = of_namespace[start : start + CHUNK]
                gone += await self._look(namespace, chunk)
            await self._remove(namespace, gone)

    async def _read(self) -> list[Record]:
        command = {"find": names.REMOVED, "batchSize": 10_000, "readConcern": {"level": "majority"}}
        return [
            Record.parse(document)
            async for document in find_raw(self.tiers.fast, names.DATABASE, command)
        ]

    async def _look(self, namespace: str, due: list[Record]) -> list[Record]:
        pair = self.registry.pairs.get(namespace)
        if pair is None:
            return []
        ids = [record.id for record in due if record.hides]
        fields: dict[str, Any] = {"projection": {"_id": 1}, "readConcern": {"level": "majority"}}
        in_fast: dict[DocId, RawBSONDocument] = {}
        in_archive: dict[DocId, RawBSONDocument] = {}
        if ids and pair.archive is not None:
            own = {**fields, "collectionUUID": Binary.from_uuid(pair.archive)}
            in_archive = await find_by_ids(self.tiers.archive, namespace, ids, fields=own)
        if ids and pair.fast is not None:
            own = {**fields, "collectionUUID": Binary.from_uuid(pair.fast)}
            in_fast = await find_by_ids(self.tiers.fast, namespace, ids, fields=own)
        return removable(due, in_fast, in_archive)

    async def _remove(self, namespace: str, gone: list[Record]) -> None:
        if not gone:
            return
        if any(record.hides for record in gone):
            # Whoever reads A from now on must see it as it was when A was asked above.
            time, cluster_time = await archive_now(self.tiers.archive, namespace)
            await raise_archive_time(self.tiers, [namespace], time, cluster_time)
            await outlive_leases(self.tiers.archive)
        database = self.tiers.fast[names.DATABASE]
        for chunk in cut(gone, lambda record: len(record.id.value), CHUNK):
            deletes = [
                {
                    "q": {
                        "_id": RawBSONDocument(record_id(namespace, r.id)),
                        "token": Binary.from_uuid(r.token),
                    },
                    "limit": 1,
                }
                for r in chunk
            ]
            async with reserved_sessions(self.tiers.fast).session() as session:
                await session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority"))
                reply = await database.command(
                    {"delete": names.REMOVED, "deletes": deletes}, session=session
                )
                await session.commit_transaction()
            self.removed += int(reply["n"])

    async def collect_markers(self) -> None:
        """Remove barrier markers that nobody has touched for a day."""
        before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self.settings.marker_age)
        query = {"_id": {"$gte": "barrier:", "$lt": "barrier;"}, "at": {"$lt": before}}
        await self.tiers.fast[names.DATABASE].command(
            {
                "delete": names.MARKERS,
                "deletes": [{"q": query, "limit": 0}],
                "writeConcern": MAJORITY,
            }
        )

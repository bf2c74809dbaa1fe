"""F's oplog no longer reaches back: bring A up to F's documents and records, which are the truth."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from thermocline_common import names
from thermocline_common.barrier import write_marker
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_by_ids, find_raw
from thermocline_common.removals import Kind, Record
from thermocline_common.tiers import Tiers
from thermocline_feeder.applier import Applier, Prepared
from thermocline_feeder.fetch import fetch_state
from thermocline_feeder.plan.records import records_of
from thermocline_feeder.plan.verdicts import Verdict, judge
from thermocline_feeder.registry import Pair, Registry

log = logging.getLogger(__name__)

CHUNK = 2_000
CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Resync:
    """``documents``: compared so far; ``written``: those that differed."""

    tiers: Tiers
    me: uuid.UUID
    registry: Registry
    applier: Applier
    progress: Callable[[str], None]
    documents: int = 0
    written: int = 0

    async def run(self) -> Timestamp:
        """Bring A up to date; the time from which the stream must be read afterwards.

        What is written to F meanwhile is replayed from that time on, so each document is read
        whenever its turn comes. The checkpoint doesn't move until everything is through, so nobody
        reads A's mixed state behind a barrier, and nothing is evicted.
        """
        start = await write_marker(self.tiers, f"barrier:{self.me}")
        log.warning(
            "the fast tier's oplog no longer reaches back to the checkpoint; resynchronising"
        )
        for namespace, pair in sorted(self.registry.pairs.items()):
            self.progress(f"resynchronising {namespace}: {self.documents} documents compared")
            if pair.fast is not None:
                await self._documents(namespace, pair)
            await self._records(namespace, pair)
        return start

    async def _documents(self, namespace: str, pair: Pair) -> None:
        assert pair.fast is not None
        database, name = namespace.split(".", 1)
        last: DocId | None = None
        while True:
            command: dict[str, Any] = {
                "find": name,
                "sort": {"_id": 1},
                "hint": {"_id": 1},
                "limit": CHUNK,
                "batchSize": CHUNK + 1,
                "readConcern": {"level": "majority"},
                "collectionUUID": Binary.from_uuid(pair.fast),
            }
            if last is not None:
                command["min"] = RawBSONDocument(last.document())
                command["limit"] = command["batchSize"] = CHUNK + 1
            group: list[tuple[DocId, bytes]] = []
            size = 0
            count = 0
            async for document in find_raw(self.tiers.fast, database, command):
                raw = bytes(document.raw)
                doc_id = DocId.of_document(raw)
                if doc_id == last:
                    continue
                count += 1
                group.append((doc_id, raw))
                size += len(raw)
                if size > CHUNK_BYTES:
                    await self._write(namespace, pair, group)
                    last, group, size = doc_id, [], 0
            if group:
                await self._write(namespace, pair, group)
                last = group[-1][0]
            if count < CHUNK:
                return

    async def _write(self, namespace: str, pair: Pair, group: list[tuple[DocId, bytes]]) -> None:
        self.documents += len(group)
        present = await find_by_ids(
            self.tiers.archive,
            namespace,
            [i for i, _ in group],
            fields={"readConcern": {"level": "majority"}},
        )
        differing = [
            Verdict(namespace, i, raw, pair.archive)
            for i, raw in group
            if i not in present or bytes(present[i].raw) != raw
        ]
        await self._apply(namespace, differing)

    async def _records(self, namespace: str, pair: Pair) -> None:
        query = records_of(namespace)
        deleted: list[DocId] = []
        command = {
            "find": names.REMOVED,
            "filter": RawBSONDocument(query),
            "readConcern": {"level": "majority"},
        }
        async for document in find_raw(self.tiers.fast, names.DATABASE, command):
            record = Record.parse(document)
            if record.kind is Kind.DELETED:
                deleted.append(record.id)
        for start in range(0, len(deleted), CHUNK):
            ids = deleted[start : start + CHUNK]
            # Both at one time again: a document that came back meanwhile must win.
            time = await write_marker(self.tiers, f"barrier:{self.me}")
            state = await fetch_state(self.tiers.fast, namespace, pair.fast, ids, time)
            await self._apply(
                namespace, judge(namespace, ids, state.documents, state.records, pair.archive)
            )

    async def _apply(self, namespace: str, verdicts: list[Verdict]) -> None:
        if not verdicts:
            return

        async def more(other: str, ids: list[DocId]) -> list[Verdict]:
            pair = self.registry.pairs[other]
            time = await write_marker(self.tiers, f"barrier:{self.me}")
            state = await fetch_state(self.tiers.fast, other, pair.fast, ids, time)
            return judge(other, ids, state.documents, state.records, pair.archive)

        touched = {namespace: {v.id for v in verdicts}}
        await self.applier.apply(Prepared(verdicts, touched, {}, more))
        self.written += len(verdicts)

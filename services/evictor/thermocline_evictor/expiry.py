"""Carries the archive's TTL rules out in F, where TTL indexes are built without expiry.

As ordinary deletes, so that change streams show them; with ``expired`` records, for which the feeder
deletes nothing in the archive: its own TTL monitor does.
"""

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from pymongo import WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.read_concern import ReadConcern

from thermocline_common import names
from thermocline_common.copy_in import Pause
from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId, in_filter
from thermocline_common.indexes import list_indexes
from thermocline_common.portions import portions
from thermocline_common.raw_reads import find_by_ids, find_raw, read_records, run_raw
from thermocline_common.removals import Kind
from thermocline_common.reserved import reserved_sessions
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.ttl import Rule, rules_of
from thermocline_evictor.plan.expiry import due_filter
from thermocline_evictor.records import MAJORITY, record_query

BATCH = 500


async def read_rules(tiers: Tiers, namespace: str) -> tuple[Rule, ...]:
    """The TTL rules of the archive's collection."""
    return rules_of(await list_indexes(tiers.archive, namespace))


async def archive_clock(tiers: Tiers) -> dt.datetime:
    """The archive's own wall clock: F must expire nothing earlier than the archive does."""
    reply = await tiers.archive.admin.command({"hello": 1}, codec_options=PLAIN)
    now: dt.datetime = reply["localTime"]
    return now


async def expire(
    tiers: Tiers,
    coverage: Coverage,
    rules: Iterable[Rule],
    now: dt.datetime,
    *,
    pause: Pause | None = None,
) -> int:
    """Delete from F what the rules expire at ``now`` and the archive has removed; how many. Raises PyMongo's errors.

    F is never ahead: what the archive still holds would keep its unique keys there, so that what takes
    them over in F couldn't be replayed; and another version there may not be due.
    """
    deleted = 0
    for rule in rules:
        condition = due_filter(rule, now)
        skip: set[DocId] = set()
        while True:
            ids = [
                i
                for i in await _due(tiers, coverage, condition, BATCH + len(skip))
                if i not in skip
            ]
            if not ids:
                break
            for portion in portions(ids, BATCH):
                deleted += await _expire_batch(tiers, coverage, condition, portion, pause)
            skip |= set(ids)
            if len(skip) > 20 * BATCH:
                break
    return deleted


async def _expire_batch(
    tiers: Tiers,
    coverage: Coverage,
    condition: Mapping[str, Any],
    ids: list[DocId],
    pause: Pause | None,
) -> int:
    ids = await _gone_from_archive(tiers, coverage, ids)
    recorded = await _record(tiers, coverage, condition, ids)
    if pause is not None:
        await pause("expire")
    return await _delete(tiers, coverage, condition, recorded) if recorded else 0


async def _due(
    tiers: Tiers,
    coverage: Coverage,
    condition: Mapping[str, Any],
    limit: int,
    session: AsyncClientSession | None = None,
    among: Iterable[DocId] | None = None,
) -> list[DocId]:
    database, collection = coverage.namespace.split(".", 1)
    query: Any = dict(condition)
    if among is not None:
        query = {"$and": [RawBSONDocument(in_filter(among)), query]}
    command: dict[str, Any] = {
        "find": collection,
        "filter": query,
        "projection": {"_id": 1},
        "limit": limit,
        "batchSize": limit,
        **_uuid_field(coverage),
    }
    return [
        DocId.of_document(bytes(document.raw))
        async for document in find_raw(tiers.fast, database, command, session=session)
    ]


async def _gone_from_archive(tiers: Tiers, coverage: Coverage, ids: list[DocId]) -> list[DocId]:
    fields = {"projection": {"_id": 1}, "readConcern": {"level": "majority"}}
    there = await find_by_ids(tiers.archive, coverage.namespace, ids, fields=fields)
    return [i for i in ids if i not in there]


async def _record(
    tiers: Tiers, coverage: Coverage, condition: Mapping[str, Any], ids: list[DocId]
) -> list[DocId]:
    """Write ``expired`` records for those that are there and due; a ``deleted`` one is left alone.

    In a reserved session: replay has nothing to do for them, and would write anew what the archive
    has removed already, as long as the document is still here.
    """
    if not ids:
        return []
    async with (
        reserved_sessions(tiers.fast).session() as session,
        await session.start_transaction(
            read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
        ),
    ):
        due = await _due(tiers, coverage, condition, len(ids), session, ids)
        records = await read_records(tiers.fast, coverage.namespace, due, session=session)
        wanted = [i for i in due if i not in records or records[i].kind is not Kind.DELETED]
        if not wanted:
            return []
        updates = [
            {
                "q": record_query(coverage.namespace, i),
                "u": {
                    "$set": {
                        "kind": Kind.EXPIRED.value,
                        "token": Binary.from_uuid(uuid.uuid4()),
                    }
                },
                "upsert": True,
            }
            for i in wanted
        ]
        command = {"update": names.REMOVED, "updates": updates}
        await run_raw(tiers.fast, names.DATABASE, command, session=session)
    return wanted


async def _delete(
    tiers: Tiers, coverage: Coverage, condition: Mapping[str, Any], ids: list[DocId]
) -> int:
    database, collection = coverage.namespace.split(".", 1)
    query = {"$and": [RawBSONDocument(in_filter(ids)), dict(condition)]}
    command = {
        "delete": collection,
        "deletes": [{"q": query, "limit": 0}],
        "writeConcern": MAJORITY,
        **_uuid_field(coverage),
    }
    return int((await run_raw(tiers.fast, database, command))["n"])


def _uuid_field(coverage: Coverage) -> dict[str, Any]:
    if coverage.fast_uuid is None:
        return {}
    return {"collectionUUID": Binary.from_uuid(coverage.fast_uuid)}

"""F's documents and removal records at exactly one cluster time."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from thermocline_common import names
from thermocline_common.ids import DocId, in_filter, records_filter
from thermocline_common.portions import portions
from thermocline_common.raw_reads import Client, run_raw
from thermocline_common.removals import Record
from thermocline_common.tiers import RAW
from thermocline_feeder.plan.replies import cursor_of, id_element, id_of

CHUNK = 3_000
"""Ids in one find command."""
CHUNK_BYTES = 8 * 1024 * 1024
"""Of their values."""


class TooMuch(Exception):
    """The documents are more than one batch should hold: take fewer."""


@dataclass(slots=True)
class State:
    """What F says of one namespace's ids, all at one time."""

    documents: dict[DocId, bytes] = field(default_factory=dict)
    records: dict[DocId, Record] = field(default_factory=dict)


async def fetch_state(
    fast: Client,
    namespace: str,
    collection: uuid.UUID | None,
    ids: Iterable[DocId],
    time: Timestamp,
    *,
    most_bytes: int | None = None,
) -> State:
    """The documents, then the records of those that are absent, both at ``time``.

    ``collection`` None: the namespace has no collection in F, so only records are looked up. Records
    of documents that F holds say nothing, because F's copy wins. Raises :class:`TooMuch` beyond
    ``most_bytes``, and PyMongo's errors: 239 or 246 (that time is gone), 361 (another collection).
    """
    state = State()
    wanted = list(ids)
    by_element = {doc_id.element(): doc_id for doc_id in wanted}
    documents = state.documents
    concern = {"level": "snapshot", "atClusterTime": time}
    database, name = namespace.split(".", 1)
    size = 0
    if collection is not None:
        for chunk in portions(wanted, CHUNK, CHUNK_BYTES):
            command: dict[str, Any] = {
                "find": name,
                "filter": RawBSONDocument(in_filter(chunk)),
                "batchSize": len(chunk) + 1,
                "readConcern": concern,
                "collectionUUID": Binary.from_uuid(collection),
            }
            async for batch in _batches(fast, database, command):
                size += sum(map(len, batch))
                for raw in batch:
                    # The same object as in ``wanted``: later look-ups need no comparison.
                    doc_id = by_element.get(id_element(raw))
                    documents[doc_id if doc_id is not None else id_of(raw)] = raw
            if most_bytes is not None and size > most_bytes:
                raise TooMuch
    absent = []
    if len(documents) < len(wanted):
        absent = [i for i in wanted if i not in documents]
    for chunk in portions(absent, CHUNK, CHUNK_BYTES):
        command = {
            "find": names.REMOVED,
            "filter": RawBSONDocument(records_filter(namespace, chunk)),
            "batchSize": len(chunk) + 1,
            "readConcern": concern,
        }
        async for batch in _batches(fast, names.DATABASE, command):
            for raw in batch:
                record = Record.parse(RawBSONDocument(raw, RAW))
                state.records[record.id] = record
    return state


async def _batches(
    client: Client, database: str, command: dict[str, Any]
) -> AsyncIterator[list[bytes]]:
    """The documents of a find command, reply by reply. Raises PyMongo's errors."""
    session = client.start_session(causal_consistency=False)
    cursor = 0
    try:
        reply = await run_raw(client, database, command, session=session)
        while True:
            # Not by the reply's fields: that would make an object of every document.
            cursor, batch = cursor_of(bytes(reply.raw))
            yield batch
            if not cursor:
                return
            more = {"getMore": Int64(cursor), "collection": command["find"]}
            reply = await run_raw(client, database, more, session=session)
    finally:
        if cursor:
            kill = {"killCursors": command["find"], "cursors": [Int64(cursor)]}
            with contextlib.suppress(PyMongoError):
                await run_raw(client, database, kill, session=session)
        await session.end_session()

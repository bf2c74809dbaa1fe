"""Reads of raw documents by plain commands: any readConcern, any extra field, all batches in one session."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.read_preferences import _ServerMode

from thermocline_common import names
from thermocline_common.ids import DocId, in_filter, records_filter
from thermocline_common.portions import portions
from thermocline_common.removals import Record
from thermocline_common.tiers import RAW, raw_database

Client = AsyncMongoClient[dict[str, Any]]

IDS_A_COMMAND = 3_000


async def run_raw(
    client: Client,
    database: str,
    command: Mapping[str, Any],
    *,
    session: AsyncClientSession | None = None,
    read_preference: _ServerMode = ReadPreference.PRIMARY,
) -> RawBSONDocument:
    """One command; its whole reply, raw. Raises PyMongo's errors."""
    return await raw_database(client, database).command(
        dict(command), session=session, read_preference=read_preference, codec_options=RAW
    )


async def find_raw(
    client: Client,
    database: str,
    command: Mapping[str, Any],
    *,
    session: AsyncClientSession | None = None,
    read_preference: _ServerMode = ReadPreference.PRIMARY,
    cluster_time: Mapping[str, Any] | None = None,
    more_size: Callable[[], int] | None = None,
) -> AsyncGenerator[RawBSONDocument, None]:
    """Every document of a ``find`` or ``aggregate`` command, in order.

    The command goes as it is, so ``readConcern``, ``collectionUUID`` and ``batchSize`` are the
    caller's. ``more_size`` says how large each further batch may be; None: as large as a ``find``'s
    ``batchSize``, or else as a reply holds. ``cluster_time``: the tier's signed ``$clusterTime`` to make known to the member.
    Raises PyMongo's errors; a cursor that is left early is killed.
    """
    own = session is None
    session = session or client.start_session(causal_consistency=False)
    if cluster_time is not None:
        session.advance_cluster_time(cluster_time)
    cursor_id, collection = 0, ""
    try:
        reply = await run_raw(
            client, database, command, session=session, read_preference=read_preference
        )
        cursor = reply["cursor"]
        cursor_id = int(cursor["id"])
        collection = str(cursor["ns"]).split(".", 1)[1]
        for document in cursor["firstBatch"]:
            yield document
        while cursor_id:
            more = {"getMore": Int64(cursor_id), "collection": collection}
            size = command.get("batchSize") if more_size is None else more_size()
            if size is not None:
                more["batchSize"] = size
            reply = await run_raw(
                client, database, more, session=session, read_preference=read_preference
            )
            cursor = reply["cursor"]
            cursor_id = int(cursor["id"])
            for document in cursor["nextBatch"]:
                yield document
    finally:
        if cursor_id:
            kill = {"killCursors": collection, "cursors": [Int64(cursor_id)]}
            await run_raw(client, database, kill, session=session, read_preference=read_preference)
        if own:
            await session.end_session()


async def find_by_ids(
    client: Client,
    namespace: str,
    ids: Iterable[DocId],
    *,
    fields: Mapping[str, Any] | None = None,
    session: AsyncClientSession | None = None,
    cluster_time: Mapping[str, Any] | None = None,
) -> dict[DocId, RawBSONDocument]:
    """The documents of these ids, from the primary. ``fields``: more fields of the find command.

    Long ids take several commands: what needs one moment for all states it (a session's transaction,
    ``atClusterTime``).
    """
    database, collection = namespace.split(".", 1)
    found = {}
    for wanted in portions(ids, IDS_A_COMMAND):
        command = {
            "find": collection,
            "filter": RawBSONDocument(in_filter(wanted)),
            "batchSize": len(wanted) + 1,
        }
        command.update(fields or {})
        async for document in find_raw(
            client, database, command, session=session, cluster_time=cluster_time
        ):
            found[DocId.of_document(bytes(document.raw))] = document
    return found


async def read_records(
    client: Client,
    namespace: str,
    ids: Iterable[DocId],
    *,
    session: AsyncClientSession | None = None,
) -> dict[DocId, Record]:
    """The removal records of these ids, from the fast tier's primary (``client`` is the fast tier's)."""
    found = {}
    for wanted in portions(ids, IDS_A_COMMAND):
        command = {
            "find": names.REMOVED,
            "filter": RawBSONDocument(records_filter(namespace, wanted)),
            "batchSize": len(wanted) + 1,
        }
        async for document in find_raw(client, names.DATABASE, command, session=session):
            record = Record.parse(document)
            found[record.id] = record
    return found


def operation_time(reply: Mapping[str, Any]) -> Timestamp:
    """The ``operationTime`` of a reply. Raises ``KeyError`` on a server that isn't in a replica set."""
    time: Timestamp = reply["operationTime"]
    return time

"""The change stream on F, read by plain commands so that nothing resumes behind our back."""

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from thermocline_common import names
from thermocline_common.raw_reads import Client, run_raw
from thermocline_common.sessions import RANGE
from thermocline_feeder.plan.dirty import Change, Parser
from thermocline_feeder.plan.replies import batch_of

REPLY_EVENTS = 5_000
MAYBE_FULL_BYTES = 8 * 1024 * 1024
"""A reply bigger than this may have been cut by size, so its last transaction may go on."""


def pipeline(start: Timestamp, namespaces: Iterable[str]) -> list[dict[str, Any]]:
    """Everything about these namespaces, removal records and markers; not our own reserved sessions.

    Names are matched as values, never as patterns: they may hold dots, ``$`` and spaces.
    """
    wanted: list[dict[str, str]] = [
        {"db": names.DATABASE, "coll": names.REMOVED},
        {"db": names.DATABASE, "coll": names.MARKERS},
    ]
    databases = set()
    for namespace in sorted(namespaces):
        database, collection = namespace.split(".", 1)
        wanted.append({"db": database, "coll": collection})
        databases.add(database)
    low, high = (Binary(uuid.UUID(bytes=b).bytes, 4) for b in RANGE)
    return [
        {
            "$changeStream": {
                "allChangesForCluster": True,
                "showExpandedEvents": True,
                "startAtOperationTime": start,
            }
        },
        {
            "$match": {
                "$or": [
                    {"ns": {"$in": wanted}},
                    {"operationType": "dropDatabase", "ns.db": {"$in": sorted(databases)}},
                ],
                # A range of UUIDs; an absent lsid (no transaction) passes.
                "$nor": [{"lsid.id": {"$gte": low, "$lte": high}}],
            }
        },
        # _id, the token, stays by itself: touching it ends the stream (error 280).
        {
            "$project": {
                "operationType": 1,
                "ns": 1,
                "documentKey._id": 1,
                "clusterTime": 1,
                "collectionUUID": 1,
            }
        },
    ]


@dataclass(frozen=True, slots=True)
class Events:
    """One reply. ``caught_up``: there was nothing more at that moment. ``read_at``: monotonic seconds."""

    changes: list[Change]
    caught_up: bool
    read_at: float


class Stream:
    """One open cursor. Any error ends it: open another from the checkpoint.

    ``most_events``: of one reply; hand it on to the next stream. It falls with every broken reply,
    because the server closes the connection where many long ids and the resume token, which repeats
    the last one, don't fit into one message together; it rises again with full replies.
    """

    def __init__(self, fast: Client, await_data: float, most_events: int = REPLY_EVENTS) -> None:
        self._fast = fast
        self.most_events = most_events
        self._await_ms = int(await_data * 1000)
        self._session: AsyncClientSession | None = None
        self._cursor = 0
        self._parser = Parser()

    async def open(self, start: Timestamp, namespaces: Iterable[str]) -> None:
        """Open at ``start``, the events of that time included. Raises PyMongo's errors."""
        self._session = self._fast.start_session(causal_consistency=False)
        reply = await run_raw(
            self._fast,
            "admin",
            {
                "aggregate": 1,
                "pipeline": pipeline(start, namespaces),
                "cursor": {"batchSize": 0},
                "readConcern": {"level": "majority"},
            },
            session=self._session,
        )
        self._cursor = int(reply["cursor"]["id"])

    @property
    def cluster_time(self) -> Mapping[str, Any] | None:
        """F's signed ``$clusterTime`` as last seen."""
        return None if self._session is None else self._session.cluster_time

    async def read(self) -> Events:
        """The next reply; empty after an idle ``await_data``. Raises PyMongo's errors."""
        most = self.most_events
        command = {
            "getMore": Int64(self._cursor),
            "collection": "$cmd.aggregate",
            "batchSize": most,
            "maxTimeMS": self._await_ms,
        }
        try:
            reply = await run_raw(self._fast, "admin", command, session=self._session)
        except PyMongoError:
            self.most_events = max(1, most // 8)
            raise
        batch = batch_of(bytes(reply.raw))
        changes = [self._parser.parse(event) for event in batch]
        if len(batch) >= most:
            self.most_events = min(REPLY_EVENTS, most * 2)
        full = len(batch) >= most or len(reply.raw) > MAYBE_FULL_BYTES
        return Events(changes, not full, time.monotonic())

    async def close(self) -> None:
        """Kill the cursor, as far as the server can be reached."""
        if self._session is None:
            return
        session, self._session = self._session, None
        try:
            if self._cursor:
                command = {"killCursors": "$cmd.aggregate", "cursors": [Int64(self._cursor)]}
                await run_raw(self._fast, "admin", command, session=session)
        except PyMongoError:
            pass  # The server is away: its session goes, and the cursor with it.
        finally:
            await session.end_session()

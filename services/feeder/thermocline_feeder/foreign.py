"""Watches A for writes to active namespaces that aren't the feeder's: they bypass the proxy."""

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from thermocline_common import names
from thermocline_common.indexes import list_indexes
from thermocline_common.raw_reads import Client, run_raw
from thermocline_common.sessions import RANGE
from thermocline_feeder.plan.dirty import DATA_OPERATIONS
from thermocline_feeder.registry import Registry

log = logging.getLogger(__name__)


def pipeline(
    start: Timestamp | None, namespaces: Iterable[str], *, with_list: bool = False
) -> list[dict[str, Any]]:
    """Data events of these namespaces outside the reserved sessions; ``with_list``: ``tiered``'s too."""
    wanted = [dict(zip(("db", "coll"), ns.split(".", 1), strict=True)) for ns in sorted(namespaces)]
    if with_list:
        wanted.append({"db": names.DATABASE, "coll": names.TIERED})
    low, high = (Binary(uuid.UUID(bytes=b).bytes, 4) for b in RANGE)
    stage: dict[str, Any] = {"allChangesForCluster": True}
    if start is not None:
        stage["startAtOperationTime"] = start
    return [
        {"$changeStream": stage},
        {
            "$match": {
                "ns": {"$in": wanted},
                "operationType": {"$in": sorted(kind.decode() for kind in DATA_OPERATIONS)},
                "$nor": [{"lsid.id": {"$gte": low, "$lte": high}}],
            }
        },
        {"$project": {"operationType": 1, "ns": 1, "clusterTime": 1}},
    ]


class Watch:
    """One open stream on A."""

    def __init__(self, archive: Client) -> None:
        self._archive = archive
        self._session: AsyncClientSession | None = None
        self._cursor = 0

    async def open(self, stages: list[dict[str, Any]]) -> None:
        """Raises PyMongo's errors."""
        self._session = self._archive.start_session(causal_consistency=False)
        command = {
            "aggregate": 1,
            "pipeline": stages,
            "cursor": {"batchSize": 0},
            "readConcern": {"level": "majority"},
        }
        reply = await run_raw(self._archive, "admin", command, session=self._session)
        self._cursor = int(reply["cursor"]["id"])

    async def read(self, wait_ms: int) -> list[Mapping[str, Any]]:
        """The next events; empty after ``wait_ms``."""
        command = {
            "getMore": Int64(self._cursor),
            "collection": "$cmd.aggregate",
            "maxTimeMS": wait_ms,
        }
        reply = await run_raw(self._archive, "admin", command, session=self._session)
        return list(reply["cursor"]["nextBatch"])

    async def close(self) -> None:
        """Kill the cursor, as far as the server can be reached."""
        if self._session is None:
            return
        session, self._session = self._session, None
        try:
            if self._cursor:
                command = {"killCursors": "$cmd.aggregate", "cursors": [Int64(self._cursor)]}
                await run_raw(self._archive, "admin", command, session=session)
        except PyMongoError:
            log.debug("the watch's cursor couldn't be killed")
        finally:
            await session.end_session()


async def has_expiry(archive: Client, namespace: str) -> bool:
    """Whether a TTL index of the archive deletes there by itself."""
    return any("expireAfterSeconds" in spec for spec in await list_indexes(archive, namespace))


async def writes_since(archive: Client, namespace: str, start: Timestamp, end: Timestamp) -> int:
    """How many foreign writes the namespace had in A from ``start`` to ``end``.

    ``end`` is the time of a write to A's ``tiered``, so the stream surely comes to it.
    """
    watch = Watch(archive)
    expires = await has_expiry(archive, namespace)
    count = 0
    try:
        await watch.open(pipeline(start, [namespace], with_list=True))
        while True:
            for event in await watch.read(1_000):
                if event["ns"]["db"] == names.DATABASE:
                    if event["clusterTime"] >= end:
                        return count
                elif event["clusterTime"] > start and not (
                    expires and event["operationType"] == "delete"
                ):
                    count += 1
    finally:
        await watch.close()


class ForeignWrites:
    """Counts per namespace since this process began to watch."""

    def __init__(
        self,
        archive: Client,
        registry: Registry,
        noticed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._archive = archive
        self._registry = registry
        self._noticed = noticed
        self.counts: Counter[str] = Counter()
        self._seen_to: dict[str, Timestamp | None] = {}

    def forget_times(self) -> None:
        """A's oplog no longer reaches back: watch from now on."""
        self._seen_to = dict.fromkeys(self._seen_to)

    async def run(self, since: Mapping[str, Timestamp | None]) -> None:
        """Watch these namespaces, each from its time on, until cancelled. Raises PyMongo's errors."""
        self._seen_to = {
            ns: _later(self._seen_to[ns], time) if ns in self._seen_to else time
            for ns, time in since.items()
        }
        times = [time for time in self._seen_to.values() if time is not None]
        expires: set[str] = set()
        watch = Watch(self._archive)
        try:
            await watch.open(pipeline(min(times) if times else None, since))
            while True:
                events = await watch.read(1_000)
                # Asked only now: the index may have been made after the watch began.
                for namespace in deleted_from(events) - expires:
                    if await has_expiry(self._archive, namespace):
                        expires.add(namespace)
                for event in events:
                    self._count(event, expires)
        finally:
            await watch.close()

    def _count(self, event: Mapping[str, Any], expires: set[str]) -> None:
        namespace = _namespace(event)
        time, seen_to = event["clusterTime"], self._seen_to.get(namespace)
        if seen_to is not None and time <= seen_to:
            return
        self._seen_to[namespace] = time
        pair = self._registry.pairs.get(namespace)
        if pair is None or (pair.since is not None and time <= pair.since):
            return  # written through the proxy, while the archive takes the namespace's writes
        if not (namespace in expires and event["operationType"] == "delete"):
            self.counts[namespace] += 1
            self._noticed(namespace)


def _namespace(event: Mapping[str, Any]) -> str:
    return f"{event['ns']['db']}.{event['ns']['coll']}"


def deleted_from(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """The namespaces of the deletes among these events."""
    return {_namespace(event) for event in events if event["operationType"] == "delete"}


def _later(seen: Timestamp | None, since: Timestamp | None) -> Timestamp | None:
    """Where to go on: an activation may be newer than what was seen before it. None: from now on."""
    if seen is None or since is None:
        return None
    return max(seen, since)

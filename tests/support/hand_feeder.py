"""A feeder made by hand, for tests of the evictor and the warmer: exact, slow, and held at will.

It replays by comparing whole collections, so it is for a few thousand documents at most.
"""

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from thermocline_common import coverage_store, names
from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_raw, run_raw
from thermocline_common.removals import Record
from thermocline_common.tiers import PLAIN, Tiers

MAJORITY = {"w": "majority", "wtimeout": 10_000}


async def collection_uuid(client: Any, namespace: str) -> uuid.UUID:
    """The UUID of an existing collection."""
    database, collection = namespace.split(".", 1)
    reply = await client.get_database(database).command(
        {"listCollections": 1, "filter": {"name": collection}}, codec_options=PLAIN
    )
    found: uuid.UUID = reply["cursor"]["firstBatch"][0]["info"]["uuid"]
    return found


async def archive_now(tiers: Tiers) -> Timestamp:
    """A's current time."""
    time: Timestamp = (await tiers.archive.admin.command("ping"))["operationTime"]
    return time


async def activate(
    tiers: Tiers, namespace: str, age_field: str | None = "t", **fields: Any
) -> Coverage:
    """Make the collection on both tiers (A's may exist), with A's indexes, and its coverage document.

    ``age_field`` None: ``keep: All``. ``fields``: more fields of the coverage document.
    """
    database, collection = namespace.split(".", 1)
    there, here = tiers.archive[database], tiers.fast[database]
    if collection not in await there.list_collection_names():
        await there.create_collection(collection)
    if age_field is not None:
        await there[collection].create_index([(age_field, 1)])
    await here.create_collection(collection)
    async for index in await there[collection].list_indexes():
        spec = {k: v for k, v in index.items() if k not in ("ns", "expireAfterSeconds")}
        if spec["name"] != "_id_":
            await here.command({"createIndexes": collection, "indexes": [spec]})
    document: dict[str, Any] = {
        "_id": namespace,
        "formatVersion": 1,
        "epoch": Binary.from_uuid(uuid.uuid4()),
        "state": "Active",
        "target": "Active",
        "uuids": {
            "fast": Binary.from_uuid(await collection_uuid(tiers.fast, namespace)),
            "archive": Binary.from_uuid(await collection_uuid(tiers.archive, namespace)),
        },
        "archiveTime": await archive_now(tiers),
        "raised": Int64(1),
        **({"ageField": age_field} if age_field else {"keep": "All"}),
        **fields,
    }
    await tiers.fast[names.DATABASE][names.COVERAGE].insert_one(document)
    # Transactions need their collections to exist.
    for name in (names.REMOVED, names.MARKERS):
        with contextlib.suppress(Exception):
            await tiers.fast[names.DATABASE].create_collection(name)
    return await coverage(tiers, namespace)


async def coverage(tiers: Tiers, namespace: str) -> Coverage:
    """The coverage document now."""
    found = await coverage_store.read_one(tiers, namespace)
    assert found is not None
    return found


async def documents(client: Any, namespace: str, **fields: Any) -> dict[DocId, bytes]:
    """Every document of a collection, as bytes, by id."""
    database, collection = namespace.split(".", 1)
    command: Mapping[str, Any] = {"find": collection, **fields}
    found = {}
    async for document in find_raw(client, database, command):
        raw = bytes(document.raw)
        found[DocId.of_document(raw)] = raw
    return found


async def records(tiers: Tiers, namespace: str, **fields: Any) -> dict[DocId, Record]:
    """Every removal record of a namespace."""
    command = {"find": names.REMOVED, "filter": {"_id.ns": namespace}, **fields}
    found = {}
    async for document in find_raw(tiers.fast, names.DATABASE, command):
        record = Record.parse(document)
        found[record.id] = record
    return found


class HandFeeder:
    """Replays one namespace; ``async with`` keeps it running in the background."""

    def __init__(self, tiers: Tiers, namespace: str, pause: float = 0.02) -> None:
        self.tiers = tiers
        self.namespace = namespace
        self.pause = pause
        self.held = asyncio.Event()
        """Set: nothing is replayed, and the checkpoint stands still."""
        self.quarantine: list[dict[str, Any]] = []
        self.ignored: set[DocId] = set()
        """Ids that are never replayed, whatever F holds."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        held = "held" if self.held.is_set() else "not held"
        return f"{held}, quarantine {self.quarantine}, ignored {self.ignored}, {self._task}"

    async def replay(self) -> Timestamp:
        """Bring A to F's state of now, then move the checkpoint; the time of F it is at."""
        marker = {"q": {"_id": "epoch"}, "u": {"$inc": {"counter": Int64(1)}}, "upsert": True}
        reply = await self.tiers.fast[names.DATABASE].command(
            {"update": names.MARKERS, "updates": [marker], "writeConcern": MAJORITY}
        )
        time: Timestamp = reply["operationTime"]
        at = {"readConcern": {"level": "snapshot", "atClusterTime": time}}
        here = await documents(self.tiers.fast, self.namespace, **at)
        gone = await records(self.tiers, self.namespace, **at)
        there = await documents(self.tiers.archive, self.namespace)
        database, collection = self.namespace.split(".", 1)
        for doc_id, raw in here.items():
            if there.get(doc_id) != raw and doc_id not in self.ignored:
                update = {
                    "q": RawBSONDocument(doc_id.document()),
                    "u": [{"$replaceWith": {"$literal": RawBSONDocument(raw)}}],
                    "upsert": True,
                }
                command = {"update": collection, "updates": [update]}
                await run_raw(self.tiers.archive, database, {**command, "writeConcern": MAJORITY})
        for doc_id, record in gone.items():
            if record.kind.value == "deleted" and doc_id not in here and doc_id in there:
                delete = {"q": RawBSONDocument(doc_id.document()), "limit": 1}
                command = {"delete": collection, "deletes": [delete]}
                await run_raw(self.tiers.archive, database, {**command, "writeConcern": MAJORITY})
        checkpoint = {"$set": {"time": time, "quarantine": self.quarantine}}
        update = {"q": {"_id": names.CHECKPOINT_ID}, "u": checkpoint, "upsert": True}
        await self.tiers.archive[names.DATABASE].command(
            {"update": names.CHECKPOINT, "updates": [update], "writeConcern": MAJORITY}
        )
        return time

    async def _run(self) -> None:
        while True:
            if not self.held.is_set():
                await self.replay()
            await asyncio.sleep(self.pause)

    async def __aenter__(self) -> "HandFeeder":
        await self.replay()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def utc(seconds_ago: float, now: dt.datetime | None = None) -> dt.datetime:
    """A date so long before ``now`` (the wall clock's), to the millisecond."""
    moment = (now or dt.datetime.now(dt.UTC)) - dt.timedelta(seconds=seconds_ago)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)

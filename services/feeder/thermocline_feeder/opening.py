"""Before the stream is opened: is F still the tier that the checkpoint was written for?"""

import datetime as dt
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_common import names
from thermocline_common.coverage_store import MAJORITY, outlive_leases, read_linearizable
from thermocline_common.errors import ConfigError
from thermocline_common.health import Problems
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written
from thermocline_feeder import catalog
from thermocline_feeder.checkpoint import (
    Checkpoint,
    Fenced,
    Owner,
    read_checkpoint,
    update_checkpoint,
)
from thermocline_feeder.plan.origin import Origin, Position, compare

log = logging.getLogger(__name__)

FAST_COLLECTIONS = (names.COVERAGE, names.REMOVED, names.MARKERS)
ARCHIVE_COLLECTIONS = (names.CHECKPOINT, names.TIERED)


@dataclass(slots=True)
class Opening:
    """Settles where to open the stream; starts F anew, or resynchronises, where it must."""

    tiers: Tiers
    me: uuid.UUID
    owner: Owner
    problems: Problems
    resync: Callable[[], Awaitable[Timestamp]]
    forget: Callable[[], None]
    """F's tiered data was set aside: nothing is replayed any more until it is activated anew."""
    reload: Callable[[], Awaitable[None]]
    """Read the coverage documents again."""
    position: Position | None = None
    lost_from: dt.datetime | None = None
    aside: list[str] = field(default_factory=list)

    async def __call__(self) -> Timestamp:
        """The checkpoint's time. Raises :class:`Fenced`, ``ConfigError``, PyMongo's errors."""
        checkpoint = await self._own_checkpoint()
        await catalog.create_missing(self.tiers.archive, ARCHIVE_COLLECTIONS)
        await catalog.create_missing(self.tiers.fast, FAST_COLLECTIONS)
        marker = await self._marker()
        origin = Origin.FRESH
        if checkpoint.time is not None:
            oldest, has_entry = await look_at_oplog(self.tiers.fast, checkpoint.time)
            beginning = checkpoint.next_epoch is not None
            origin = compare(
                checkpoint.position, checkpoint.time, beginning, marker, oldest, has_entry
            )
        self.lost_from = checkpoint.lost_from
        if origin in (Origin.FRESH, Origin.WENT_BACK):
            return await self._begin_anew(checkpoint, went_back=origin is Origin.WENT_BACK)
        self.position = marker
        await self.reload()
        if origin is Origin.TOO_OLD:
            time = await self.resync()
            await update_checkpoint(self.tiers.archive, self.me, {"$set": {"time": time}})
            return time
        assert checkpoint.time is not None
        return checkpoint.time

    async def _own_checkpoint(self) -> Checkpoint:
        checkpoint = await read_checkpoint(self.tiers.archive)
        if checkpoint is None or checkpoint.feeder != self.me:
            raise Fenced("another feeder has taken over replay")
        return checkpoint

    async def _marker(self) -> Position | None:
        found, _ = await read_linearizable(
            self.tiers.fast, names.MARKERS, {"_id": names.EPOCH_MARKER_ID}
        )
        return Position(found[0]["epoch"], int(found[0]["counter"])) if found else None

    async def _begin_anew(self, checkpoint: Checkpoint, *, went_back: bool) -> Timestamp:
        """A becomes the truth. Restartable: ``nextEpoch`` stands in A first and in F last."""
        archive, fast = self.tiers.archive, self.tiers.fast
        documents, _ = await read_linearizable(fast, names.COVERAGE, {})
        for document in documents:
            self.owner.require(
                document.get("owner"), f"the fast tier's coverage of {document['_id']}"
            )
        next_epoch = checkpoint.next_epoch or uuid.uuid4()
        change: dict[str, Any] = {"nextEpoch": Binary.from_uuid(next_epoch)}
        if went_back and checkpoint.time is not None:
            self.lost_from = checkpoint.time.as_datetime()
            change["lostFrom"] = self.lost_from
            log.error("the fast tier isn't the one that was replayed; its tiered data is set aside")
        await update_checkpoint(archive, self.me, {"$set": change})
        listed = await _listed(archive)
        namespaces = sorted({d["_id"] for d in documents} | listed)
        if namespaces:
            await outlive_leases(archive)
        self.forget()
        await self._empty(namespaces)
        position = Position(next_epoch, 0)
        time = await self._write_epoch(position)
        await update_checkpoint(
            archive,
            self.me,
            {
                "$set": {
                    "owner": self.owner.document(),
                    "epoch": Binary.from_uuid(next_epoch),
                    "counter": Int64(0),
                    "time": time,
                    "quarantine": [],
                },
                "$unset": {"nextEpoch": 1},
            },
        )
        self.position = position
        await self.reload()
        return time

    async def _empty(self, namespaces: Iterable[str]) -> None:
        fast = self.tiers.fast
        for namespace in namespaces:
            found = await catalog.find_collection(fast, namespace)
            if found is None or found.uuid is None:
                continue
            if await catalog.is_empty(fast, namespace):
                await catalog.drop(fast, namespace, found.uuid)
            else:
                self.aside.append(await catalog.set_aside(fast, namespace, found.uuid))
        for collection in (names.COVERAGE, names.REMOVED):
            reply = await fast[names.DATABASE].command(
                {"delete": collection, "deletes": [{"q": {}, "limit": 0}], "writeConcern": MAJORITY}
            )
            require_written(reply)

    async def _write_epoch(self, position: Position) -> Timestamp:
        document = {
            "epoch": Binary.from_uuid(position.epoch),
            "counter": Int64(position.counter),
            "formatVersion": names.FORMAT_VERSION,
            "at": dt.datetime.now(dt.UTC),
        }
        update = {"q": {"_id": names.EPOCH_MARKER_ID}, "u": {"$set": document}, "upsert": True}
        reply = await self.tiers.fast[names.DATABASE].command(
            {"update": names.MARKERS, "updates": [update], "writeConcern": MAJORITY}
        )
        require_written(reply)
        time: Timestamp = reply["opTime"]["ts"]
        return time

    async def count_up(self) -> Position | None:
        """Raise F's counter; None: F's marker isn't of our epoch, so F went back."""
        position = self.position
        if position is None:
            return None
        reply = await self.tiers.fast.get_database(names.DATABASE, codec_options=PLAIN).command(
            {
                "findAndModify": names.MARKERS,
                "query": {"_id": names.EPOCH_MARKER_ID, "epoch": Binary.from_uuid(position.epoch)},
                "update": {"$inc": {"counter": Int64(1)}, "$set": {"at": dt.datetime.now(dt.UTC)}},
                "new": True,
                "writeConcern": MAJORITY,
            },
            codec_options=PLAIN,
        )
        require_written(reply)
        found = reply.get("value")
        return None if found is None else Position(position.epoch, int(found["counter"]))


async def look_at_oplog(fast: catalog.Client, time: Timestamp) -> tuple[Timestamp, bool]:
    """The oldest time in F's oplog, and whether it has an entry at exactly ``time``."""
    local = fast.get_database("local", codec_options=PLAIN)
    find = {"find": "oplog.rs", "limit": 1, "singleBatch": True, "projection": {"ts": 1}}
    first = await local.command({**find, "sort": {"$natural": 1}}, codec_options=PLAIN)
    oldest: Timestamp = first["cursor"]["firstBatch"][0]["ts"]
    at = await local.command({**find, "filter": {"ts": {"$gte": time}}}, codec_options=PLAIN)
    found = at["cursor"]["firstBatch"]
    return oldest, bool(found and found[0]["ts"] == time)


async def _listed(archive: catalog.Client) -> set[str]:
    found, _ = await read_linearizable(archive, names.TIERED, {})
    return {d["_id"] for d in found}


async def refuse_swapped(tiers: Tiers) -> None:
    """Raises :class:`ConfigError` if the tiers hold each other's coordination data."""
    found, _ = await read_linearizable(tiers.fast, names.CHECKPOINT, {"_id": names.CHECKPOINT_ID})
    covered, _ = await read_linearizable(tiers.archive, names.COVERAGE, {})
    if found or covered:
        which = "fast tier holds an archive's" if found else "archive holds a fast tier's"
        raise ConfigError(
            f"the {which} coordination data: are spec.archive.uri and spec.fastTier.uri swapped? If not, "
            f"drop the database '{names.DATABASE}' there"
        )

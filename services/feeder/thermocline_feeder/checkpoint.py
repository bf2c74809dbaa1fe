"""The checkpoint document in A: how far replay is, who owns it, what couldn't be applied."""

import asyncio
import datetime as dt
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from thermocline_common import names
from thermocline_common.admin import Address
from thermocline_common.coverage_store import MAJORITY
from thermocline_common.errors import Code, ConfigError, ThermoclineError
from thermocline_common.ids import DocId, elements, string, wrap
from thermocline_common.logs import redact
from thermocline_common.raw_reads import Client, run_raw
from thermocline_common.write_replies import require_written
from thermocline_feeder.abandoned import end_abandoned
from thermocline_feeder.plan.origin import Position

log = logging.getLogger(__name__)

MAX_TIME_MS = 10_000


class Fenced(ThermoclineError):
    """Another feeder owns replay now: this one may apply nothing any more."""


def place_of(host: str, admin: Address | None) -> str | None:
    """Where a process runs: no two that run at one time hold the same port of the same host. Pure."""
    return None if admin is None or not admin.port else f"{host} {admin.host}:{admin.port}"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose coordination data this is."""

    namespace: str
    name: str
    uid: str
    fast_set: Any
    archive_set: Any

    def document(self) -> dict[str, Any]:
        """As stored."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "fastSet": self.fast_set,
            "archiveSet": self.archive_set,
        }

    def require(self, found: Mapping[str, Any] | None, what: str) -> None:
        """Raises :class:`ConfigError` if ``found`` names another resource or another archive.

        Another *fast tier* is no other owner: F was replaced, which is handled.
        """
        if found is None:
            return
        ours = (self.namespace, self.name, self.uid, self.archive_set)
        theirs = (
            found.get("namespace"),
            found.get("name"),
            found.get("uid"),
            found.get("archiveSet"),
        )
        if ours != theirs:
            raise ConfigError(
                f"{what} belongs to the TieredReplicaSet {theirs[0]}/{theirs[1]} (uid {theirs[2]}, archive "
                f"set {theirs[3]}), not to {ours[0]}/{ours[1]} (uid {ours[2]}, archive set {ours[3]}). Two "
                "resources can't share a tier; if the other one is gone for good, drop the database "
                f"'{names.DATABASE}' on both tiers"
            )


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A document that the archive refuses; F keeps it."""

    namespace: str
    id: DocId
    code: int
    reason: str

    @property
    def key(self) -> tuple[str, DocId]:
        """Its identity."""
        return (self.namespace, self.id)

    def raw(self) -> RawBSONDocument:
        """As stored: ``{ns, id, code, reason}``, the id's bytes unchanged."""
        code = b"\x10code\0" + int(self.code).to_bytes(4, "little", signed=True)
        parts = (
            string(b"ns", self.namespace),
            self.id.element(b"id"),
            code,
            string(b"reason", self.reason),
        )
        return RawBSONDocument(wrap(*parts))

    @classmethod
    def parse(cls, document: RawBSONDocument) -> "Quarantined":
        """From one element of ``quarantine``."""
        # Never by decoding: the id may be something that Python can't represent.
        raw = bytes(document.raw)
        found = {name: (kind, raw[start:end]) for name, kind, _, start, end in elements(raw)}
        return cls(
            found[b"ns"][1][4:-1].decode(),
            DocId.of_value(*found[b"id"]),
            int.from_bytes(found[b"code"][1], "little", signed=True),
            found[b"reason"][1][4:-1].decode(errors="replace"),
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The document, parsed. ``feeder`` None: nobody owns replay. ``place``: where its owner runs."""

    feeder: uuid.UUID | None
    place: str | None
    heartbeat: int
    time: Timestamp | None
    position: Position | None
    next_epoch: uuid.UUID | None
    quarantine: tuple[Quarantined, ...]
    lost_from: dt.datetime | None
    owner: Mapping[str, Any] | None

    @classmethod
    def parse(cls, document: RawBSONDocument) -> "Checkpoint":
        """From the raw document."""
        epoch = document.get("epoch")
        owner = document.get("owner")
        lost = document.get("lostFrom")
        return cls(
            feeder=document.get("feeder"),
            place=document.get("place"),
            heartbeat=int(document.get("heartbeat", 0)),
            time=document.get("time"),
            position=None if epoch is None else Position(epoch, int(document.get("counter", 0))),
            next_epoch=document.get("nextEpoch"),
            quarantine=tuple(Quarantined.parse(q) for q in document.get("quarantine", ())),
            lost_from=lost if lost is None or isinstance(lost, dt.datetime) else lost.as_datetime(),
            owner=None if owner is None else dict(owner),
        )


async def read_checkpoint(archive: Client) -> Checkpoint | None:
    """From A's primary, linearizably. Raises PyMongo's errors."""
    reply = await run_raw(
        archive,
        names.DATABASE,
        {
            "find": names.CHECKPOINT,
            "filter": {"_id": names.CHECKPOINT_ID},
            "limit": 1,
            "singleBatch": True,
            "readConcern": {"level": "linearizable"},
            "maxTimeMS": MAX_TIME_MS,
        },
    )
    found = reply["cursor"]["firstBatch"]
    return Checkpoint.parse(found[0]) if found else None


async def update_checkpoint(archive: Client, me: uuid.UUID, change: Mapping[str, Any]) -> None:
    """Change the checkpoint as its owner, ``w: majority``. Raises :class:`Fenced` if it isn't ours."""
    reply = await archive[names.DATABASE].command(
        {
            "update": names.CHECKPOINT,
            "updates": [
                {
                    "q": {"_id": names.CHECKPOINT_ID, "feeder": Binary.from_uuid(me)},
                    "u": dict(change),
                }
            ],
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)
    if reply["n"] != 1:
        raise Fenced("another feeder has taken over replay")


async def beat(archive: Client, me: uuid.UUID) -> None:
    """Move the heartbeat. Raises :class:`Fenced`."""
    await update_checkpoint(archive, me, {"$inc": {"heartbeat": Int64(1)}})


async def release(archive: Client, me: uuid.UUID) -> None:
    """Give replay up at a clean end, so that a successor need not wait."""
    await update_checkpoint(archive, me, {"$unset": {"feeder": 1}, "$inc": {"heartbeat": Int64(1)}})


async def acquire(
    archive: Client,
    me: uuid.UUID,
    owner: Owner,
    *,
    takeover_after: float,
    poll: float,
    clock: Callable[[], float],
    place: str | None = None,
    succeeds: bool = False,
    standing_by: Callable[[uuid.UUID], None] = lambda _: None,
    adopt: Callable[[Checkpoint], Awaitable[bool]] | None = None,
) -> Checkpoint:
    """Wait until replay is ours. Raises :class:`ConfigError` if the data is another resource's.

    A dead owner is noticed by its heartbeat standing still on *our* monotonic clock, or having run at
    our own ``place``, where only one process can be, if we ``succeed`` it (fencing makes even a wrong place
    harmless). ``adopt`` may make another's data ours, once no feeder of theirs is alive; whether it has.
    """
    seen: tuple[uuid.UUID | None, int] | None = None
    since = clock()
    while True:
        found = await read_checkpoint(archive)
        if found is None:
            await _create(archive, me, place, owner)
            continue
        now = (found.feeder, found.heartbeat)
        if now != seen:
            seen, since = now, clock()
        silent = found.feeder is None or clock() - since >= takeover_after
        if adopt is not None and silent and await adopt(found):
            continue
        owner.require(found.owner, f"the archive's {names.DATABASE}.{names.CHECKPOINT}")
        if found.feeder == me:
            return found
        before_us = succeeds and place is not None and found.place == place
        if found.feeder is None or silent or before_us:
            await _end_transactions(archive)
            await _take_over(archive, me, place, found)
            continue
        standing_by(found.feeder)
        await asyncio.sleep(poll)


async def _create(archive: Client, me: uuid.UUID, place: str | None, owner: Owner) -> None:
    document = {
        "_id": names.CHECKPOINT_ID,
        "formatVersion": names.FORMAT_VERSION,
        "owner": owner.document(),
        "feeder": Binary.from_uuid(me),
        "place": place,
        "heartbeat": Int64(1),
        "quarantine": [],
    }
    database = archive[names.DATABASE]
    reply = await database.command(
        {"insert": names.CHECKPOINT, "documents": [document], "writeConcern": MAJORITY}
    )
    require_written(reply, expected=(Code.DuplicateKey,))


async def _end_transactions(archive: Client) -> None:
    """A killed owner's last transaction holds the checkpoint for a minute."""
    try:
        await end_abandoned(archive, 0)
    except OperationFailure as error:
        log.warning(
            "can't end what a killed feeder left open", extra={"error": redact(str(error))[:200]}
        )


async def _take_over(archive: Client, me: uuid.UUID, place: str | None, seen: Checkpoint) -> None:
    query: dict[str, Any] = {"_id": names.CHECKPOINT_ID, "heartbeat": Int64(seen.heartbeat)}
    query["feeder"] = {"$exists": False} if seen.feeder is None else Binary.from_uuid(seen.feeder)
    reply = await archive[names.DATABASE].command(
        {
            "update": names.CHECKPOINT,
            "updates": [
                {
                    "q": query,
                    "u": {
                        "$set": {"feeder": Binary.from_uuid(me), "place": place},
                        "$inc": {"heartbeat": Int64(1)},
                    },
                }
            ],
            "writeConcern": MAJORITY,
            "maxTimeMS": MAX_TIME_MS,
        }
    )
    require_written(reply)


def quarantine_field(entries: Iterable[Quarantined]) -> list[RawBSONDocument]:
    """The stored form of the whole list."""
    return [entry.raw() for entry in entries]

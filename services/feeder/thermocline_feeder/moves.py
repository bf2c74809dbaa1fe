"""The switches of one namespace between the tiers: section 9 of the architecture, step by step."""

import asyncio
import datetime as dt
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import WriteConcern
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from thermocline_common import names
from thermocline_common.coverage import KEEP_ALL, Coverage, State, Tier
from thermocline_common.coverage_store import MAJORITY, compare_and_set, read_one
from thermocline_common.errors import ThermoclineError
from thermocline_common.health import Problems
from thermocline_common.indexes import list_indexes
from thermocline_common.reserved import reserved_sessions
from thermocline_common.tiers import RAW, Tiers
from thermocline_feeder import catalog, waits
from thermocline_feeder.applier import Applier
from thermocline_feeder.checkpoint import Owner
from thermocline_feeder.foreign import writes_since
from thermocline_feeder.plan.records import records_of
from thermocline_feeder.plan.states import Wanted, reverted
from thermocline_feeder.registry import Pair, Registry
from thermocline_feeder.replay import Replay
from thermocline_feeder.settings import Settings

log = logging.getLogger(__name__)

LEASE_MARGIN = 1.05
"""Clocks of two machines run a little differently."""
RECORDS_AT_ONCE = 1_000

Pause = Callable[[str], Awaitable[None]]


class Blocked(ThermoclineError):
    """A switch can't begin, or be finished, now; the text says what is in the way."""


class Overtaken(ThermoclineError):
    """Somebody else changed the coverage document meanwhile: look at it anew."""


@dataclass(slots=True)
class Moves:
    """Makes the switches; each method is safe to repeat, and to be overtaken by another feeder's."""

    tiers: Tiers
    owner: Owner
    settings: Settings
    registry: Registry
    replay: Replay
    applier: Applier
    problems: Problems
    lease: Callable[[], float]
    epoch: Callable[[], uuid.UUID]
    pause: Pause | None = None
    tidy: bool = True
    """End a pause even when told to stop; a test's crash doesn't."""
    aside: list[str] = field(default_factory=list)

    async def list_in_archive(self, namespace: str) -> None:
        """``tiered`` in A: from now on nobody takes the namespace for an untiered one."""
        await self.tiers.archive[names.DATABASE].command(
            {
                "update": names.TIERED,
                "updates": [
                    {
                        "q": {"_id": namespace},
                        "u": {
                            "$set": {
                                "owner": self.owner.document(),
                                "formatVersion": names.FORMAT_VERSION,
                            }
                        },
                        "upsert": True,
                    }
                ],
                "writeConcern": MAJORITY,
            }
        )

    async def unlist(self, namespace: str) -> None:
        """Take it off the list: the last trace of the namespace."""
        await self.tiers.archive[names.DATABASE].command(
            {
                "delete": names.TIERED,
                "deletes": [{"q": {"_id": namespace}, "limit": 1}],
                "writeConcern": MAJORITY,
            }
        )
        self.registry.forget(namespace)

    async def create(self, namespace: str, wanted: Wanted) -> None:
        """The coverage document, in ``Passthrough``."""
        document: dict[str, Any] = {
            "_id": namespace,
            "formatVersion": names.FORMAT_VERSION,
            "owner": self.owner.document(),
            "epoch": Binary.from_uuid(self.epoch()),
            "state": State.PASSTHROUGH.value,
            "target": State.PASSTHROUGH.value,
            "raised": Int64(0),
            **_policy(wanted),
        }
        await self.tiers.fast[names.DATABASE].command(
            {"insert": names.COVERAGE, "documents": [document], "writeConcern": MAJORITY}
        )

    async def forget(self, coverage: Coverage) -> None:
        """Remove the coverage document of a namespace that is in ``Passthrough`` for good."""
        await self.tiers.fast[names.DATABASE].command(
            {
                "delete": names.COVERAGE,
                "deletes": [
                    {
                        "q": {
                            "_id": coverage.namespace,
                            "state": State.PASSTHROUGH.value,
                            "raised": Int64(coverage.raised),
                        },
                        "limit": 1,
                    }
                ],
                "writeConcern": MAJORITY,
            }
        )

    async def set_policy(self, coverage: Coverage, wanted: Wanted) -> None:
        """Another policy for a namespace that isn't active: nothing rests on it."""
        fields = _policy(wanted)
        gone = tuple(k for k in ("ageField", "keep") if k not in fields)
        await self._change(coverage, fields, (*gone, "floor", "claim", "complete", "publishedAt"))

    async def change_policy(self, coverage: Coverage, wanted: Wanted) -> None:
        """Of an active namespace: what F covers counts for the old policy alone, so it goes first."""
        await self._change(coverage, {}, ("floor", "claim", "complete", "publishedAt"))
        await self._wait_lease()
        bare = await self._read(coverage.namespace)
        if bare.floor is not None or bare.complete:
            raise Overtaken(f"{coverage.namespace}: coverage was published meanwhile")
        fields = _policy(wanted)
        gone = tuple(k for k in ("ageField", "keep") if k not in fields)
        await self._change(bare, fields, (*gone, "floor", "claim", "complete", "publishedAt"))

    async def end_look_back(self, coverage: Coverage) -> None:
        """Retryable writes of before the switch can't come any more."""
        await self._change(coverage, {}, ("lookBack",), raise_by=0)

    async def revert(self, coverage: Coverage) -> None:
        """Give an unfinished switch up."""
        back = reverted(coverage)
        if back is State.ACTIVE:
            self.registry.pairs[coverage.namespace] = Pair(
                coverage.fast_uuid, coverage.archive_uuid, coverage.archive_time
            )
        await self._change(coverage, {"state": back.value, "target": back.value}, ("pausingSince",))
        if back is State.PASSTHROUGH:
            self.registry.pairs.pop(coverage.namespace, None)

    # To Active -------------------------------------------------------------------------------

    async def activate(self, coverage: Coverage) -> None:
        """From ``Passthrough`` to ``Active``. Raises :class:`Blocked` or PyMongo's errors; then it was reverted."""
        namespace = coverage.namespace
        await self.registry.watch(namespace)
        await self._nothing_in_the_way(namespace)
        paused = await self._pause_namespace(coverage, State.ACTIVE)
        await self._within_limit(paused, self._to_active(paused))

    async def _to_active(self, paused: Coverage) -> None:
        namespace = paused.namespace
        await self._wait_lease()
        await waits.writes_ended(self.tiers.archive, namespace)
        quiet_from, _ = await archive_now(self.tiers.archive, namespace)
        await self._hold("drop")
        await self._empty_fast(paused)
        await self._hold("create")
        archive = await catalog.find_collection(self.tiers.archive, namespace)
        indexes = await list_indexes(self.tiers.archive, namespace)
        fast_uuid = archive_uuid = None
        if archive is not None:
            archive_uuid = archive.uuid
            fast_uuid = await catalog.create_like(
                self.tiers.fast, namespace, archive.options, indexes
            )
        await self._remove_records(paused)
        time, cluster_time = await archive_now(self.tiers.archive, namespace)
        foreign = await writes_since(self.tiers.archive, namespace, quiet_from, time)
        if foreign:
            raise Blocked(
                f"{foreign} writes to {namespace} reached the archive while it was paused: something writes "
                "there without the proxy. Let it use the proxy"
            )
        uuids: dict[str, Any] = {}
        if fast_uuid is not None and archive_uuid is not None:
            uuids = {"fast": Binary.from_uuid(fast_uuid), "archive": Binary.from_uuid(archive_uuid)}
        # Before anybody can write: what is written must be replayed from its first event on.
        self.registry.pairs[namespace] = Pair(fast_uuid, archive_uuid, time)
        await self._hold("publish")
        await self._change(
            paused,
            {
                "state": State.ACTIVE.value,
                "target": State.ACTIVE.value,
                "uuids": uuids,
                "archiveTime": time,
                "archiveClusterTime": dict(cluster_time),
                "unique": [
                    {"name": u.name, "paths": list(u.paths), "plain": u.plain}
                    for u in catalog.unique_indexes(indexes)
                ],
                "lookBack": Tier.ARCHIVE.value,
                "epoch": Binary.from_uuid(self.epoch()),
            },
            ("floor", "claim", "complete", "publishedAt", "pausingSince"),
        )
        self.problems.clear(f"dropped {namespace}")
        log.info("namespace is active", extra={"namespace": namespace})

    async def _empty_fast(self, paused: Coverage) -> None:
        """Drop what an earlier activation of ours left; anything else is set aside, never dropped."""
        namespace = paused.namespace
        found = await catalog.find_collection(self.tiers.fast, namespace)
        if found is None:
            return
        if found.uuid is None:
            raise Blocked(f"{namespace} is a {found.kind} in the fast tier; drop it there")
        ours = found.uuid == paused.fast_uuid
        if ours or await catalog.is_empty(self.tiers.fast, namespace):
            await catalog.drop(self.tiers.fast, namespace, found.uuid)
            return
        target = await catalog.set_aside(self.tiers.fast, namespace, found.uuid)
        self.aside.append(target)
        self.problems.set(
            f"aside {namespace}",
            f"the fast tier held documents of {namespace} that aren't Thermocline's; they were renamed to "
            f"{target}. Look at them and drop that collection",
        )

    async def _remove_records(self, coverage: Coverage) -> None:
        """Removal records of the namespace go, fenced by its coverage document."""
        while await self._remove_some_records(coverage):
            pass

    async def _remove_some_records(self, coverage: Coverage) -> bool:
        database = self.tiers.fast[names.DATABASE]
        async with reserved_sessions(self.tiers.fast).session() as session:
            await session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority"))
            try:
                reply = await database.command(
                    {
                        "update": names.COVERAGE,
                        "updates": [
                            {
                                "q": {
                                    "_id": coverage.namespace,
                                    "state": coverage.state.value,
                                    "raised": Int64(coverage.raised),
                                },
                                "u": {"$inc": {"touched": Int64(1)}},
                            }
                        ],
                    },
                    session=session,
                )
                if reply["n"] != 1:
                    raise Overtaken(f"{coverage.namespace}: somebody else moves it")
                found = await database.command(
                    {
                        "find": names.REMOVED,
                        "filter": RawBSONDocument(records_of(coverage.namespace)),
                        "projection": {"_id": 1},
                        "limit": RECORDS_AT_ONCE,
                        "singleBatch": True,
                    },
                    session=session,
                    codec_options=RAW,
                )
                batch = found["cursor"]["firstBatch"]
                if batch:
                    await database.command(
                        {
                            "delete": names.REMOVED,
                            "deletes": [{"q": document, "limit": 1} for document in batch],
                        },
                        session=session,
                    )
                await session.commit_transaction()
            except BaseException:
                if session.in_transaction:
                    await session.abort_transaction()
                raise
        return len(batch) == RECORDS_AT_ONCE

    # To Passthrough --------------------------------------------------------------------------

    async def withdraw(self, coverage: Coverage) -> None:
        """From ``Active`` to ``Passthrough``. Raises as :meth:`activate`."""
        await self._nothing_in_the_way(coverage.namespace)
        paused = await self._pause_namespace(coverage, State.PASSTHROUGH)
        await self._within_limit(paused, self._to_passthrough(paused))

    async def _to_passthrough(self, paused: Coverage) -> None:
        namespace = paused.namespace
        await self._wait_lease()
        await waits.writes_ended(self.tiers.fast, namespace)
        await self._hold("replay")
        await self.replay.past_now()
        if any(ns == namespace for ns, _ in self.applier.quarantine):
            raise Blocked(f"{namespace}: the archive refuses some of its documents")
        # Nothing more of it is to reach A, which takes the application's writes from here on.
        self.registry.pairs.pop(namespace, None)
        await self._hold("publish")
        await self._change(
            paused,
            {
                "state": State.PASSTHROUGH.value,
                "target": State.PASSTHROUGH.value,
                "lookBack": Tier.FAST.value,
            },
            ("floor", "claim", "complete", "publishedAt", "pausingSince"),
        )
        log.info("namespace is in passthrough", extra={"namespace": namespace})

    async def clean(self, coverage: Coverage) -> None:
        """Drop F's collection and records, once no reader can use them any more."""
        namespace = coverage.namespace
        await self._wait_lease()
        if not await waits.cursors_ended(self.tiers.fast, namespace, self.settings.cursor_wait):
            log.warning(
                "cursors outlived the wait and end with an error", extra={"namespace": namespace}
            )
        await self._hold("drop")
        if coverage.fast_uuid is not None:
            await catalog.drop(self.tiers.fast, namespace, coverage.fast_uuid)
        await self._remove_records(coverage)
        await self._change(coverage, {}, ("uuids", "unique", "archiveTime", "archiveClusterTime"))

    # Both ways -------------------------------------------------------------------------------

    async def _nothing_in_the_way(self, namespace: str) -> None:
        try:
            async with asyncio.timeout(self.settings.caught_up_lag):
                await self.replay.past_now()
        except TimeoutError:
            raise Blocked(
                f"replay is {self.replay.lag:.0f} s behind, or not running; a switch waits for it"
            ) from None
        refused = sum(1 for ns, _ in self.applier.quarantine if ns == namespace)
        if refused:
            raise Blocked(f"the archive refuses {refused} documents of {namespace} (quarantine)")
        for tier, client in (("archive", self.tiers.archive), ("fast tier", self.tiers.fast)):
            if await catalog.builds_index(client, namespace):
                raise Blocked(f"an index of {namespace} is being built on the {tier}")

    async def _pause_namespace(self, coverage: Coverage, target: State) -> Coverage:
        await self._change(
            coverage,
            {
                "state": State.PAUSING.value,
                "target": target.value,
                "pausingSince": dt.datetime.now(dt.UTC),
                "epoch": Binary.from_uuid(self.epoch()),
            },
            (),
        )
        return await self._read(coverage.namespace)

    async def _within_limit(self, paused: Coverage, work: Awaitable[None]) -> None:
        """Do the work of a switch; whatever goes wrong, or takes too long, ends the pause."""
        try:
            async with asyncio.timeout(self.settings.pause_limit):
                await work
        except TimeoutError:
            await self._revert_now(paused)
            raise Blocked(
                f"the switch of {paused.namespace} wasn't through after {self.settings.pause_limit:.0f} s: "
                "a write or a transaction goes on, or a tier is slow"
            ) from None
        except asyncio.CancelledError:
            if self.tidy:
                await asyncio.shield(self._revert_now(paused))
            raise
        except (PyMongoError, ThermoclineError):
            await self._revert_now(paused)
            raise

    async def _revert_now(self, paused: Coverage) -> None:
        try:
            seen = await read_one(self.tiers, paused.namespace)
            if seen is not None and seen.state is State.PAUSING and seen.raised == paused.raised:
                await self.revert(seen)
        except (PyMongoError, ThermoclineError) as error:
            log.warning(
                "a switch couldn't be reverted yet",
                extra={"namespace": paused.namespace, "error": str(error)},
            )

    async def _wait_lease(self) -> None:
        await asyncio.sleep(self.lease() * LEASE_MARGIN)

    async def _hold(self, step: str) -> None:
        if self.pause is not None:
            await self.pause(step)

    async def _read(self, namespace: str) -> Coverage:
        found = await read_one(self.tiers, namespace)
        if found is None:
            raise Overtaken(f"{namespace}: its coverage document is gone")
        return found

    async def _change(
        self,
        seen: Coverage,
        fields: Mapping[str, Any],
        unset: tuple[str, ...],
        *,
        raise_by: int = 1,
    ) -> None:
        if not await compare_and_set(
            self.tiers, seen, set_fields=fields or None, unset=unset, raise_by=raise_by
        ):
            raise Overtaken(f"{seen.namespace}: its coverage document was changed meanwhile")

    # A collection that an insert created -------------------------------------------------------

    async def resolve(self, namespace: str) -> Pair | None:
        """F's collection isn't the known one: find out, and see that A has its counterpart."""
        pair = self.registry.pairs.get(namespace)
        if pair is None:
            return None
        found = await catalog.find_collection(self.tiers.fast, namespace)
        present = None if found is None else found.uuid
        if present == pair.fast:
            return pair
        if pair.fast is not None:
            self.problems.set(
                f"dropped {namespace}",
                f"{namespace} was dropped, or replaced, in the fast tier from outside; the archive is untouched, "
                "but writes that had not been replayed are lost. Drop collections through the proxy only",
            )
        archive_uuid = pair.archive
        if present is not None and archive_uuid is None:
            assert found is not None
            archive_uuid = await self._counterpart(namespace, found)
        new = Pair(present, archive_uuid, pair.since)
        self.registry.pairs[namespace] = new
        await self._publish_pair(namespace, new, lost=pair.fast is not None)
        return new

    async def _counterpart(self, namespace: str, found: catalog.Collection) -> uuid.UUID | None:
        existing = await catalog.find_collection(self.tiers.archive, namespace)
        if existing is not None:
            return existing.uuid
        indexes = await list_indexes(self.tiers.fast, namespace)
        return await catalog.create_like(self.tiers.archive, namespace, found.options, indexes)

    async def _publish_pair(self, namespace: str, pair: Pair, *, lost: bool) -> None:
        uuids: dict[str, Any] = {}
        if pair.fast is not None:
            uuids["fast"] = Binary.from_uuid(pair.fast)
        if pair.archive is not None:
            uuids["archive"] = Binary.from_uuid(pair.archive)
        unset = ("floor", "claim", "complete", "publishedAt") if lost else ()
        indexes = await list_indexes(self.tiers.archive, namespace)
        unique = [
            {"name": u.name, "paths": list(u.paths), "plain": u.plain}
            for u in catalog.unique_indexes(indexes)
        ]
        for _ in range(20):
            seen = await read_one(self.tiers, namespace)
            if seen is None:
                return
            if await compare_and_set(
                self.tiers,
                seen,
                set_fields={"uuids": uuids, "unique": unique},
                unset=unset,
                raise_by=int(lost),
            ):
                return
        raise Overtaken(f"{namespace}: its coverage document keeps changing")


def _policy(wanted: Wanted) -> dict[str, Any]:
    if wanted.keep_all:
        return {"keep": KEEP_ALL}
    return {"ageField": wanted.age_field}


async def archive_now(
    archive: catalog.Client, namespace: str
) -> tuple[Timestamp, Mapping[str, Any]]:
    """A time of A that is majority-committed and later than every write before, with A's signed ``$clusterTime``."""
    reply = await archive[names.DATABASE].command(
        {
            "update": names.TIERED,
            "updates": [{"q": {"_id": namespace}, "u": {"$inc": {"looks": Int64(1)}}}],
            "writeConcern": MAJORITY,
        }
    )
    return reply["opTime"]["ts"], reply["$clusterTime"]

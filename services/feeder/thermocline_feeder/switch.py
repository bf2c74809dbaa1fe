"""What the switches of a namespace have in common: compare-and-set, waits, the way back."""

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
from thermocline_common.coverage import Coverage, State
from thermocline_common.coverage_store import (
    MAJORITY,
    compare_and_set,
    outlive_leases,
    read_one,
)
from thermocline_common.errors import ThermoclineError
from thermocline_common.health import Problems
from thermocline_common.reserved import reserved_sessions
from thermocline_common.tiers import RAW, Tiers
from thermocline_common.write_replies import require_written
from thermocline_feeder import catalog
from thermocline_feeder.applier import Applier
from thermocline_feeder.checkpoint import Owner
from thermocline_feeder.plan.records import records_of
from thermocline_feeder.plan.states import reverted
from thermocline_feeder.registry import Pair, Registry
from thermocline_feeder.replay import Replay
from thermocline_feeder.settings import Settings

log = logging.getLogger(__name__)

RECORDS_AT_ONCE = 1_000

Pause = Callable[[str], Awaitable[None]]


class Blocked(ThermoclineError):
    """A switch can't begin, or be finished, now; the text says what is in the way."""


class Overtaken(ThermoclineError):
    """Somebody else changed the coverage document meanwhile: look at it anew."""


def _never() -> bool:
    return False


@dataclass(slots=True)
class Switch:
    """What every change of a namespace needs; safe to repeat, and to be overtaken by another feeder's."""

    tiers: Tiers
    owner: Owner
    settings: Settings
    registry: Registry
    replay: Replay
    applier: Applier
    problems: Problems
    epoch: Callable[[], uuid.UUID]
    pause: Pause | None = None
    tidy: bool = True
    """End a pause even when told to stop; a test's crash doesn't."""
    aside: list[str] = field(default_factory=list)
    retains: Callable[[], bool] = _never
    """Whether the fast tier's documents stay when their namespace leaves."""

    async def nothing_in_the_way(self, namespace: str) -> None:
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

    async def pause_namespace(self, coverage: Coverage, target: State) -> Coverage:
        await self.change(
            coverage,
            {
                "state": State.PAUSING.value,
                "target": target.value,
                "pausingSince": dt.datetime.now(dt.UTC),
                "epoch": Binary.from_uuid(self.epoch()),
            },
            (),
        )
        return await self.read(coverage.namespace)

    async def within_limit(self, paused: Coverage, work: Awaitable[None]) -> None:
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

    async def wait_lease(self) -> None:
        """Until no proxy rests any more on what was changed before."""
        await outlive_leases(self.tiers.archive)

    async def hold(self, step: str) -> None:
        if self.pause is not None:
            await self.pause(step)

    async def read(self, namespace: str) -> Coverage:
        found = await read_one(self.tiers, namespace)
        if found is None:
            raise Overtaken(f"{namespace}: its coverage document is gone")
        return found

    async def change(
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

    async def revert(self, coverage: Coverage) -> None:
        """Give an unfinished switch up."""
        back, pairs, namespace = reverted(coverage), self.registry.pairs, coverage.namespace
        before = pairs.get(namespace)
        if back is State.ACTIVE:
            pairs[namespace] = Pair(
                coverage.fast_uuid, coverage.archive_uuid, coverage.archive_time
            )
        try:
            await self.change(
                coverage, {"state": back.value, "target": back.value}, ("pausingSince",)
            )
        except Overtaken:
            # A pair that isn't in force must not be replayed, nor its writes to the archive be foreign.
            if before is None:
                pairs.pop(namespace, None)
            else:
                pairs[namespace] = before
            raise
        if back is State.PASSTHROUGH:
            pairs.pop(namespace, None)

    async def remove_records(self, coverage: Coverage) -> None:
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
                        # Without it a batch ends after 101 documents.
                        "batchSize": RECORDS_AT_ONCE,
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
        # Not by the number: long ids fill a batch sooner.
        return bool(batch)


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
    require_written(reply)
    return reply["opTime"]["ts"], reply["$clusterTime"]

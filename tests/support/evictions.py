"""A namespace in both tiers and evictors of the test's own, for tests of eviction."""

import asyncio
import dataclasses
import datetime as dt
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.binary import Binary
from pymongo import AsyncMongoClient

from support.hand_feeder import HandFeeder, activate, records, utc
from thermocline_common import coverage_store, names
from thermocline_common.barrier import BarrierTimeout
from thermocline_common.clock import monotonic
from thermocline_common.ids import DocId
from thermocline_common.spec.models import EvictorMode
from thermocline_common.tiers import Tiers
from thermocline_evictor.eviction import Eviction, Next, Orders
from thermocline_evictor.members import FastMembers
from thermocline_evictor.plan.cutoff import Policy
from thermocline_evictor.settings import Settings
from thermocline_evictor.tools import Tools

NS = "shop.orders"
POLICY = Policy(NS, "t", dt.timedelta(days=30))
NOW = utc(0)
QUICK = Settings(
    announce_seconds=0.2,
    busy_seconds=0.02,
    scan_pause=0.1,
    dry_run_pause=0.1,
    catch_up_seconds=2.0,
    mismatch_pause=0.05,
    turn_seconds=0.5,
    cursor_span=0.1,
)


def days_ago(days: float) -> dt.datetime:
    return utc(days * 86_400, NOW)


def an_id(value: Any) -> DocId:
    return DocId.of_document(bson.encode({"_id": value}))


@dataclass
class World:
    tiers: Tiers
    steps: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fast = self.tiers.fast["shop"]["orders"]
        self.archive = self.tiers.archive["shop"]["orders"]
        self.removed = self.tiers.fast[names.DATABASE][names.REMOVED]
        self.feeder = HandFeeder(self.tiers, NS)

    async def pause(self, step: str) -> None:
        """Run what the test wants to happen before ``step``, once."""
        action = self.steps.pop(step, None)
        if action is not None:
            result = action()
            if asyncio.iscoroutine(result):
                await result

    def eviction(self, settings: Settings = QUICK, **options: Any) -> Eviction:
        def open_member(member: str) -> AsyncMongoClient[dict[str, Any]]:
            return AsyncMongoClient(f"mongodb://{member}/?directConnection=true")

        tools = Tools(
            self.tiers,
            FastMembers(self.tiers.fast, open_member),
            settings,
            now=options.get("now", lambda: NOW),
            pause=self.pause,
        )
        return Eviction(tools)

    async def turn(self, eviction: Eviction, **changes: Any) -> Next:
        orders = Orders(
            **{
                "policy": POLICY,
                "mode": EvictorMode.RUNNING,
                "pace": "Auto",
                "lease": 0.05,
                **changes,
            }
        )
        membership = await eviction.tools.members.membership()
        return await eviction.turn(
            await coverage_store.read_one(self.tiers, NS), orders, membership
        )

    async def run(
        self,
        eviction: Eviction,
        done: Callable[[], Any] | None = None,
        seconds: float = 90,
        **changes: Any,
    ) -> None:
        """Turns until ``done()``, or until nothing is left to do. As in the service, a turn that waited
        for the feeder in vain is followed by the next one."""
        idle_since: float | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        following = await self.turn(eviction, **changes)
                    except BarrierTimeout:
                        continue
                    if done is not None:
                        result = done()
                        if await result if isinstance(result, Awaitable) else result:
                            return
                    elif following is not Next.LATER or eviction._pending:
                        idle_since = None
                    elif idle_since is None:
                        idle_since = monotonic()
                    elif monotonic() - idle_since > 2 * eviction.tools.settings.scan_pause:
                        return  # another pass found nothing, not only this one nothing yet
                    await asyncio.sleep(0 if following is Next.AT_ONCE else 0.02)
        except TimeoutError as error:
            raise TimeoutError(
                f"after {seconds:g} s: {eviction.report}, pending {eviction._pending}, records "
                f"{await self.kinds()}, feeder {self.feeder}, {await self.coverage()}"
            ) from error
        finally:
            await eviction.tools.members.close()

    async def coverage(self) -> Any:
        """The coverage document of the namespace."""
        return await coverage_store.read_one(self.tiers, NS)

    async def stall(self, eviction: Eviction) -> None:
        """Turns until one waits for the feeder in vain, all that the test has planned having happened."""
        try:
            async with asyncio.timeout(90):
                while True:
                    try:
                        await self.turn(eviction)
                    except BarrierTimeout:
                        if not self.steps:
                            return
                    await asyncio.sleep(0.02)
        finally:
            await eviction.tools.members.close()

    async def in_fast(self) -> set[Any]:
        return {d["_id"] async for d in self.fast.find({}, {"_id": 1})}

    async def record(self, value: Any, kind: str) -> None:
        key = bson.SON([("ns", NS), ("id", value)])
        token = Binary.from_uuid(uuid.uuid4())
        await self.removed.replace_one(
            {"_id": key}, {"_id": key, "kind": kind, "token": token}, upsert=True
        )

    async def kinds(self) -> dict[DocId, str]:
        return {i: r.kind.value for i, r in (await records(self.tiers, NS)).items()}


SLOW = dataclasses.replace(QUICK, announce_seconds=0.6)


async def announced(world: World, eviction: Eviction, count: int) -> None:
    """Turns until so many documents are announced."""
    await world.run(eviction, lambda: len(eviction._pending) >= count)


async def prepare(world: World, count: int = 3, **fields: Any) -> None:
    """Old documents in both tiers."""
    await activate(world.tiers, NS, **fields)
    await world.fast.insert_many([{"_id": i, "t": days_ago(60 + i), "v": 0} for i in range(count)])


async def is_empty(world: World) -> bool:
    return await world.fast.find_one() is None

"""Evictor and warmer against a fast tier of three members: failovers in the middle, cursors on secondaries."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import PyMongoError

from support.evictions import NOW, NS, QUICK, World, days_ago, is_empty, prepare
from support.hand_feeder import activate, coverage, documents
from support.mongod import ReplicaSet
from thermocline_common import coverage_store
from thermocline_common.errors import ThermoclineError
from thermocline_common.tiers import Tiers
from thermocline_warmer.plan.windows import Policy
from thermocline_warmer.settings import Settings
from thermocline_warmer.warming import Tools, Warming

pytestmark = pytest.mark.integration


@dataclasses.dataclass
class Trio:
    world: World
    fast: ReplicaSet

    async def kill_primary(self) -> None:
        """kill -9, and start it again a moment later."""
        primary = self.fast.primary()
        assert primary is not None
        await asyncio.to_thread(primary.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(primary.start)

    async def through_failovers(self, work: Callable[[], Awaitable[bool]]) -> None:
        """Repeat ``work`` until it returns True, whatever a tier that is away makes it raise."""
        async with asyncio.timeout(90):
            while True:
                try:
                    if await work():
                        return
                except (PyMongoError, ThermoclineError, TimeoutError):
                    await asyncio.sleep(0.2)


@pytest.fixture
async def trio(
    make_replica_set: Callable[..., ReplicaSet], archive: ReplicaSet
) -> AsyncIterator[Trio]:
    fast = make_replica_set("fast", members=3)
    async with fast.async_client() as here, archive.async_client() as there:
        yield Trio(World(Tiers(here, there)), fast)


class PatientFeeder:
    """Replays again and again, also while F has no primary."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await self._world.feeder.replay()
            except PyMongoError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.01)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.parametrize("step", ["delete", "commit"])
async def test_the_primary_dies_in_the_middle_of_an_eviction(trio: Trio, step: str) -> None:
    world = trio.world
    await prepare(world, 120)
    before = await documents(world.tiers.fast, NS)
    eviction = world.eviction()
    world.steps[step] = trio.kill_primary

    async def work() -> bool:
        await world.run(eviction, lambda: is_empty(world), seconds=30)
        return True

    async with PatientFeeder(world):
        await trio.through_failovers(work)
        assert await documents(world.tiers.archive, NS) == before
    assert not eviction.report.mismatches
    assert eviction.report.ledger.deleted <= 120


async def test_the_primary_dies_between_a_copy_and_its_floor(trio: Trio) -> None:
    world = trio.world
    await world.archive.insert_many([{"_id": i, "t": days_ago(i / 10)} for i in range(200)])
    await activate(world.tiers, NS)
    warming = Warming(
        Tools(
            world.tiers,
            Settings(batch=50, barrier_seconds=5.0),
            now=lambda: NOW,
            pause=world.pause,
        )
    )
    policy = Policy(NS, "t", dt.timedelta(days=30))
    world.steps["publish"] = trio.kill_primary

    async def work() -> bool:
        return not await warming.step(
            await coverage_store.read_one(world.tiers, NS), policy, "Auto"
        )

    async with PatientFeeder(world):
        await trio.through_failovers(work)
        assert (await coverage(world.tiers, NS)).floor == days_ago(30)
        assert await documents(world.tiers.fast, NS) == await documents(world.tiers.archive, NS)


async def test_a_cursor_on_a_secondary_holds_eviction_up(trio: Trio) -> None:
    world = trio.world
    await prepare(world, 30, floor=days_ago(900))
    secondary = next(m for m in trio.fast.members if m is not trio.fast.primary())
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
        f"mongodb://{secondary.address}/?directConnection=true"
    )
    eviction = world.eviction(dataclasses.replace(QUICK, cursor_span=0.3))
    async with client, PatientFeeder(world):
        await asyncio.sleep(1)
        orders = client["shop"].get_collection("orders", read_preference=ReadPreference.SECONDARY)
        reader = orders.find({}, batch_size=5)
        await reader.next()
        with pytest.raises(TimeoutError):
            await world.run(eviction, lambda: False, seconds=4)
        assert eviction.report.state == "waiting for open cursors to end"
        assert len([d async for d in reader]) == 29
        await world.run(eviction, lambda: is_empty(world), seconds=30)


async def test_a_member_that_is_down_holds_nothing_up_and_is_asked_when_it_is_back(
    trio: Trio,
) -> None:
    world = trio.world
    await prepare(world, 30, floor=days_ago(900))
    secondary = next(m for m in trio.fast.members if m is not trio.fast.primary())
    await asyncio.to_thread(secondary.kill)
    eviction = world.eviction()
    async with PatientFeeder(world):

        async def seen_down() -> bool:
            return bool((await eviction.tools.members.membership()).down)

        await trio.through_failovers(seen_down)
        await world.run(eviction, lambda: is_empty(world), seconds=30)
        await asyncio.to_thread(secondary.start)
        await world.fast.insert_one({"_id": "late", "t": days_ago(60)})

        async def all_up() -> bool:
            return not (await eviction.tools.members.membership()).down

        await trio.through_failovers(all_up)
        await world.run(eviction, lambda: is_empty(world), seconds=30)
        assert eviction._wait is not None
        assert set(eviction._wait.members) == {m.address for m in trio.fast.members}

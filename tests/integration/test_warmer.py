"""Warming on real mongods: everything that belongs there comes in, and a floor is never a lie."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient

from support.hand_feeder import HandFeeder, activate, coverage, documents, utc
from support.mongod import ReplicaSet
from thermocline_common import coverage_store, names
from thermocline_common.ages import scalar_date, to_milliseconds
from thermocline_common.barrier import BarrierTimeout
from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.tiers import Tiers
from thermocline_warmer.plan.windows import Policy
from thermocline_warmer.reader import NoAgeIndex
from thermocline_warmer.settings import Settings
from thermocline_warmer.warming import Stopped, Tools, Warming

pytestmark = pytest.mark.integration
NS = "shop.orders"
AGED = Policy(NS, "t", dt.timedelta(days=30))
WHOLE = Policy(NS)
NOW = utc(0)


def days_ago(days: float) -> dt.datetime:
    return utc(days * 86_400, NOW)


@dataclass
class World:
    tiers: Tiers
    stop: bool = False
    steps: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fast = self.tiers.fast["shop"]["orders"]
        self.archive = self.tiers.archive["shop"]["orders"]

    async def pause(self, step: str) -> None:
        """Run what the test wants to happen before ``step``, once."""
        action = self.steps.pop(step, None)
        if action is not None:
            result = action()
            if asyncio.iscoroutine(result):
                await result

    def warming(self, **settings: Any) -> Warming:
        given = Settings(**{"batch": 50, "barrier_seconds": 5.0, **settings})
        tools = Tools(
            self.tiers,
            given,
            now=lambda: NOW,
            stopping=lambda: self.stop,
            pause=self.pause,
        )
        return Warming(tools)

    async def step(self, warming: Warming, policy: Policy = AGED) -> bool:
        return await warming.step(await coverage_store.read_one(self.tiers, NS), policy, "Auto")

    async def warm(self, warming: Warming, policy: Policy = AGED) -> Coverage:
        for _ in range(100):
            if not await self.step(warming, policy):
                return await coverage(self.tiers, NS)
        raise AssertionError("never done")

    async def in_fast(self) -> set[Any]:
        return {d["_id"] async for d in self.fast.find({}, {"_id": 1})}


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[World]:
    fast_client: AsyncMongoClient[dict[str, Any]] = fast.async_client()
    archive_client: AsyncMongoClient[dict[str, Any]] = archive.async_client()
    yield World(Tiers(fast_client, archive_client))
    await fast_client.close()
    await archive_client.close()


ODD: list[Any] = [
    None,
    "2026-01-01",
    1_700_000_000,
    Int64(1_700_000_000_000),
    float("nan"),
    {"d": 1},
    True,
    Timestamp(1, 1),
    bson.MinKey(),
    bson.MaxKey(),
    bson.Regex("a"),
    bson.ObjectId(),
]
ARRAYS: list[Any] = [[], [days_ago(300)], [days_ago(300), days_ago(1)], [days_ago(200), "x"], [[days_ago(3)]]]  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("arrays", [False, True], ids=["no arrays", "arrays"])
async def test_all_that_is_not_a_date_below_the_floor_comes_in(
    world: World, arrays: bool, order: int
) -> None:
    values = ODD + (ARRAYS if arrays else [])
    await world.archive.insert_many(
        [{"_id": f"odd{i}", "t": value} for i, value in enumerate(values)]
        + [{"_id": "missing"}, {"_id": "future", "t": DatetimeMS(2**62)}]
        + [{"_id": "ancient", "t": DatetimeMS(-(2**62))}]
        + [{"_id": i, "t": days_ago(i / 10)} for i in range(1_000)]
    )
    await world.archive.create_index([("t", order), ("x", 1)], name="t_1")
    await activate(world.tiers, NS, age_field=None, ageField="t")
    await world.tiers.fast[names.DATABASE][names.COVERAGE].update_one(
        {"_id": NS}, {"$unset": {"keep": ""}}
    )
    warming = world.warming()
    warming._size = 100
    async with HandFeeder(world.tiers, NS):
        after = await world.warm(warming)
    assert after.floor == days_ago(30)
    assert after.claim is None
    assert after.published_at is not None
    held = await world.in_fast()
    expected = {f"odd{i}" for i in range(len(values))} | {"missing", "future"} | set(range(301))
    assert held == expected
    there = await documents(world.tiers.archive, NS)
    for doc_id, raw in (await documents(world.tiers.fast, NS)).items():
        assert there[doc_id] == raw
    assert warming.report.progress.percent == 100
    assert warming.report.copied == len(expected)


async def test_the_floor_comes_down_slice_by_slice_newest_first(world: World) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(i / 10)} for i in range(1_000)])
    await activate(world.tiers, NS)
    warming = world.warming()
    warming._size = 100
    floors: list[dt.datetime] = []
    async with HandFeeder(world.tiers, NS):
        while await world.step(warming):
            now = await coverage(world.tiers, NS)
            assert now.floor is not None
            floors.append(now.floor)
            below = to_milliseconds(now.floor)
            held = await documents(world.tiers.fast, NS)
            for doc_id, raw in (await documents(world.tiers.archive, NS)).items():
                age = scalar_date(raw, "t")
                assert age is None or age < below or doc_id in held
    assert floors == sorted(floors, reverse=True)
    assert floors[0] == days_ago(9.9)
    assert floors[-1] == days_ago(30)


async def test_many_documents_of_one_age_are_one_slice(world: World) -> None:
    same = days_ago(5)
    await world.archive.insert_many([{"_id": i, "t": same} for i in range(300)])
    await activate(world.tiers, NS)
    warming = world.warming()
    warming._size = 10
    async with HandFeeder(world.tiers, NS):
        await world.step(warming)
        assert (await coverage(world.tiers, NS)).floor == same
        assert len(await world.in_fast()) == 300
        assert (await world.warm(warming)).floor == days_ago(30)


async def test_without_the_feeder_nothing_is_published(world: World) -> None:
    await world.archive.insert_one({"_id": 1, "t": days_ago(1)})
    await activate(world.tiers, NS)
    feeder = HandFeeder(world.tiers, NS)
    await feeder.replay()
    with pytest.raises(BarrierTimeout):
        await world.step(world.warming(barrier_seconds=0.3))
    assert (await coverage(world.tiers, NS)).floor is None


async def test_what_was_changed_before_the_claim_is_copied_as_it_is_now(world: World) -> None:
    """F holds a newer version that the archive lacks: the barrier waits for it, the copy leaves it."""
    await world.archive.insert_many([{"_id": i, "t": days_ago(400)} for i in range(3)])
    await activate(world.tiers, NS)
    feeder = HandFeeder(world.tiers, NS)
    await feeder.replay()
    await world.fast.insert_one({"_id": 1, "t": days_ago(1), "v": "new"})
    async with feeder:
        after = await world.warm(world.warming())
    assert after.floor == days_ago(30)
    assert await world.fast.find_one({"_id": 1}, {"v": 1}) == {"_id": 1, "v": "new"}
    assert await world.in_fast() == {1}


async def test_a_deleted_document_does_not_come_back(world: World) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(1)} for i in range(3)])
    await activate(world.tiers, NS)
    feeder = HandFeeder(world.tiers, NS)
    await feeder.replay()

    async def delete() -> None:
        feeder.held.set()
        await asyncio.sleep(0.2)
        key = bson.SON([("ns", NS), ("id", 1)])
        await world.tiers.fast[names.DATABASE][names.REMOVED].insert_one(
            {"_id": key, "kind": "deleted", "token": Binary(bytes(16), 4)}
        )

    world.steps["read archive"] = delete
    async with feeder:
        after = await world.warm(world.warming())
    assert after.floor == days_ago(30)
    assert await world.in_fast() == {0, 2}


async def test_a_document_deleted_after_its_copy_is_no_reason_to_give_up(world: World) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(1)} for i in range(3)])
    await activate(world.tiers, NS)

    async def delete() -> None:
        key = bson.SON([("ns", NS), ("id", 1)])
        await world.tiers.fast[names.DATABASE][names.REMOVED].insert_one(
            {"_id": key, "kind": "deleted", "token": Binary(bytes(16), 4)}
        )
        await world.fast.delete_one({"_id": 1})

    world.steps["verify"] = delete
    async with HandFeeder(world.tiers, NS):
        after = await world.warm(world.warming())
        assert after.floor == days_ago(30)
        assert await world.in_fast() == {0, 2}


async def test_a_copy_that_vanishes_is_copied_again_before_the_floor_is_lowered(
    world: World,
) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(1)} for i in range(3)])
    await activate(world.tiers, NS)
    world.steps["verify"] = lambda: world.fast.delete_one({"_id": 1})
    async with HandFeeder(world.tiers, NS):
        await world.warm(world.warming())
    assert await world.in_fast() == {0, 1, 2}


async def test_a_floor_raised_in_between_makes_the_slice_start_again(world: World) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(i)} for i in range(20)])
    await activate(world.tiers, NS)

    async def raise_and_evict() -> None:
        now = await coverage(world.tiers, NS)
        assert now.claim is not None
        assert await coverage_store.raise_floor(world.tiers, now, None)
        await world.fast.delete_one({"_id": 7})

    world.steps["publish"] = raise_and_evict
    warming = world.warming()
    async with HandFeeder(world.tiers, NS):
        await world.step(warming)
        lost = await coverage(world.tiers, NS)
        assert lost.floor is None
        assert lost.claim is None
        assert warming.report.lost == 1
        after = await world.warm(warming)
    assert after.floor == days_ago(30)
    assert await world.in_fast() == set(range(20))


async def test_a_lower_claim_is_neither_raised_nor_ended_by_a_higher_floor(world: World) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(i)} for i in range(29)])
    await activate(world.tiers, NS, claim=days_ago(25))
    warming = world.warming()
    warming._size = 10
    async with HandFeeder(world.tiers, NS):
        await world.step(warming)
        first = await coverage(world.tiers, NS)
        assert (first.floor, first.claim) == (days_ago(9), days_ago(25))
        after = await world.warm(warming)
    assert (after.floor, after.claim) == (days_ago(30), None)


async def test_interrupted_it_goes_on_where_the_floor_is(world: World) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(i / 10)} for i in range(300)])
    await activate(world.tiers, NS)
    first = world.warming()
    first._size = 100
    async with HandFeeder(world.tiers, NS):
        await world.step(first)
        halfway = await coverage(world.tiers, NS)

        def stop() -> None:
            world.stop = True

        world.steps["verify"] = stop
        with pytest.raises(Stopped):
            await world.step(first)
        assert (await coverage(world.tiers, NS)).floor == halfway.floor
        world.stop = False
        second = world.warming()
        await world.warm(second)
    assert first.report.copied + second.report.copied == 300
    assert second.report.copied <= 150
    assert await world.in_fast() == set(range(300))


async def test_a_longer_age_moves_the_floor_only_once_the_copies_are_there(world: World) -> None:
    await world.archive.insert_many([{"_id": i, "t": days_ago(i)} for i in range(100)])
    await activate(world.tiers, NS)
    warming = world.warming()
    async with HandFeeder(world.tiers, NS):
        assert (await world.warm(warming)).floor == days_ago(30)
        longer = Policy(NS, "t", dt.timedelta(days=90))

        async def still_there() -> None:
            assert (await coverage(world.tiers, NS)).floor == days_ago(30)

        world.steps["publish"] = still_there
        assert (await world.warm(warming, longer)).floor == days_ago(90)
    assert await world.in_fast() == set(range(91))


async def test_a_whole_collection(world: World) -> None:
    ids: list[Any] = [*range(300), "s", bson.MinKey(), None, {"a": 1}, Int64(2**40), 2.5, True]
    await world.archive.insert_many([{"_id": i} for i in ids])
    await activate(world.tiers, NS, age_field=None)
    warming = world.warming()
    async with HandFeeder(world.tiers, NS):
        after = await world.warm(warming, WHOLE)
    assert after.complete
    assert after.published_at is not None
    assert set(await documents(world.tiers.fast, NS)) == set(
        await documents(world.tiers.archive, NS)
    )
    assert warming.report.progress.percent == 100


async def test_a_withdrawn_activation_is_not_called_complete(world: World) -> None:
    await world.archive.insert_many([{"_id": i} for i in range(10)])
    await activate(world.tiers, NS, age_field=None)

    async def leave() -> None:
        now = await coverage(world.tiers, NS)
        assert await coverage_store.compare_and_set(
            world.tiers, now, set_fields={"target": "Passthrough"}, raise_by=1
        )

    world.steps["publish"] = leave
    async with HandFeeder(world.tiers, NS):
        await world.step(world.warming(), WHOLE)
    assert not (await coverage(world.tiers, NS)).complete


async def test_no_age_index_says_how_to_make_one(world: World) -> None:
    await world.archive.insert_one({"_id": 1, "t": days_ago(1)})
    await activate(world.tiers, NS)
    await world.archive.drop_indexes()
    await world.archive.create_index("t", sparse=True)
    with pytest.raises(NoAgeIndex, match="createIndex"):
        await world.step(world.warming())


async def test_published_at_covers_the_last_copy(world: World) -> None:
    """A snapshot of F at ``publishedAt`` holds everything above the floor."""
    await world.archive.insert_many([{"_id": i, "t": days_ago(i / 20)} for i in range(500)])
    await activate(world.tiers, NS)
    async with HandFeeder(world.tiers, NS):
        after = await world.warm(world.warming())
    at = {"readConcern": {"level": "snapshot", "atClusterTime": after.published_at}}
    held = await documents(world.tiers.fast, NS, **at)
    assert held == await documents(world.tiers.archive, NS)


async def test_an_update_of_a_cold_document_while_its_slice_is_copied(world: World) -> None:
    """The scan may miss a document that moves in the index: the write itself brought it to F."""
    await world.archive.insert_many([{"_id": i, "t": days_ago(i)} for i in range(60)])
    await activate(world.tiers, NS)

    async def rejuvenate() -> None:
        await world.fast.insert_one({"_id": 50, "t": days_ago(0.5), "v": 2})

    world.steps["read archive"] = rejuvenate
    async with HandFeeder(world.tiers, NS):
        await world.warm(world.warming())
    assert await world.in_fast() == {*range(31), 50}
    assert DocId.of_document(bson.encode({"_id": 50})) in await documents(world.tiers.fast, NS)

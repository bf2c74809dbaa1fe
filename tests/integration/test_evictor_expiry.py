"""TTL rules in F: what expires goes in both tiers, and nothing else does."""

import datetime as dt
from collections.abc import AsyncIterator, Callable
from typing import Any

import bson
import pytest
from bson.binary import Binary
from pymongo import AsyncMongoClient

from support.hand_feeder import HandFeeder, activate, coverage, records, utc
from support.mongod import ReplicaSet
from thermocline_common import names
from thermocline_common.ids import DocId
from thermocline_common.tiers import Tiers
from thermocline_evictor.expiry import archive_clock, expire, read_rules

pytestmark = pytest.mark.integration
NS = "shop.orders"
HOUR = 3_600


class World:
    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self.fast = tiers.fast["shop"]["orders"]
        self.archive = tiers.archive["shop"]["orders"]
        self.steps: dict[str, Callable[[], Any]] = {}

    async def pause(self, step: str) -> None:
        action = self.steps.pop(step, None)
        if action is not None:
            await action()

    async def expire(self) -> int:
        rules = await read_rules(self.tiers, NS)
        now = await archive_clock(self.tiers)
        return await expire(
            self.tiers, await coverage(self.tiers, NS), rules, now, pause=self.pause
        )

    async def monitor(self) -> int:
        """The archive's TTL monitor comes round; how many it removes."""
        limit = {"$gte": utc(10**9), "$lte": utc(HOUR)}
        (rule,) = await read_rules(self.tiers, NS)
        return (await self.archive.delete_many({"e": limit, **rule.partial})).deleted_count

    async def in_fast(self) -> set[Any]:
        return {d["_id"] async for d in self.fast.find({}, {"_id": 1})}

    async def kinds(self) -> dict[DocId, str]:
        return {i: r.kind.value for i, r in (await records(self.tiers, NS)).items()}


def an_id(value: Any) -> DocId:
    return DocId.of_document(bson.encode({"_id": value}))


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[World]:
    """An archive whose own TTL monitor rests, so that the tests decide when it acts."""
    fast_client: AsyncMongoClient[dict[str, Any]] = fast.async_client()
    archive_client: AsyncMongoClient[dict[str, Any]] = archive.async_client()
    await archive_client.admin.command({"setParameter": 1, "ttlMonitorEnabled": False})
    yield World(Tiers(fast_client, archive_client))
    await archive_client.admin.command({"setParameter": 1, "ttlMonitorEnabled": True})
    await fast_client.close()
    await archive_client.close()


async def prepare(world: World, **partial: Any) -> None:
    await world.archive.create_index("e", expireAfterSeconds=HOUR, **partial)
    await activate(world.tiers, NS)
    assert "expireAfterSeconds" not in (await world.fast.index_information())["e_1"]


async def test_due_documents_go_with_expired_records(world: World) -> None:
    await prepare(world)
    await world.fast.insert_many(
        [
            {"_id": "due", "e": utc(2 * HOUR)},
            {"_id": "array", "e": [utc(0), utc(2 * HOUR)]},
            {"_id": "not yet", "e": utc(HOUR - 60)},
            {"_id": "null", "e": None},
            {"_id": "text", "e": "2001-01-01"},
            {"_id": "number", "e": 5},
            {"_id": "none"},
            {"_id": "future", "e": utc(-HOUR)},
        ]
    )
    feeder = HandFeeder(world.tiers, NS)
    await feeder.replay()
    stream = await world.fast.watch()
    assert await world.expire() == 0, "the fast tier is never ahead of the archive"
    assert await world.monitor() == 2
    assert await world.expire() == 2
    assert await world.in_fast() == {"not yet", "null", "text", "number", "none", "future"}
    assert await world.kinds() == {an_id("due"): "expired", an_id("array"): "expired"}
    # Applications see the deletes, as they would with a TTL index.
    assert {(await stream.next())["operationType"] for _ in range(2)} == {"delete"}
    await stream.close()
    # The feeder brings nothing back.
    await feeder.replay()
    assert await world.archive.count_documents({}) == 6


async def test_a_partial_rule_expires_only_what_it_covers(world: World) -> None:
    await prepare(world, partialFilterExpression={"done": True})
    await world.fast.insert_many(
        [{"_id": i, "e": utc(2 * HOUR), "done": bool(i % 2)} for i in range(6)]
    )
    await HandFeeder(world.tiers, NS).replay()
    assert await world.monitor() == 3
    await world.archive.delete_one({"_id": 0})  # not by this rule
    assert await world.expire() == 3
    assert await world.in_fast() == {0, 2, 4}


async def test_another_version_in_the_archive_waits_for_the_feeder(world: World) -> None:
    """Otherwise that version, which isn't due, would stay in the archive for good."""
    await prepare(world)
    await world.fast.insert_one({"_id": 1, "e": utc(0)})
    feeder = HandFeeder(world.tiers, NS)
    await feeder.replay()
    await world.fast.update_one({"_id": 1}, {"$set": {"e": utc(2 * HOUR)}})
    assert await world.expire() == 0
    await feeder.replay()
    assert await world.monitor() == 1
    assert await world.expire() == 1


async def test_what_the_archive_has_expired_already_goes_too(world: World) -> None:
    await prepare(world)
    await world.fast.insert_one({"_id": 1, "e": utc(2 * HOUR)})
    await HandFeeder(world.tiers, NS).replay()
    await world.archive.delete_one({"_id": 1})
    assert await world.expire() == 1


async def test_renewed_at_the_last_moment_it_stays(world: World) -> None:
    await prepare(world)
    await world.fast.insert_many([{"_id": i, "e": utc(2 * HOUR)} for i in range(3)])
    await HandFeeder(world.tiers, NS).replay()
    await world.monitor()

    async def renew() -> None:
        await world.fast.update_one({"_id": 1}, {"$set": {"e": utc(0)}})

    world.steps["expire"] = renew
    assert await world.expire() == 2
    assert await world.in_fast() == {1}


async def test_a_delete_under_way_is_left_to_its_client(world: World) -> None:
    """An ``expired`` record over a ``deleted`` one would keep the feeder from deleting in the archive."""
    await prepare(world)
    await world.fast.insert_one({"_id": 1, "e": utc(2 * HOUR)})
    await HandFeeder(world.tiers, NS).replay()
    await world.monitor()
    key = bson.SON([("ns", NS), ("id", 1)])
    await world.tiers.fast[names.DATABASE][names.REMOVED].insert_one(
        {"_id": key, "kind": "deleted", "token": Binary(bytes(16), 4)}
    )
    assert await world.expire() == 0
    assert await world.kinds() == {an_id(1): "deleted"}


async def test_an_announcement_gives_way(world: World) -> None:
    await prepare(world)
    await world.fast.insert_one({"_id": 1, "e": utc(2 * HOUR)})
    await HandFeeder(world.tiers, NS).replay()
    await world.monitor()
    key = bson.SON([("ns", NS), ("id", 1)])
    await world.tiers.fast[names.DATABASE][names.REMOVED].insert_one(
        {"_id": key, "kind": "leaving", "token": Binary(bytes(16), 4)}
    )
    assert await world.expire() == 1
    assert await world.kinds() == {an_id(1): "expired"}


async def test_more_than_one_batch_and_some_that_cannot_go(world: World) -> None:
    await prepare(world)
    await world.fast.insert_many([{"_id": i, "e": utc(2 * HOUR)} for i in range(1_200)])
    await HandFeeder(world.tiers, NS).replay()
    await world.archive.delete_many({"_id": {"$gte": 600}})  # the monitor is half through
    assert await world.expire() == 600
    assert await world.in_fast() == set(range(600))
    assert isinstance(await archive_clock(world.tiers), dt.datetime)

"""``create`` and ``createIndexes`` on a tiered namespace: in both tiers, or in neither."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.direct import DirectWorld, close_world, open_world
from support.mongod import ReplicaSet
from thermocline_common.coverage import Tier
from thermocline_proxy.writes import handle
from thermocline_warmer.parity import Collections

pytestmark = pytest.mark.integration


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[DirectWorld]:
    made = await open_world(fast, archive)
    yield made
    await close_world(made)


async def indexes(collection: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = await collection.index_information()
    return found


def building(*specs: dict[str, Any]) -> dict[str, Any]:
    return {"createIndexes": "orders", "indexes": list(specs)}


A_INDEX = {"key": {"a": 1}, "name": "a_1"}


async def test_an_index_is_built_in_both_tiers_behind_the_barrier(world: DirectWorld) -> None:
    await world.place({"_id": 1, "a": 1}, "fast")
    reply = await world.run(building(A_INDEX), handle)
    assert (reply["numIndexesBefore"], reply["numIndexesAfter"], reply["ok"]) == (1, 2, 1.0)
    assert set(await indexes(world.fast)) == set(await indexes(world.archive)) == {"_id_", "a_1"}
    barrier: Any = world.gateway.barrier
    assert barrier.passed_count == 1
    assert [tier for tier, _ in world.exchange.sent] == [Tier.ARCHIVE, Tier.FAST]
    again = await world.run(building(A_INDEX), handle)
    assert again["note"] == "all indexes already exist"


async def test_expiry_stays_in_the_archive(world: DirectWorld) -> None:
    spec = {"key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 60}
    assert (await world.run(building(spec), handle))["ok"] == 1.0
    assert (await indexes(world.archive))["t_1"]["expireAfterSeconds"] == 60
    assert "expireAfterSeconds" not in (await indexes(world.fast))["t_1"]


async def test_what_the_archive_refuses_never_reaches_f(world: DirectWorld) -> None:
    await world.archive.create_index([("b", 1)], name="a_1")
    reply = await world.run(building(A_INDEX), handle)
    assert reply["code"] in (85, 86)
    assert [tier for tier, _ in world.exchange.sent] == [Tier.ARCHIVE]


async def test_what_f_refuses_is_undone_in_the_archive(world: DirectWorld) -> None:
    await world.fast.create_index([("b", 1)], name="a_1")
    reply = await world.run(building(A_INDEX), handle)
    assert reply["code"] in (85, 86)
    assert set(await indexes(world.archive)) == {"_id_"}


async def test_a_collection_is_created_in_both_tiers_or_neither(world: DirectWorld) -> None:
    await world.fast.drop()
    await world.archive.drop()
    validator = {"validator": {"a": {"$type": "int"}}}
    assert await world.run({"create": "orders", **validator}, handle) == {"ok": 1.0}
    for client in (world.tiers.fast, world.tiers.archive):
        (info,) = [i async for i in await client["shop"].list_collections()]
        assert info["options"] == validator
    again = await world.run({"create": "orders"}, handle)
    assert again["code"] == 48


@pytest.mark.parametrize(
    "options",
    [
        {"capped": True, "size": 4096},
        {"timeseries": {"timeField": "t"}},
        {"viewOn": "other", "pipeline": []},
        {"collation": {"locale": "de"}},
        {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
    ],
)
async def test_collections_that_cannot_be_tiered_are_refused(
    world: DirectWorld, options: dict[str, Any]
) -> None:
    reply = await world.run({"create": "orders", **options}, handle)
    assert reply["code"] == 115
    assert world.exchange.sent == []


class Killed(BaseException):
    """The proxy is gone: nothing of it runs any more."""


CHANGES: dict[str, dict[str, Any]] = {
    "createIndexes": building(A_INDEX, {"key": {"c": 1}, "name": "c_1", "expireAfterSeconds": 60}),
    "dropIndexes": {"dropIndexes": "orders", "index": "b_1"},
    "collMod": {"collMod": "orders", "validator": {"a": {"$type": "int"}}},
    "collMod of an index": {"collMod": "orders", "index": {"name": "b_1", "hidden": True}},
}


async def shape(client: Any) -> dict[str, Any]:
    """Indexes without their expiry, and options."""
    indexes = {
        index["name"]: {n: v for n, v in index.items() if n != "expireAfterSeconds"}
        async for index in await client["shop"]["orders"].list_indexes()
    }
    (info,) = [i async for i in await client["shop"].list_collections(filter={"name": "orders"})]
    return {"indexes": indexes, "options": info["options"]}


@pytest.mark.parametrize("at", [1, 2, 3], ids=["before the archive", "in between", "behind both"])
@pytest.mark.parametrize("name", CHANGES)
async def test_m30_a_proxy_that_dies_between_the_tiers_leaves_what_parity_mends(
    world: DirectWorld, name: str, at: int
) -> None:
    for collection in (world.archive, world.fast):
        await collection.create_index([("b", 1)], name="b_1")
    before = await shape(world.tiers.archive)
    sent = 0

    async def die(tier: Tier, command: dict[str, Any]) -> None:
        nonlocal sent
        sent += 1
        if sent == at:
            raise Killed

    world.exchange.before = die
    if at < 3:
        with pytest.raises(Killed):
            await world.run(CHANGES[name], handle)
    else:
        assert (await world.run(CHANGES[name], handle))["ok"] == 1.0
    parity = Collections(world.tiers)
    for _ in range(2):  # it mends what it sees twice
        await parity.compare(world.coverage)
    there = await shape(world.tiers.archive)
    assert await shape(world.tiers.fast) == there
    assert (there == before) is (at == 1), "the archive has it once it was sent there"
    await parity.compare(world.coverage)
    report = parity.reports[world.namespace]
    assert (report.indexes, report.options, report.error) == ((), (), None)
    world.exchange.before = None
    again = await world.run(CHANGES[name], handle)
    assert again["ok"] == 1.0 or again["code"] == 27, "the driver's next try finds it done"

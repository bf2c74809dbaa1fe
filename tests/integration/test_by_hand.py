"""Whoever deletes, drops or changes something in the fast tier by hand can't harm the archive."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.feeders import QUICK, Feeder, following, write_manifest
from support.mongod import ReplicaSet
from support.services import Manifest
from thermocline_common.coverage import State
from thermocline_common.coverage_store import read_one
from thermocline_common.manifest import ManifestFollower
from thermocline_common.tiers import Tiers

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        await a["shop"]["orders"].create_index("t")
        await a["shop"]["orders"].create_index("u", unique=True, sparse=True)
        await a["shop"]["orders"].insert_many([{"_id": n, "u": n} for n in range(20)])
        yield Tiers(f, a)


@pytest.fixture
def manifest(tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet) -> Manifest:
    return write_manifest(tmp_path, fast, archive, [POLICY])


@pytest.fixture
async def follower(manifest: Manifest) -> AsyncIterator[ManifestFollower]:
    async with following(manifest) as found:
        yield found


async def archive_as_it_is(tiers: Tiers) -> tuple[Any, ...]:
    """Everything of A that a command could change: collections with UUIDs and options, indexes, documents."""
    database = tiers.archive["shop"]
    collections = sorted(
        [c async for c in await database.list_collections()], key=lambda c: str(c["name"])
    )
    found: list[Any] = []
    for collection in collections:
        inside = database[collection["name"]]
        indexes = [dict(i) async for i in await inside.list_indexes()]
        documents = [d async for d in inside.find({}).sort("_id", 1)]
        found.append((collection["name"], collection["info"], collection["options"]))
        found.append((indexes, documents))
    return tuple(found)


async def delete_all(tiers: Tiers) -> None:
    await tiers.fast["shop"]["orders"].delete_many({})


async def delete_in_a_transaction(tiers: Tiers) -> None:
    async with tiers.fast.start_session() as session, await session.start_transaction():
        await tiers.fast["shop"]["orders"].delete_one({"_id": "mine"}, session=session)


async def drop(tiers: Tiers) -> None:
    await tiers.fast["shop"]["orders"].drop()


async def drop_database(tiers: Tiers) -> None:
    await tiers.fast.drop_database("shop")


async def rename(tiers: Tiers) -> None:
    await tiers.fast["shop"]["orders"].rename("elsewhere")


async def rename_over(tiers: Tiers) -> None:
    await tiers.fast["shop"]["empty"].insert_one({"_id": "of another"})
    await tiers.fast["shop"]["empty"].rename("orders", dropTarget=True)


async def drop_indexes(tiers: Tiers) -> None:
    await tiers.fast["shop"]["orders"].drop_indexes()


async def make_unique(tiers: Tiers) -> None:
    await tiers.fast["shop"]["orders"].create_index("v", unique=True)


async def change_options(tiers: Tiers) -> None:
    await tiers.fast["shop"].command(
        "collMod", "orders", validator={"never": 1}, validationAction="warn"
    )


async def make_capped(tiers: Tiers) -> None:
    await tiers.fast["shop"].command("convertToCapped", "orders", size=4096)


@pytest.mark.parametrize(
    "harm",
    [
        delete_all,
        delete_in_a_transaction,
        drop,
        drop_database,
        rename,
        rename_over,
        drop_indexes,
        make_unique,
        change_options,
        make_capped,
    ],
)
async def test_the_archive_stays_as_it_is(
    tiers: Tiers, follower: ManifestFollower, harm: Callable[[Tiers], Awaitable[None]]
) -> None:
    orders = tiers.fast["shop"]["orders"]
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await orders.insert_one({"_id": "mine", "u": "mine"})
        await feeder.replayed()
        before = await archive_as_it_is(tiers)
        await harm(tiers)
        await feeder.replayed()
        await asyncio.sleep(0.5)
        # What stands there now under another UUID was put there by hand: never taken for ours.
        assert await archive_as_it_is(tiers) == before
        await feeder.stop()
    async with Feeder(tiers, follower) as feeder:
        await feeder.replayed()
        assert await archive_as_it_is(tiers) == before


async def test_deletes_by_hand_are_counted(tiers: Tiers, follower: ManifestFollower) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_many([{"_id": f"x{n}"} for n in range(3)])
        await feeder.replayed()
        await tiers.fast["shop"]["orders"].delete_many({})
        await feeder.replayed()
        assert feeder.service.status()["deletedByHand"] == 3
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 23


async def test_replay_that_lags_behind_a_drop_never_makes_the_collection_again(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    """M5, H23: a feeder froze with a batch in its hands; its successor took the namespace to
    Passthrough, and A's collection was dropped, and made anew, by the application."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    armed = False

    async def pause(step: str) -> None:
        if armed and step == "apply":
            reached.set()
            await go_on.wait()

    settings = replace(QUICK, heartbeat_interval=1000.0, marker_interval=1000.0)
    first = Feeder(tiers, follower, settings=settings, pause=pause)
    first.start()
    await first.reaches(NS, State.ACTIVE)
    armed = True
    await tiers.fast["shop"]["orders"].insert_many([{"_id": f"late {n}"} for n in range(50)])
    await asyncio.wait_for(reached.wait(), 20)
    manifest.change(mode="Passthrough")
    async with Feeder(tiers, follower) as second:

        async def left() -> bool:
            coverage = await read_one(tiers, NS)
            return coverage is None or coverage.state is State.PASSTHROUGH

        await second.until(left, 60)
    orders = tiers.archive["shop"]["orders"]
    assert await orders.count_documents({}) == 70
    await orders.drop()
    go_on.set()
    await asyncio.sleep(1.0)
    assert await tiers.archive["shop"].list_collection_names() == []
    await orders.insert_one({"_id": "new"})
    await asyncio.sleep(1.0)
    assert [d async for d in orders.find()] == [{"_id": "new"}]
    await first.crash()

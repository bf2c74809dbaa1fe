"""What a service leaves open when it is killed in a transaction holds nobody up until MongoDB ends it, a minute later."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure

from support import accounts
from support.feeders import QUICK, Feeder, following, write_manifest
from support.mongod import ReplicaSet
from thermocline_common import names
from thermocline_common.admin import Address
from thermocline_common.coverage import Tier
from thermocline_common.manifest import ManifestFollower
from thermocline_common.reserved import ReservedSessions
from thermocline_common.tiers import Tiers
from thermocline_feeder.abandoned import end_abandoned
from thermocline_feeder.checkpoint import place_of

pytestmark = pytest.mark.integration
LONG = 30
"""Seconds: half of what MongoDB would wait, and many times what it takes."""


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        yield Tiers(f, a)


@pytest.fixture
async def follower(
    tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet
) -> AsyncIterator[ManifestFollower]:
    async with following(write_manifest(tmp_path, fast, archive, [])) as found:
        yield found


async def left_open(
    client: AsyncMongoClient[dict[str, Any]], namespace: str, doc_id: Any
) -> AsyncClientSession:
    """A transaction as services make them, after its first write; nobody goes on with it."""
    session = ReservedSessions(client)._open()
    await session.start_transaction()
    database, name = namespace.split(".", 1)
    await client[database][name].update_one({"_id": doc_id}, {"$inc": {"x": 1}}, session=session)
    return session


async def test_a_killed_feeders_successor_takes_over(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    async with Feeder(tiers, follower) as first:
        await first.until(lambda: first.service.owning)
        await first.crash()
    session = await left_open(
        tiers.archive, f"{names.DATABASE}.{names.CHECKPOINT}", names.CHECKPOINT_ID
    )
    async with Feeder(tiers, follower) as second:
        await second.until(lambda: second.service.owning, LONG)
    with pytest.raises(OperationFailure) as caught:
        await session.commit_transaction()
    assert caught.value.code == 251


async def test_what_others_left_open_is_ended_and_applications_transactions_are_not(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_many([{"_id": 1}, {"_id": 2}])
    session = await left_open(tiers.fast, "shop.orders", 1)
    async with Feeder(tiers, follower), tiers.fast.start_session() as application:
        await application.start_transaction()
        await orders.update_one({"_id": 2}, {"$set": {"y": 1}}, session=application)
        async with asyncio.timeout(LONG):
            await orders.update_one({"_id": 1}, {"$set": {"z": 1}})
        await application.commit_transaction()
    with pytest.raises(OperationFailure):
        await session.commit_transaction()
    assert [d async for d in orders.find()] == [{"_id": 1, "z": 1}, {"_id": 2, "y": 1}]


async def test_the_services_own_user_may_end_them(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    accounts.create_service_users(secure_fast, secure_archive, ["shop"])
    login = accounts.SERVICES[Tier.FAST]
    with secure_fast.client() as root:
        root.shop.orders.insert_one({"_id": 1})
    async with (
        secure_fast.async_client(username=login.user, password=login.password) as killed,
        secure_fast.async_client(username=login.user, password=login.password) as other,
    ):
        session = await left_open(killed, "shop.orders", 1)
        assert await end_abandoned(other, 60) == 0
        assert await end_abandoned(other, 0) == 1
        with pytest.raises(OperationFailure):
            await session.commit_transaction()


@pytest.mark.parametrize(
    ("place", "there"), [("host-2 127.0.0.1:8080", False), ("host-1 127.0.0.1:8080", True)]
)
async def test_a_feeder_that_runs_where_another_was_killed_does_not_wait(
    tiers: Tiers, follower: ManifestFollower, place: str, there: bool
) -> None:
    async with Feeder(tiers, follower) as first:
        await first.until(lambda: first.service.owning)
        await first.crash()
    await tiers.archive[names.DATABASE][names.CHECKPOINT].update_one(
        {"_id": names.CHECKPOINT_ID},
        {
            "$set": {"feeder": Binary(b"\1" * 16, 4), "place": place},
            "$inc": {"heartbeat": Int64(1)},
        },
    )
    second = Feeder(tiers, follower, replace(QUICK, takeover_after=600.0))
    second.service.place = "host-1 127.0.0.1:8080"
    async with second:
        await second.until(lambda: second.service.owning or second.service.standing_by_for)
        assert second.service.owning is there


@pytest.mark.parametrize(
    ("admin", "expected"),
    [
        (None, None),
        (Address("127.0.0.1", 0), None),
        (Address("127.0.0.1", 8080), "host 127.0.0.1:8080"),
    ],
)
def test_where_a_process_runs(admin: Address | None, expected: str | None) -> None:
    assert place_of("host", admin) == expected

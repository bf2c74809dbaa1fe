"""The feeder after losses: F restored or replaced, F's oplog too short, failovers, kill -9."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo.errors import PyMongoError

from support.feeders import QUICK, Feeder, following, raw_documents, write_manifest
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Manifest, ServiceProcess
from thermocline_common import names
from thermocline_common.coverage import Coverage, State
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
        await a["shop"]["orders"].insert_many([{"_id": i} for i in range(10)])
        yield Tiers(f, a)


@pytest.fixture
async def follower(
    tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet
) -> AsyncIterator[ManifestFollower]:
    async with following(write_manifest(tmp_path, fast, archive, [POLICY])) as found:
        yield found


async def same(tiers: Tiers) -> bool:
    return await raw_documents(tiers.fast, NS) == await raw_documents(tiers.archive, NS)


async def active_anew(feeder: Feeder, before: Coverage) -> Coverage:
    """Wait until the namespace is active under another epoch."""

    async def anew() -> bool:
        found = await read_one(feeder.tiers, NS)
        return found is not None and found.state is State.ACTIVE and found.epoch != before.epoch

    await feeder.until(anew)
    return await feeder.reaches(NS, State.ACTIVE)


async def test_coordination_collections_are_there_before_any_transaction_needs_them(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    """One that is created after a transaction's snapshot ends the transaction with 246."""
    for _ in range(2):  # the second finds them
        async with Feeder(tiers, follower) as feeder:
            coverage = await feeder.reaches(NS, State.ACTIVE)
            assert {names.COVERAGE, names.REMOVED, names.MARKERS} <= set(
                await tiers.fast[names.DATABASE].list_collection_names()
            )
            assert {names.CHECKPOINT, names.TIERED} <= set(
                await tiers.archive[names.DATABASE].list_collection_names()
            )
            transaction = {
                "lsid": {"id": Binary.from_uuid(uuid.uuid4())},
                "txnNumber": Int64(1),
                "autocommit": False,
            }
            record = {"_id": {"ns": NS, "id": uuid.uuid4().hex}, "kind": "deleted"}
            await tiers.fast[names.DATABASE].command(
                {
                    "insert": names.REMOVED,
                    "documents": [record],
                    **transaction,
                    "startTransaction": True,
                    "readConcern": {"level": "snapshot", "atClusterTime": coverage.activated_at},
                }
            )
            await tiers.fast.admin.command({"commitTransaction": 1, **transaction})


@pytest.mark.parametrize("how", ["epoch", "counter", "empty", "fork"])
async def test_f_went_back(tiers: Tiers, follower: ManifestFollower, how: str) -> None:
    """The archive is the truth then: nothing of F overwrites it, and nothing of F is dropped."""
    async with Feeder(tiers, follower) as feeder:
        before = await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_many(
            [{"_id": i, "new": 1} for i in range(100, 110)]
        )
        await feeder.replayed()
        await feeder.until(lambda: (c := feeder.parts.replay.counted) is not None and c.counter > 1)
        await feeder.replayed()
    markers = tiers.fast[names.DATABASE][names.MARKERS]
    if how == "epoch":
        await markers.update_one(
            {"_id": "epoch"}, {"$set": {"epoch": Binary.from_uuid(uuid.uuid4())}}
        )
    elif how == "counter":
        await markers.update_one({"_id": "epoch"}, {"$set": {"counter": Int64(0)}})
    elif how == "empty":
        await markers.drop()
    else:
        checkpoints = tiers.archive[names.DATABASE][names.CHECKPOINT]
        found = await checkpoints.find_one()
        assert found is not None
        # A time that F has passed, at which it has no entry.
        time = found["time"].__class__(found["time"].time - 1, 999_999)
        await checkpoints.update_one({}, {"$set": {"time": time}})
    # An old version in F, as after a restore; A holds a newer one.
    await tiers.fast["shop"]["orders"].update_one({"_id": 100}, {"$set": {"new": "old"}})
    await tiers.fast[names.DATABASE][names.REMOVED].insert_one(
        {"_id": {"ns": NS, "id": 5}, "kind": "deleted", "token": Binary.from_uuid(uuid.uuid4())}
    )
    async with Feeder(tiers, follower) as feeder:
        after = await active_anew(feeder, before)
        assert after.fast_uuid != before.fast_uuid
        status = feeder.service.status()
        assert status["lostFrom"]
        assert len(status["setAside"]) == 1
        aside = status["setAside"][0].split(".", 1)[1]
        assert await tiers.fast["shop"][aside].count_documents({}) == 10
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 20
        assert await tiers.archive["shop"]["orders"].find_one({"_id": 100}) == {
            "_id": 100,
            "new": 1,
        }
        await tiers.fast["shop"]["orders"].insert_one({"_id": "after"})
        await feeder.replayed()
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 21


async def test_f_goes_back_under_a_running_feeder(tiers: Tiers, follower: ManifestFollower) -> None:
    async with Feeder(tiers, follower) as feeder:
        before = await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast[names.DATABASE][names.MARKERS].update_one(
            {"_id": "epoch"}, {"$set": {"epoch": Binary.from_uuid(uuid.uuid4())}}
        )

        await active_anew(feeder, before)


async def test_a_start_anew_that_was_interrupted_goes_on(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    async with Feeder(tiers, follower) as feeder:
        before = await feeder.reaches(NS, State.ACTIVE)
    wanted = uuid.uuid4()
    await tiers.archive[names.DATABASE][names.CHECKPOINT].update_one(
        {}, {"$set": {"nextEpoch": Binary.from_uuid(wanted)}}
    )
    async with Feeder(tiers, follower) as feeder:
        assert (await active_anew(feeder, before)).epoch == wanted


async def test_f_lost_its_oplog(
    make_replica_set: Callable[..., ReplicaSet], tmp_path: Path
) -> None:
    """The feeder was away too long: it resynchronises from F's documents and records."""
    fast = make_replica_set("fast", oplog_mb=990)
    archive = make_replica_set("archive")
    async with (
        fast.async_client() as f,
        archive.async_client() as a,
        following(write_manifest(tmp_path, fast, archive, [POLICY])) as follower,
    ):
        tiers = Tiers(f, a)
        orders = f["shop"]["orders"]
        await a["shop"]["orders"].create_index("t")
        await a["shop"]["orders"].insert_many([{"_id": f"cold{i}"} for i in range(10)])
        async with Feeder(tiers, follower) as feeder:
            await feeder.reaches(NS, State.ACTIVE)
            await orders.insert_many([{"_id": i, "v": 0} for i in range(5000)])
            await feeder.replayed()
        await orders.update_many({"_id": {"$lt": 4000}}, {"$set": {"v": 1}})
        await orders.insert_many([{"_id": f"new{i}"} for i in range(10)] + [{"_id": 1.5}])
        await f[names.DATABASE][names.REMOVED].insert_many(
            [
                {
                    "_id": {"ns": NS, "id": i},
                    "kind": "deleted",
                    "token": Binary.from_uuid(uuid.uuid4()),
                }
                for i in range(10)
            ]
        )
        await orders.delete_many({"_id": {"$lt": 10}})
        await orders.insert_one({"_id": 3, "back": True})
        # As after a long absence: the oplog's beginning is behind the checkpoint's time.
        first = await f["local"]["oplog.rs"].find_one(sort=[("$natural", 1)])
        assert first is not None
        early = first["ts"].__class__(first["ts"].time - 10, 1)
        await a[names.DATABASE][names.CHECKPOINT].update_one({}, {"$set": {"time": early}})
        async with Feeder(tiers, follower) as feeder:
            await feeder.replayed()
            assert feeder.parts.replay.figures.resyncs == 1
            in_fast, in_archive = await raw_documents(f, NS), await raw_documents(a, NS)
            assert {k: v for k, v in in_archive.items() if b"cold" not in k} == in_fast
            assert len(in_archive) == len(in_fast) + 10
            await orders.insert_one({"_id": "later"})
            await feeder.replayed()
            assert await a["shop"]["orders"].find_one({"_id": "later"})


async def test_failover_of_f(make_replica_set: Callable[..., ReplicaSet], tmp_path: Path) -> None:
    fast = make_replica_set("fast", members=3)
    archive = make_replica_set("archive")
    async with (
        fast.async_client(w="majority") as f,
        archive.async_client() as a,
        following(write_manifest(tmp_path, fast, archive, [POLICY])) as follower,
        Feeder(Tiers(f, a), follower) as feeder,
    ):
        await a["shop"]["orders"].create_index("t")
        await feeder.reaches(NS, State.ACTIVE, 60)
        acknowledged: list[int] = []
        stop = asyncio.Event()

        async def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    await f["shop"]["orders"].insert_one({"_id": number})
                    acknowledged.append(number)
                except PyMongoError:
                    await asyncio.sleep(0.1)

        writer = asyncio.create_task(write())
        await asyncio.sleep(1)
        primary = fast.primary()
        assert primary is not None
        await asyncio.to_thread(primary.kill)
        before = len(acknowledged)
        await feeder.until(lambda: len(acknowledged) > before + 50, 60)
        await asyncio.to_thread(primary.start)
        await asyncio.sleep(1)
        stop.set()
        await writer
        await feeder.replayed(60)
        assert await raw_documents(f, NS) == await raw_documents(a, NS)
        found = {d["_id"] async for d in a["shop"]["orders"].find({}, {"_id": 1})}
        assert set(acknowledged) <= found
        # The same tier all along: nothing was started anew.
        assert feeder.service.status()["lostFrom"] is None


async def test_kill_minus_nine_under_load(
    tiers: Tiers, tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet
) -> None:
    """The real process, killed again and again, with a second one beside it."""
    manifest: Manifest = write_manifest(tmp_path, fast, archive, [POLICY])
    environment = {
        f"THERMOCLINE_TEST_FEEDER_{name.upper()}": str(getattr(QUICK, name))
        for name in (
            "heartbeat_interval",
            "takeover_after",
            "standby_poll",
            "marker_interval",
            "state_poll",
        )
    }
    feeders = [
        ServiceProcess(
            "feeder", manifest.path, tmp_path, label=f"feeder{i}", environment=environment
        )
        for i in range(2)
    ]
    feeders[0].start()
    try:
        await asyncio.to_thread(wait_until, "feeder", feeders[0].ready, 90)
        for _ in range(900):
            coverage = await read_one(tiers, NS)
            if coverage is not None and coverage.state is State.ACTIVE:
                break
            await asyncio.sleep(0.1)
        stop = asyncio.Event()
        orders = tiers.fast["shop"]["orders"]

        async def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                await orders.update_one({"_id": number % 500}, {"$inc": {"n": 1}}, upsert=True)

        writer = asyncio.create_task(write())
        feeders[1].start()
        for turn in range(3):
            await asyncio.sleep(1.5)
            await asyncio.to_thread(feeders[turn % 2].kill)
            await asyncio.sleep(0.2)
            feeders[turn % 2].start()
        stop.set()
        await writer

        async def equal() -> bool:
            in_fast = await raw_documents(tiers.fast, NS)
            in_archive = await raw_documents(tiers.archive, NS)
            return all(in_archive.get(k) == v for k, v in in_fast.items())

        for _ in range(1_000):
            if await equal():
                break
            await asyncio.sleep(0.1)
        assert await equal(), str([feeder.status() for feeder in feeders])
        # One that is still being loaded would die of SIGTERM instead of heeding it.
        for feeder in feeders:
            await asyncio.to_thread(wait_until, f"{feeder.label} up", feeder.status, 60)
    finally:
        codes = [await asyncio.to_thread(feeder.terminate) for feeder in feeders]
    assert codes == [0, 0]


async def test_removal_records_go_when_nothing_rests_on_them(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    settings = replace(QUICK, record_age=0.8, record_scan=0.2)
    orders = tiers.fast["shop"]["orders"]
    removed = tiers.fast[names.DATABASE][names.REMOVED]

    async def put(kind: str, number: object) -> None:
        token = Binary.from_uuid(uuid.uuid4())
        await removed.insert_one({"_id": {"ns": NS, "id": number}, "kind": kind, "token": token})

    async with Feeder(tiers, follower, settings=settings) as feeder:
        before = await feeder.reaches(NS, State.ACTIVE)
        await orders.insert_many([{"_id": i} for i in range(100, 104)])
        await put("deleted", 100)
        await orders.delete_one({"_id": 100})
        await put("deleted", 101)  # void: the delete never happened
        await put("evicted", 102)
        await put("leaving", 103)
        # The archive still holds it, and nothing will delete it there: a record that must stay.
        await put("expired", 5)
        await feeder.until(lambda: feeder.parts.collector.removed == 4)
        assert [d["_id"]["id"] async for d in removed.find({})] == [5]
        after = await feeder.reaches(NS, State.ACTIVE)
        assert after.archive_time is not None
        assert before.archive_time is not None
        assert after.archive_time > before.archive_time
        await tiers.archive["shop"]["orders"].delete_one({"_id": 5})
        await feeder.until(lambda: feeder.parts.collector.removed == 5)


async def test_refused_documents_are_found_without_stopping(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    """Over the limit the checkpoint stops, and goes on by itself once the cause is mended."""
    settings = replace(QUICK, quarantine_limit=3)
    async with Feeder(tiers, follower, settings=settings) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.archive["shop"]["orders"].create_index([("place", "2dsphere")], name="geo")
        await tiers.fast["shop"]["orders"].insert_many(
            [{"_id": 100 + i, "place": "nowhere"} for i in range(6)]
        )
        await feeder.until(lambda: "refuses more than 3" in str(feeder.context.problems.current))
        assert not await same(tiers)
        await tiers.archive["shop"]["orders"].drop_index("geo")
        await feeder.replayed()
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 16

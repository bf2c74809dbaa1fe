"""Cases H and M about replay: what the feeder makes of events, and members that are behind."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, WriteConcern
from pymongo.errors import PyMongoError

from support.feeders import Feeder, following, raw_documents, write_manifest
from support.hand_feeder import activate
from support.mongod import Mongod, ReplicaSet
from support.services import Manifest
from thermocline_common import names
from thermocline_common.copy_in import keep
from thermocline_common.coverage import State
from thermocline_common.coverage_store import read_linearizable
from thermocline_common.ids import DocId
from thermocline_common.manifest import ManifestFollower
from thermocline_common.tiers import Tiers

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        await a["shop"]["orders"].create_index("t")
        yield Tiers(f, a)


@pytest.fixture
def manifest(tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet) -> Manifest:
    return write_manifest(tmp_path, fast, archive, [POLICY])


@pytest.fixture
async def follower(manifest: Manifest) -> AsyncIterator[ManifestFollower]:
    async with following(manifest) as found:
        yield found


@pytest.fixture
async def active(tiers: Tiers, follower: ManifestFollower) -> AsyncIterator[Feeder]:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        yield feeder


async def same(tiers: Tiers, namespace: str = NS) -> bool:
    return await raw_documents(tiers.fast, namespace) == await raw_documents(
        tiers.archive, namespace
    )


async def checkpoint_time(tiers: Tiers) -> Timestamp:
    found = await tiers.archive[names.DATABASE][names.CHECKPOINT].find_one()
    assert found is not None
    time: Timestamp = found["time"]
    return time


async def record_deleted(tiers: Tiers, doc_id: Any) -> None:
    await tiers.fast[names.DATABASE][names.REMOVED].replace_one(
        {"_id": {"ns": NS, "id": doc_id}},
        {"kind": "deleted", "token": Binary.from_uuid(uuid.uuid4())},
        upsert=True,
    )


async def test_h12_a_window_of_everything_leaves_the_last_state(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    """Held back, so that all of it is one batch; the archive starts from other forms of the paths."""
    go = asyncio.Event()
    go.set()

    async def held(step: str) -> None:
        await go.wait()

    orders = tiers.fast["shop"]["orders"]
    async with Feeder(tiers, follower, pause=held) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await orders.insert_many(
            [{"_id": 1, "a": None}, {"_id": 2, "a": [1]}, {"_id": 3, "m": [1, 2, 3]}, {"_id": 4}]
        )
        await feeder.replayed()
        go.clear()
        await orders.update_one({"_id": 1}, {"$set": {"a": {"b": 1}}})
        await orders.update_one({"_id": 1}, {"$set": {"a.c": 2}})
        await orders.update_one({"_id": 2}, {"$set": {"a": {"b": 1}}})
        await orders.update_one({"_id": 3}, {"$pop": {"m": -1}})
        await orders.update_one({"_id": 3}, {"$push": {"m": {"$each": [9, 8], "$position": 1}}})
        await orders.update_one({"_id": 3}, [{"$set": {"m": {"$slice": ["$m", 3]}}}])
        await orders.update_one({"_id": 3}, {"$set": {"m.6": "beyond the end", "n.1": "a field"}})
        await record_deleted(tiers, 4)
        await orders.delete_one({"_id": 4})
        await orders.insert_one({"_id": 4, "v": 1})
        await orders.update_one({"_id": 4}, {"$inc": {"v": 1}})
        await orders.replace_one({"_id": 4}, {"w": 1})
        await record_deleted(tiers, 4)
        await orders.delete_one({"_id": 4})
        await orders.insert_one({"_id": 4, "last": True})
        await orders.insert_one({"_id": 5})
        await record_deleted(tiers, 5)
        await orders.delete_one({"_id": 5})
        go.set()
        await feeder.replayed()
        assert await same(tiers)
        archive = tiers.archive["shop"]["orders"]
        assert await archive.find_one({"_id": 4}) == {"_id": 4, "last": True}
        assert await archive.find_one({"_id": 5}) is None
        assert await archive.count_documents({"_id": 3, "m": "beyond the end"}) == 1


async def test_h14_the_checkpoint_never_passes_what_is_not_applied(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    """A batch is held before its transaction, markers go on, the feeder dies: nothing is lost."""
    go, waiting = asyncio.Event(), asyncio.Event()
    go.set()

    async def held(step: str) -> None:
        if not go.is_set():
            waiting.set()
        await go.wait()

    orders = tiers.fast["shop"]["orders"]
    async with Feeder(tiers, follower, pause=held) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await feeder.replayed()
        go.clear()
        await orders.insert_one({"_id": "held"})
        held_at = (await tiers.fast.admin.command("ping"))["operationTime"]
        async with asyncio.timeout(20):
            await waiting.wait()
        await asyncio.sleep(2.5)  # markers, heartbeats and idle turns meanwhile
        assert await checkpoint_time(tiers) < held_at
        assert await tiers.archive["shop"]["orders"].find_one({"_id": "held"}) is None
        await feeder.crash()
    async with Feeder(tiers, follower) as feeder:
        await feeder.replayed()
        assert await same(tiers)
        assert await tiers.archive["shop"]["orders"].find_one({"_id": "held"}) is not None


async def test_h17_quiet_collections_beside_busy_ones_move_the_checkpoint(
    active: Feeder, tiers: Tiers
) -> None:
    await active.replayed()
    before = await checkpoint_time(tiers)
    for number in range(300):
        await tiers.fast["other"]["busy"].insert_one({"_id": number})
    busy_until = (await tiers.fast.admin.command("ping"))["operationTime"]

    async def moved() -> bool:
        return bool(await checkpoint_time(tiers) > busy_until)

    await active.until(moved, 15)
    assert await checkpoint_time(tiers) > before
    assert await tiers.archive["other"]["busy"].find_one() is None


async def test_h29_odd_names_and_their_look_alikes(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    wanted = [NS, "shop.a.b+(x)|y^", "shop.orders.archive", "shop.with space", "shop.Ünïcode"]
    foreign = [
        ("shop", "ordersx"), ("shop", "order"), ("shop", "Orders"), ("shop", "a"), ("shop", "axb+(x)|y^"),
        ("shopx", "orders"), ("sho", "p.orders"), ("shop", "with"),
    ]  # fmt: skip
    for namespace in wanted:
        database, name = namespace.split(".", 1)
        await tiers.archive[database][name].create_index("t")
    manifest.change(collections=[{**POLICY, "namespace": namespace} for namespace in wanted])
    async with Feeder(tiers, follower) as feeder:
        for namespace in wanted:
            await feeder.reaches(namespace, State.ACTIVE)
        for number, namespace in enumerate(wanted):
            database, name = namespace.split(".", 1)
            await tiers.fast[database][name].insert_many([{"_id": i} for i in range(number + 1)])
        for database, name in foreign:
            await tiers.fast[database][name].insert_one({"_id": "foreign"})
        await feeder.replayed()
        for number, namespace in enumerate(wanted):
            assert await same(tiers, namespace)
            assert len(await raw_documents(tiers.archive, namespace)) == number + 1
        for database, name in foreign:
            assert await tiers.archive[database][name].find_one() is None


async def test_h31_validators_and_parallel_arrays_of_the_archive(
    active: Feeder, tiers: Tiers
) -> None:
    await tiers.archive["shop"].command("collMod", "orders", validator={"price": {"$type": "int"}})
    await tiers.archive["shop"]["orders"].create_index([("a", 1), ("b", 1)])
    await tiers.fast["shop"]["orders"].insert_many(
        [{"_id": 1, "price": "high"}, {"_id": 2, "a": [1], "b": [2]}, {"_id": 3}]
    )
    await active.replayed()
    found = {d["_id"] async for d in tiers.archive["shop"]["orders"].find()}
    assert found == {1, 3}
    checkpoint = await tiers.archive[names.DATABASE][names.CHECKPOINT].find_one()
    assert checkpoint is not None
    assert [q["id"] for q in checkpoint["quarantine"]] == [2]
    await tiers.archive["shop"]["orders"].drop_index("a_1_b_1")
    await active.until(lambda: not active.parts.applier.quarantine)
    assert await same(tiers)


async def test_m11_a_policy_added_and_removed_under_a_running_feeder(
    active: Feeder, tiers: Tiers, manifest: Manifest
) -> None:
    """The stream is opened anew with another filter, at a time: nothing is left out or stops it."""
    await tiers.archive["shop"]["more"].create_index("t")
    more = {**POLICY, "namespace": "shop.more"}
    orders, stop = tiers.fast["shop"]["orders"], asyncio.Event()

    async def write() -> int:
        number = 0
        while not stop.is_set():
            await orders.insert_one({"_id": number})
            number += 1
        return number

    writer = asyncio.create_task(write())
    try:
        for _ in range(2):
            manifest.change(collections=[POLICY, more])
            await active.reaches("shop.more", State.ACTIVE, 40)
            await tiers.fast["shop"]["more"].update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
            await active.replayed()
            manifest.change(collections=[POLICY])

            async def left() -> bool:
                found = await tiers.fast[names.DATABASE][names.COVERAGE].find_one(
                    {"_id": "shop.more"}
                )
                return found is None or found["state"] == "Passthrough"

            await active.until(left, 40)
    finally:
        stop.set()
        written = await writer
    await active.replayed()
    assert await same(tiers)
    assert await tiers.archive["shop"]["orders"].count_documents({}) == written
    more_now = await tiers.archive["shop"]["more"].find_one({"_id": 1})
    assert more_now is not None


async def test_m16_a_floor_counts_for_its_own_policy_alone(
    active: Feeder, tiers: Tiers, manifest: Manifest
) -> None:
    """From an age to ``keep: All`` and back: neither ``floor`` nor ``complete`` is taken along."""
    coverage = tiers.fast[names.DATABASE][names.COVERAGE]
    now = bson.datetime_ms.DatetimeMS(1_767_225_600_000)
    await coverage.update_one({"_id": NS}, {"$set": {"floor": now}})
    raised = (await active.reaches(NS, State.ACTIVE)).raised
    manifest.change(collections=[{"namespace": NS, "keep": "All"}])

    async def whole() -> bool:
        found = await coverage.find_one({"_id": NS})
        return found is not None and found.get("keep") == "All" and found["state"] == "Active"

    await active.until(whole)
    kept = await active.reaches(NS, State.ACTIVE)
    assert (kept.floor, kept.complete, kept.age_field) == (None, False, None)
    assert kept.raised > raised
    await coverage.update_one({"_id": NS}, {"$set": {"complete": True}})
    manifest.change(collections=[{**POLICY, "ageField": "other"}])

    async def by_age() -> bool:
        found = await coverage.find_one({"_id": NS})
        return found is not None and found.get("ageField") == "other" and found["state"] == "Active"

    await active.until(by_age)
    aged = await active.reaches(NS, State.ACTIVE)
    assert (aged.floor, aged.complete, aged.keep_all) == (None, False, False)
    assert aged.raised > kept.raised


# Members that are behind, and a primary without its majority


def lag(member: Mongod, mode: str) -> None:
    """Stop (``alwaysOn``) or resume (``off``) a member's replication."""
    with member.direct_client() as client:
        client.admin.command({"configureFailPoint": "rsSyncApplyStop", "mode": mode})


@pytest.fixture
def trio(make_replica_set: Callable[..., ReplicaSet]) -> ReplicaSet:
    options = [{}, {"priority": 0}, {"priority": 0}]
    made = make_replica_set("trio", members=3, test_commands=True, member_options=options)
    with made.client() as client:
        client.get_database("shop", write_concern=WriteConcern(3)).orders.insert_one(
            {"_id": 1, "v": "old"}
        )
    return made


async def test_m4_a_member_that_is_behind_never_gives_an_old_version(
    trio: ReplicaSet, fast: ReplicaSet
) -> None:
    """What a deposed primary answers, a lagging member answers too; a copy waits for it instead."""
    behind = trio.members[2]
    wanted = DocId.of_document(bson.encode({"_id": 1}))
    async with (
        fast.async_client() as hot,
        trio.async_client() as cold,
        AsyncMongoClient[dict[str, Any]](behind.address, directConnection=True) as stale,
    ):
        coverage = await activate(Tiers(hot, cold), NS)
        await asyncio.to_thread(lag, behind, "alwaysOn")
        try:
            new = cold.get_database("shop", write_concern=WriteConcern("majority"))["orders"]
            await new.update_one({"_id": 1}, {"$set": {"v": "new"}})
            reply = await cold.admin.command("ping")
            await hot[names.DATABASE][names.COVERAGE].update_one(
                {"_id": NS},
                {
                    "$set": {
                        "archiveTime": reply["operationTime"],
                        "archiveClusterTime": reply["$clusterTime"],
                    }
                },
            )
            old = await stale["shop"]["orders"].find_one({"_id": 1})
            assert old == {"_id": 1, "v": "old"}, "so it would be copied by a plain read"
            copying = asyncio.create_task(keep(Tiers(hot, stale), coverage, [wanted]))
            await asyncio.sleep(1.0)
            assert not copying.done() or copying.exception() is not None
            assert await hot["shop"]["orders"].find_one({"_id": 1}) is None
        finally:
            await asyncio.to_thread(lag, behind, "off")
        async with asyncio.timeout(15):
            await asyncio.wait([copying])
        copied = await hot["shop"]["orders"].find_one({"_id": 1})
        assert copied == {"_id": 1, "v": "new"}


async def test_m28_a_primary_without_its_majority_says_nothing_about_the_epoch(
    trio: ReplicaSet,
) -> None:
    """Whether the fast tier went back is asked with ``linearizable``: a deposed one can't answer."""
    primary = trio.members[0]
    async with AsyncMongoClient[dict[str, Any]](primary.address, directConnection=True) as client:
        markers = client[names.DATABASE][names.MARKERS]
        await markers.insert_one({"_id": names.EPOCH_MARKER_ID, "counter": 1})
        question = (client, names.MARKERS, {"_id": names.EPOCH_MARKER_ID})
        found, _ = await read_linearizable(*question)
        assert found[0]["counter"] == 1
        for member in trio.members[1:]:
            member.pause()
        try:
            assert await markers.find_one() is not None, "a plain read is still answered"
            with pytest.raises(PyMongoError):
                await read_linearizable(*question, max_time_ms=700)
        finally:
            for member in trio.members[1:]:
                member.resume()

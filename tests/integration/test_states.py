"""Namespaces move between Passthrough and Active by themselves, and nothing is lost on the way."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bson.binary import Binary

from support.feeders import QUICK, Feeder, following, raw_documents, write_manifest
from support.mongod import ReplicaSet
from support.services import Manifest
from thermocline_common import names, schema_requests
from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.coverage_store import compare_and_set, read_all, read_one
from thermocline_common.manifest import ManifestFollower
from thermocline_common.tiers import Tiers
from thermocline_feeder import states
from thermocline_feeder.catalog import find_collection

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        await a["shop"]["orders"].create_index("t", expireAfterSeconds=10**8)
        await a["shop"]["orders"].create_index([("u", 1), ("v", -1)], unique=True, name="uv")
        await a["shop"]["orders"].insert_many([{"_id": i, "u": i} for i in range(100)])
        yield Tiers(f, a)


@pytest.fixture
def manifest(tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet) -> Manifest:
    return write_manifest(tmp_path, fast, archive, [POLICY])


@pytest.fixture
async def follower(manifest: Manifest) -> AsyncIterator[ManifestFollower]:
    async with following(manifest) as found:
        yield found


async def gone(tiers: Tiers) -> bool:
    """Nothing of the namespace is left in the coordination data or in F."""
    return (
        await read_one(tiers, NS) is None
        and await tiers.archive[names.DATABASE][names.TIERED].find_one({"_id": NS}) is None
        and "orders" not in await tiers.fast["shop"].list_collection_names()
    )


async def test_activation_writes_all_that_others_need(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    await tiers.fast[names.DATABASE][names.REMOVED].insert_many(
        [
            {"_id": {"ns": NS, "id": i}, "kind": "deleted", "token": Binary.from_uuid(uuid.uuid4())}
            for i in range(1500)
        ]
        + [{"_id": {"ns": NS + "x", "id": 1}, "kind": "deleted"}]
    )
    async with Feeder(tiers, follower) as feeder:
        coverage = await feeder.reaches(NS, State.ACTIVE)
        assert coverage.target is State.ACTIVE
        assert coverage.age_field == "t"
        assert coverage.floor is None
        assert coverage.archive_time is not None
        assert coverage.archive_cluster_time is not None
        assert coverage.look_back is Tier.ARCHIVE
        assert [(u.name, u.paths, u.plain) for u in coverage.unique] == [("uv", ("u", "v"), True)]
        found = await find_collection(tiers.fast, NS)
        assert found is not None
        assert found.uuid == coverage.fast_uuid
        indexes = await tiers.fast["shop"]["orders"].index_information()
        assert set(indexes) == {"_id_", "t_1", "uv"}
        assert "expireAfterSeconds" not in indexes["t_1"]
        assert await tiers.fast["shop"]["orders"].count_documents({}) == 0
        assert await tiers.fast[names.DATABASE][names.REMOVED].count_documents({}) in (0, 1)
        listed = await tiers.archive[names.DATABASE][names.TIERED].find_one({"_id": NS})
        assert listed is not None
        # A read at that time, as every other component does it.
        reply = await tiers.archive["shop"].command(
            {
                "find": "orders",
                "readConcern": {"level": "majority", "afterClusterTime": coverage.archive_time},
            }
        )
        assert reply["ok"]

        async def over() -> bool:
            found = await read_one(tiers, NS)
            return found is not None and found.look_back is None

        await feeder.until(over)


async def test_there_and_back_again(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    async with Feeder(tiers, follower, settings=replace(QUICK, record_age=300.0)) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_many(
            [{"_id": i, "u": i} for i in range(1000, 1500)]
        )
        removed = tiers.fast[names.DATABASE][names.REMOVED]
        token = Binary.from_uuid(uuid.uuid4())
        await removed.insert_many(
            [
                {"_id": {"ns": NS, "id": f"old{i}"}, "kind": "deleted", "token": token}
                for i in range(350)
            ]
        )
        manifest.change(mode="Passthrough")
        await feeder.reaches(NS, State.PASSTHROUGH)
        # Published: from here on the archive has everything that was ever acknowledged.
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 600
        await feeder.until(lambda: gone(tiers))
        # They would hide what is inserted under these ids from now on.
        assert await removed.count_documents({}) == 0
        # What is written to the archive now is no business of the feeder's.
        await tiers.archive["shop"]["orders"].insert_one({"_id": "mine", "u": -1})
        manifest.change(mode="Active")
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_one({"_id": "again", "u": -2})
        await feeder.replayed()
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 602


async def test_a_look_that_began_before_a_switch_ended_undoes_nothing(
    tiers: Tiers,
    follower: ManifestFollower,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read in the middle of a switch is old once that is over: acted upon, it would have the
    feeder replay a namespace that is the archive's, and publish its old pair of collections."""
    late: list[State] = []

    async def slow(asked: Tiers) -> dict[str, Coverage]:
        found = await read_all(asked)
        if NS in found and found[NS].state is State.PAUSING:
            late.append(found[NS].target)
            await feeder.until(lambda: NS not in feeder.parts.states._busy)
        return found

    monkeypatch.setattr(states, "read_all", slow)
    async with Feeder(tiers, follower) as feeder:
        for wanted in (State.ACTIVE, State.PASSTHROUGH, State.ACTIVE):
            manifest.change(mode=wanted.value)
            coverage = await feeder.reaches(NS, wanted)
            await feeder.until(partial(late.__contains__, wanted))
            late.clear()
            await asyncio.sleep(0.5)  # the look's steps, if any, are over
            pair = feeder.parts.registry.pairs.get(NS)
            assert (pair is not None) is (wanted is State.ACTIVE)
            if pair is not None:
                assert (pair.fast, pair.archive) == (coverage.fast_uuid, coverage.archive_uuid)
        assert await read_one(tiers, NS) is not None


async def test_a_removed_policy_drains(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
        manifest.change(collections=[])
        await feeder.until(lambda: gone(tiers))
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 101


async def test_paused_no_switch_begins_and_replay_goes_on(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        late = {"namespace": "shop.late", "keep": "All"}
        manifest.change(paused=True, mode="Passthrough", collections=[POLICY, late])
        await feeder.until(lambda: f"state {NS}" in feeder.context.problems.current)
        assert "spec.paused" in feeder.context.problems.current[f"state {NS}"]
        assert "spec.paused" in feeder.service.status()["namespaces"][NS]["blockedOn"]
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
        await feeder.replayed()
        assert await tiers.archive["shop"]["orders"].find_one({"_id": "new"}) is not None
        await asyncio.sleep(1.0)
        found = await read_one(tiers, NS)
        assert found is not None
        assert found.state is State.ACTIVE
        assert await read_one(tiers, "shop.late") is None
        manifest.change(paused=False)
        await feeder.until(lambda: gone(tiers))
        await feeder.until(lambda: f"state {NS}" not in feeder.context.problems.current)


async def test_paused_an_unfinished_switch_ends_and_what_an_application_asked_for_is_done(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        manifest.change(paused=True)
        await feeder.until(lambda: follower.current.spec.paused)
        coverage = await read_one(tiers, NS)
        assert coverage is not None
        pausing = {"state": "Pausing", "target": "Passthrough"}
        assert await compare_and_set(tiers, coverage, set_fields=pausing)
        await feeder.reaches(NS, State.ACTIVE)

        token = uuid.uuid4()
        await schema_requests.ask(tiers, [NS], token, "drop")
        await feeder.reaches(NS, State.PASSTHROUGH)

        async def granted() -> bool:
            found = await read_one(tiers, NS)
            return found is not None and [r.granted for r in found.requests] == [True]

        await feeder.until(granted)
        await schema_requests.take_back(tiers, [NS], token)
        await feeder.until(lambda: f"state {NS}" in feeder.context.problems.current)
        manifest.change(paused=False)
        await feeder.reaches(NS, State.ACTIVE)


async def test_with_the_feeder_paused_nothing_is_replayed_and_no_switch_begins(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        manifest.change(feeder={"mode": "Paused"}, mode="Passthrough")
        await feeder.until(lambda: "paused" in feeder.context.problems.current)
        await feeder.until(lambda: f"state {NS}" in feeder.context.problems.current)
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
        await asyncio.sleep(1.0)
        assert await tiers.archive["shop"]["orders"].find_one({"_id": "new"}) is None
        found = await read_one(tiers, NS)
        assert found is not None
        assert found.state is State.ACTIVE
        manifest.change(feeder={"mode": "Running"})
        await feeder.until(lambda: gone(tiers))
        assert await tiers.archive["shop"]["orders"].find_one({"_id": "new"}) is not None


async def test_the_order_to_drain_comes_before_a_pause(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
    manifest.change(paused=True, feeder={"mode": "Paused"})
    await asyncio.sleep(0.2)
    async with Feeder(tiers, follower, drain=True) as feeder, asyncio.timeout(20):
        assert feeder.task is not None
        await feeder.task
    assert feeder.context.exit_code == 0
    assert "orders" not in await tiers.fast["shop"].list_collection_names()
    assert await tiers.archive["shop"]["orders"].find_one({"_id": "new"}) is not None


async def test_a_problem_of_a_namespace_ends_when_nobody_names_it_any_more(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    late = {"namespace": "shop.late", "keep": "All"}
    manifest.change(paused=True, collections=[late])
    async with Feeder(tiers, follower) as feeder:
        await feeder.until(lambda: "state shop.late" in feeder.context.problems.current)
        manifest.change(collections=[])
        await feeder.until(lambda: not feeder.context.problems.current)


async def test_a_namespace_without_a_collection(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    manifest.change(collections=[{"namespace": "shop.none", "keep": "All"}])
    async with Feeder(tiers, follower) as feeder:
        coverage = await feeder.reaches("shop.none", State.ACTIVE)
        assert coverage.keep_all
        assert coverage.fast_uuid is None


async def test_f_is_never_emptied_of_what_isnt_ours(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    await tiers.fast["shop"]["orders"].insert_many([{"_id": i, "foreign": True} for i in range(10)])
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        aside = [n for n in await tiers.fast["shop"].list_collection_names() if "aside" in n]
        assert len(aside) == 1
        assert await tiers.fast["shop"][aside[0]].count_documents({"foreign": True}) == 10
        assert await tiers.fast["shop"]["orders"].count_documents({}) == 0
        assert feeder.service.status()["setAside"] == [f"shop.{aside[0]}"]
        assert any(aside[0] in text for text in feeder.context.problems.current.values())


async def test_an_old_transaction_holds_a_switch_up_and_is_waited_for(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    async with tiers.archive.start_session() as session:
        await session.start_transaction()
        await tiers.archive["shop"]["orders"].update_one(
            {"_id": 1}, {"$set": {"x": 1}}, session=session
        )
        async with Feeder(tiers, follower) as feeder:
            await feeder.reaches(NS, State.PAUSING)
            await asyncio.sleep(1.5)
            paused = await read_one(tiers, NS)
            assert paused is not None
            assert paused.state is State.PAUSING
            await session.commit_transaction()
            await feeder.reaches(NS, State.ACTIVE)


async def test_what_lasts_too_long_goes_back_and_is_reported(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    settings = replace(QUICK, pause_limit=1.5, move_retry=0.2)
    async with tiers.archive.start_session() as session:
        await session.start_transaction()
        await tiers.archive["shop"]["orders"].update_one(
            {"_id": 1}, {"$set": {"x": 1}}, session=session
        )
        async with Feeder(tiers, follower, settings=settings) as feeder:
            await feeder.reaches(NS, State.PAUSING)
            await feeder.reaches(NS, State.PASSTHROUGH)
            await feeder.until(lambda: f"state {NS}" in feeder.context.problems.current)
            assert feeder.service.status()["namespaces"][NS]["blockedOn"]
            await session.abort_transaction()
            await feeder.reaches(NS, State.ACTIVE)
            await feeder.until(lambda: f"state {NS}" not in feeder.context.problems.current)


async def test_foreign_writers_keep_a_namespace_from_being_active(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    began, stop = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            await tiers.archive["shop"]["orders"].update_one({"_id": 1}, {"$set": {"n": n}})
            began.set()
            await asyncio.sleep(0.02)

    writer = asyncio.create_task(write())
    await began.wait()
    async with Feeder(tiers, follower) as feeder:

        def refused() -> bool:
            return "without the proxy" in str(feeder.context.problems.current)

        await feeder.until(refused)
        coverage = await read_one(tiers, NS)
        assert coverage is not None
        assert coverage.state is not State.ACTIVE
        stop.set()
        await writer
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.archive["shop"]["orders"].update_one({"_id": 1}, {"$set": {"n": -1}})
        await feeder.until(lambda: feeder.service.status()["foreignWrites"] == {NS: 1})


@pytest.mark.parametrize("step", ["drop", "create", "publish"])
async def test_a_feeder_that_dies_while_it_activates(
    tiers: Tiers, follower: ManifestFollower, step: str
) -> None:
    reached, hold = asyncio.Event(), asyncio.Event()

    async def pause(here: str) -> None:
        if here == step:
            reached.set()
            await hold.wait()

    first = Feeder(tiers, follower, pause=pause)
    first.start()
    await asyncio.wait_for(reached.wait(), 15)
    await first.crash()
    async with Feeder(tiers, follower) as second:
        coverage = await second.reaches(NS, State.ACTIVE)
        found = await find_collection(tiers.fast, NS)
        assert found is not None
        assert found.uuid == coverage.fast_uuid
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
        await second.replayed()
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 101


@pytest.mark.parametrize("step", ["replay", "publish", "drop"])
async def test_a_feeder_that_dies_while_it_withdraws(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest, step: str
) -> None:
    reached, hold = asyncio.Event(), asyncio.Event()
    armed = False

    async def pause(here: str) -> None:
        if armed and here == step:
            reached.set()
            await hold.wait()

    first = Feeder(tiers, follower, pause=pause)
    first.start()
    await first.reaches(NS, State.ACTIVE)
    await tiers.fast["shop"]["orders"].insert_many([{"_id": i, "u": i} for i in range(1000, 1100)])
    armed = True
    manifest.change(mode="Passthrough")
    await asyncio.wait_for(reached.wait(), 15)
    await first.crash()
    async with Feeder(tiers, follower) as second:
        await second.until(lambda: gone(tiers))
        assert await tiers.archive["shop"]["orders"].count_documents({}) == 200


async def test_a_frozen_feeders_late_steps_change_nothing(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    """It wakes up in the middle of an activation that its successor has made already."""
    reached, hold = asyncio.Event(), asyncio.Event()

    async def pause(here: str) -> None:
        if here == "drop":
            reached.set()
            await hold.wait()

    settings = replace(QUICK, heartbeat_interval=1000.0, marker_interval=1000.0, pause_limit=60.0)
    first = Feeder(tiers, follower, settings=settings, pause=pause)
    first.start()
    await asyncio.wait_for(reached.wait(), 15)
    async with Feeder(tiers, follower) as second:
        coverage = await second.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
        hold.set()
        await asyncio.sleep(1.5)
        assert await tiers.fast["shop"]["orders"].count_documents({}) == 1
        after = await read_one(tiers, NS)
        assert after is not None
        assert (after.fast_uuid, after.state) == (coverage.fast_uuid, State.ACTIVE)
        await second.replayed()
        await first.crash()


async def test_another_age_field(
    tiers: Tiers, follower: ManifestFollower, manifest: Manifest
) -> None:
    import datetime as dt

    async with Feeder(tiers, follower) as feeder:
        before = await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast[names.DATABASE][names.COVERAGE].update_one(
            {"_id": NS}, {"$set": {"floor": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}}
        )
        manifest.change(collections=[{**POLICY, "ageField": "other"}])

        async def renamed() -> bool:
            found = await read_one(tiers, NS)
            assert found is not None
            # A floor never stands beside the new field, nor the new field beside an old floor.
            assert found.age_field == "t" or found.floor is None
            return found.age_field == "other"

        await feeder.until(renamed)
        after = await read_one(tiers, NS)
        assert after is not None
        assert after.raised >= before.raised + 2
        assert after.state is State.ACTIVE
        manifest.change(collections=[{"namespace": NS, "keep": "All"}])

        async def kept() -> bool:
            found = await read_one(tiers, NS)
            return found is not None and found.keep_all and found.age_field is None

        await feeder.until(kept)


async def test_another_resources_data_is_refused(
    tiers: Tiers, follower: ManifestFollower, tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
    other = Manifest(tmp_path / "other.yaml", {**write_manifest(tmp_path, fast, archive).spec}, "x")
    async with following(other) as follower_of_other:
        intruder = Feeder(tiers, follower_of_other)
        intruder.start()
        assert intruder.task is not None
        with pytest.raises(Exception, match="belongs to the TieredReplicaSet tests/shop"):
            await asyncio.wait_for(intruder.task, 10)


async def test_a_resource_made_anew_takes_over_what_nothing_is_tiered_of(
    tiers: Tiers, manifest: Manifest, follower: ManifestFollower, tmp_path: Path
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
    anew = Manifest(tmp_path / "anew.yaml", manifest.spec, number=2)
    async with following(anew) as follower_of_anew:
        early = Feeder(tiers, follower_of_anew)
        early.start()
        assert early.task is not None
        with pytest.raises(Exception, match="belongs to the TieredReplicaSet tests/shop"):
            await asyncio.wait_for(early.task, 10)
        manifest.change(mode="Passthrough")
        async with Feeder(tiers, follower) as feeder:
            await feeder.until(partial(_emptied, feeder))
        async with Feeder(tiers, follower_of_anew) as successor:
            await successor.reaches(NS, State.ACTIVE)
        # The earlier one, should it come back, is refused.
        late = Feeder(tiers, follower)
        late.start()
        assert late.task is not None
        with pytest.raises(Exception, match="belongs to the TieredReplicaSet tests/shop"):
            await asyncio.wait_for(late.task, 10)


async def _emptied(feeder: Feeder) -> bool:
    return bool(feeder.service.status().get("drained"))


async def test_the_fast_tiers_documents_stay_where_deletion_retains_them(
    tiers: Tiers, manifest: Manifest, follower: ManifestFollower
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
        manifest.retain = True
        manifest.change(mode="Passthrough")
        await feeder.until(partial(_emptied, feeder))
        assert await tiers.archive["shop"]["orders"].count_documents({"_id": "new"}) == 1
        assert await tiers.fast["shop"]["orders"].count_documents({"_id": "new"}) == 1
        # Whoever tiers it again begins with the archive.
        await tiers.archive["shop"]["orders"].delete_one({"_id": "new"})
        manifest.retain = False
        manifest.change(mode="Active")
        await feeder.reaches(NS, State.ACTIVE)
        assert await tiers.fast["shop"]["orders"].count_documents({"_id": "new"}) == 0


async def test_drain_and_exit(tiers: Tiers, follower: ManifestFollower) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
    drain = Feeder(tiers, follower, drain=True)
    drain.start()
    assert drain.task is not None
    await asyncio.wait_for(drain.task, 20)
    assert drain.context.exit_code == 0
    assert await tiers.archive["shop"]["orders"].count_documents({}) == 101
    assert "orders" not in await tiers.fast["shop"].list_collection_names()


async def test_says_by_which_manifest_nothing_is_tiered(
    tiers: Tiers, manifest: Manifest, follower: ManifestFollower
) -> None:
    """The operator lets a resource go on this word alone."""
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        assert feeder.service.status()["drained"] is False
        before = follower.applied_generation
        manifest.change(mode="Passthrough")

        async def drained() -> bool:
            status = feeder.service.status()
            return bool(status["drained"]) and status["settledGeneration"] > before

        await feeder.until(drained)
        coverage = await read_one(tiers, NS)
        assert coverage is None or coverage.state is State.PASSTHROUGH
        assert "orders" not in await tiers.fast["shop"].list_collection_names()
        manifest.change(mode="Active")
        await feeder.reaches(NS, State.ACTIVE)
        assert feeder.service.status()["drained"] is False


async def test_drain_says_when_something_is_refused(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.archive["shop"]["orders"].create_index([("place", "2dsphere")])
        bad: list[dict[str, Any]] = [{"_id": "bad", "u": -1, "place": "nowhere"}]
        await tiers.fast["shop"]["orders"].insert_many(bad)
        await feeder.replayed()
    drain = Feeder(tiers, follower, drain=True)
    drain.start()
    assert drain.task is not None
    await asyncio.wait_for(drain.task, 20)
    assert drain.context.exit_code == 3
    assert len(await raw_documents(tiers.fast, NS)) == 1


async def test_a_clean_end_in_the_middle_of_a_switch_ends_the_pause(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    reached, hold = asyncio.Event(), asyncio.Event()

    async def pause(here: str) -> None:
        if here == "create":
            reached.set()
            await hold.wait()

    async with Feeder(tiers, follower, pause=pause):
        await asyncio.wait_for(reached.wait(), 15)
    coverage = await read_one(tiers, NS)
    assert coverage is not None
    assert coverage.state is State.PASSTHROUGH


async def test_swapped_tiers_are_refused(
    tiers: Tiers, follower: ManifestFollower, tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
    async with following(write_manifest(tmp_path, archive, fast, [POLICY])) as swapped:
        intruder = Feeder(Tiers(tiers.archive, tiers.fast), swapped)
        intruder.start()
        assert intruder.task is not None
        with pytest.raises(Exception, match="swapped"):
            await asyncio.wait_for(intruder.task, 10)
    assert await tiers.archive["shop"]["orders"].count_documents({}) == 100
    # Nothing was left behind that would make the right way round look wrong.
    async with Feeder(tiers, follower) as feeder:
        await tiers.fast["shop"]["orders"].insert_one({"_id": "new", "u": -1})
        await feeder.replayed()
    assert await tiers.archive["shop"]["orders"].count_documents({}) == 101


async def test_it_can_be_stopped_at_any_moment(tiers: Tiers, follower: ManifestFollower) -> None:
    for turn in range(12):
        feeder = Feeder(tiers, follower)
        feeder.start()
        await asyncio.sleep(0.13 * turn)
        async with asyncio.timeout(8):
            await feeder.stop()

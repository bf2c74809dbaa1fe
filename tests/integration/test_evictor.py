"""Eviction on real mongods: nothing unconfirmed leaves, whatever happens in between."""

import asyncio
import dataclasses
import datetime as dt
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from support.evictions import (
    NOW,
    NS,
    QUICK,
    SLOW,
    World,
    an_id,
    announced,
    days_ago,
    is_empty,
    prepare,
)
from support.hand_feeder import activate, coverage, documents, records
from support.mongod import ReplicaSet
from thermocline_common import coverage_store, names
from thermocline_common.ages import scalar_date, to_milliseconds
from thermocline_common.copy_in import keep
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_by_ids, find_raw, read_records
from thermocline_common.spec.models import EvictorMode
from thermocline_common.tiers import Tiers
from thermocline_evictor.candidates import Walk
from thermocline_evictor.plan.cutoff import Policy
from thermocline_evictor.plan.verdicts import Verdict
from thermocline_evictor.records import announce, withdraw
from thermocline_evictor.service import mismatch_text
from thermocline_warmer.plan.windows import Policy as WarmerPolicy
from thermocline_warmer.settings import Settings as WarmerSettings
from thermocline_warmer.warming import Tools as WarmerTools, Warming

pytestmark = pytest.mark.integration


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[World]:
    fast_client: AsyncMongoClient[dict[str, Any]] = fast.async_client()
    archive_client: AsyncMongoClient[dict[str, Any]] = archive.async_client()
    yield World(Tiers(fast_client, archive_client))
    await fast_client.close()
    await archive_client.close()


async def test_what_is_below_the_horizon_leaves_and_nothing_else(world: World) -> None:
    odd: list[Any] = [None, "x", 5, Int64(1), [], [days_ago(300)], [days_ago(300), days_ago(1)], {"a": 1}]  # fmt: skip
    await activate(world.tiers, NS)
    await world.fast.insert_many(
        [{"_id": i, "t": days_ago(i), "pad": "x" * 500} for i in range(300)]
        + [{"_id": f"odd{i}", "t": value} for i, value in enumerate(odd)]
        + [{"_id": "missing"}]
    )
    before = await documents(world.tiers.fast, NS)
    eviction = world.eviction()
    async with world.feeder:
        await world.run(eviction)
    expected = set(range(31)) | {f"odd{i}" for i in range(len(odd))} | {"missing"}
    assert await world.in_fast() == expected
    assert await documents(world.tiers.archive, NS) == before
    ledger = eviction.report.ledger
    assert ledger.announced == ledger.confirmed == ledger.deleted == 269
    assert set((await world.kinds()).values()) == {"evicted"}
    assert eviction.report.mismatches == []
    now = await coverage(world.tiers, NS)
    assert now.floor is None
    assert now.archive_time is not None


@pytest.mark.parametrize("step", ["confirmed", "delete"])
async def test_changed_and_changed_back_while_the_feeder_is_behind(world: World, step: str) -> None:
    """The bytes are equal again, but the feeder hasn't passed the changes."""
    await prepare(world)

    async def there_and_back() -> None:
        world.feeder.held.set()
        await asyncio.sleep(0.1)
        await world.fast.update_one({"_id": 1}, {"$set": {"v": 1}})
        await world.fast.update_one({"_id": 1}, {"$set": {"v": 0}})

    eviction = world.eviction()
    async with world.feeder:
        world.steps[step] = there_and_back
        await world.stall(eviction)
        assert eviction.report.ledger.skipped["written meanwhile"] == 1
        assert await world.in_fast() == {0, 1, 2}
        world.feeder.held.clear()
        await world.run(eviction)  # the feeder is past them now
    assert await world.in_fast() == set()


@pytest.mark.parametrize("step", ["confirmed", "delete"])
async def test_a_write_after_the_checkpoint_stops_the_eviction(world: World, step: str) -> None:
    await prepare(world)

    async def write() -> None:
        world.feeder.held.set()
        await asyncio.sleep(0.1)
        await world.fast.update_one({"_id": 1}, {"$set": {"v": 1}})

    eviction = world.eviction()
    async with world.feeder:
        world.steps[step] = write
        await world.stall(eviction)
        assert await world.fast.find_one({"_id": 1}, {"v": 1}) == {"_id": 1, "v": 1}
        world.feeder.held.clear()
        await world.run(eviction)
    assert await world.archive.find_one({"_id": 1}, {"v": 1}) == {"_id": 1, "v": 1}
    assert await world.in_fast() == set()


async def test_changed_after_its_announcement_it_is_announced_anew(world: World) -> None:
    """Readers of the archive are bound to a time at which it held what was announced."""
    await prepare(world)
    eviction = world.eviction(SLOW)
    async with world.feeder:
        await announced(world, eviction, 3)
        first = eviction._pending[an_id(1)].token
        await world.fast.update_one({"_id": 1}, {"$set": {"v": 1}})
        await world.run(eviction, lambda: eviction.report.ledger.deleted == 2)
        assert await world.in_fast() == {1}
        assert eviction.report.ledger.skipped["changed since it was announced"] == 1
        await world.run(eviction)
    assert await world.in_fast() == set()
    assert eviction.report.ledger.announced == 4
    last = await records(world.tiers, NS)
    assert last[an_id(1)].token != first


@pytest.mark.parametrize("age", [0.5, None, "array"])
async def test_no_longer_old_when_it_is_due(world: World, age: Any) -> None:
    await prepare(world)
    value = [days_ago(60)] if age == "array" else days_ago(age) if age else None
    eviction = world.eviction(SLOW)
    async with world.feeder:
        await announced(world, eviction, 3)
        await world.fast.update_one({"_id": 1}, {"$set": {"t": value}})
        await world.run(eviction)
    assert await world.in_fast() == {1}
    assert an_id(1) not in await world.kinds()


async def test_kept_after_its_announcement_it_stays(world: World) -> None:
    await prepare(world)
    eviction = world.eviction(SLOW)
    async with world.feeder:
        await announced(world, eviction, 3)
        await keep(world.tiers, await coverage(world.tiers, NS), [an_id(1)])
        await world.run(eviction, lambda: eviction.report.ledger.deleted == 2)
        assert 1 in await world.in_fast()


async def test_kept_while_the_transaction_runs(world: World) -> None:
    await prepare(world)

    async def keep_it() -> None:
        await keep(world.tiers, await coverage(world.tiers, NS), [an_id(1)])

    eviction = world.eviction()
    async with world.feeder:
        world.steps["delete"] = keep_it
        await world.run(eviction, lambda: eviction.report.ledger.skipped["written meanwhile"])
        assert 1 in await world.in_fast()


async def test_kept_when_the_transaction_has_deleted_it_already(world: World) -> None:
    """The copy waits for the eviction's outcome, then brings the document back."""
    await prepare(world)
    tasks: list[asyncio.Task[Any]] = []

    async def keep_it() -> None:
        now = await coverage(world.tiers, NS)
        tasks.append(asyncio.create_task(keep(world.tiers, now, [an_id(1)])))
        await asyncio.sleep(0.2)

    eviction = world.eviction()
    before = await documents(world.tiers.fast, NS)
    async with world.feeder:
        world.steps["commit"] = keep_it
        await world.run(eviction, lambda: bool(eviction.report.ledger.deleted))
        kept = await tasks[0]
    assert kept.copied == {an_id(1)}
    assert (await documents(world.tiers.fast, NS))[an_id(1)] == before[an_id(1)]


async def test_a_delete_that_was_announced_goes_first(world: World) -> None:
    await prepare(world)
    eviction = world.eviction(SLOW)
    async with world.feeder:
        await announced(world, eviction, 3)
        await world.record(1, "deleted")
        await world.run(eviction, lambda: eviction.report.ledger.deleted == 2)
        assert await world.in_fast() == {1}
        await world.fast.delete_one({"_id": 1})
        await world.feeder.replay()
        assert await world.archive.count_documents({}) == 2
        assert (await world.kinds())[an_id(1)] == "deleted"


async def test_a_void_record_is_left_alone(world: World) -> None:
    await prepare(world)
    await world.record(1, "deleted")
    async with world.feeder:
        await world.run(world.eviction())
    assert await world.in_fast() == {1}
    assert (await world.kinds())[an_id(1)] == "deleted"


async def test_a_claim_during_the_transaction_stops_it(world: World) -> None:
    await prepare(world)

    async def claim() -> None:
        assert await coverage_store.claim(
            world.tiers, await coverage(world.tiers, NS), days_ago(100)
        )

    # Old claims are voided; here the evictor's horizon is older than the claim.
    policy = Policy(NS, "t", dt.timedelta(days=50))
    eviction = world.eviction()
    async with world.feeder:
        world.steps["delete"] = claim
        await world.run(
            eviction, lambda: eviction.report.ledger.skipped["written meanwhile"], policy=policy
        )
        assert await world.in_fast() == {0, 1, 2}
        await world.run(eviction, policy=policy)  # voids the claim, which is far too low
    assert (await coverage(world.tiers, NS)).claim is None
    assert await world.in_fast() == set()


async def test_a_claim_within_a_twentieth_is_respected(world: World) -> None:
    await activate(world.tiers, NS, claim=days_ago(31))
    await world.fast.insert_many([{"_id": i, "t": days_ago(i / 10)} for i in range(290, 330)])
    async with world.feeder:
        await world.run(world.eviction())
    assert await world.in_fast() == set(range(290, 311))


async def test_another_raise_during_the_transaction_is_waited_for(world: World) -> None:
    await prepare(world)

    async def another() -> None:
        now = await coverage(world.tiers, NS)
        assert await coverage_store.raise_floor(world.tiers, now, None)

    eviction = world.eviction()
    async with world.feeder:
        world.steps["confirmed"] = another
        await world.run(eviction, lambda: eviction.report.ledger.skipped["floor raised meanwhile"] or eviction.report.ledger.skipped["written meanwhile"])  # fmt: skip
        assert await world.in_fast() == {0, 1, 2}
        await world.run(eviction)
    assert await world.in_fast() == set()


async def test_the_floor_is_raised_before_anything_below_it_leaves(world: World) -> None:
    await activate(world.tiers, NS, floor=days_ago(60))
    await world.fast.insert_many([{"_id": i, "t": days_ago(i)} for i in range(80)])
    eviction = world.eviction()
    async with world.feeder:
        await world.run(eviction)
    now = await coverage(world.tiers, NS)
    assert now.floor == days_ago(30)
    assert now.raised == 2
    assert await world.in_fast() == set(range(31))
    assert eviction.report.ledger.raised == 1


async def test_within_a_twentieth_the_floor_stays_and_bounds(world: World) -> None:
    await activate(world.tiers, NS, floor=days_ago(31))
    await world.fast.insert_many([{"_id": i, "t": days_ago(i)} for i in range(40)])
    eviction = world.eviction()
    async with world.feeder:
        await world.run(eviction)
    assert (await coverage(world.tiers, NS)).floor == days_ago(31)
    assert await world.in_fast() == set(range(32))
    assert eviction.report.ledger.raised == 0


async def test_the_lease_is_waited_out_also_for_another_evictors_raise(world: World) -> None:
    await prepare(world, floor=days_ago(30))
    loop = asyncio.get_running_loop()
    eviction = world.eviction(dataclasses.replace(QUICK, cursor_span=1.0))
    async with world.feeder:
        started = loop.time()
        await world.run(eviction, lambda: bool(eviction.report.ledger.announced), lease=1.0)
    assert loop.time() - started > 1.0 + 1.0  # the lease, then looks over a second


async def test_without_the_feeder_nothing_leaves(world: World) -> None:
    await prepare(world)
    await world.feeder.replay()
    eviction = world.eviction()
    await world.stall(eviction)
    assert await world.in_fast() == {0, 1, 2}


async def test_what_the_archive_lacks_is_not_announced(world: World) -> None:
    await activate(world.tiers, NS)
    await world.feeder.replay()
    await world.fast.insert_one({"_id": 1, "t": days_ago(60)})
    eviction = world.eviction()
    with pytest.raises(TimeoutError):
        await world.run(eviction, lambda: False, seconds=2)
    assert eviction.report.state == "evicting"
    assert eviction.report.ledger.announced == 0
    assert await world.kinds() == {}


@pytest.mark.parametrize("missing", [False, True], ids=["differs", "missing"])
async def test_a_mismatch_stops_the_namespace_and_names_the_id(world: World, missing: bool) -> None:
    await prepare(world, 200)
    await world.feeder.replay()
    world.feeder.ignored.add(an_id(7))
    if missing:
        await world.archive.delete_one({"_id": 7})
    else:
        await world.archive.update_one({"_id": 7}, {"$set": {"v": "foreign"}})
    eviction = world.eviction(dataclasses.replace(QUICK, announce_seconds=2.0))
    async with world.feeder:
        await world.run(eviction, lambda: bool(eviction.report.mismatches))
        assert eviction.report.mismatches == [an_id(7)]
        assert "7" in (mismatch_text(NS, eviction.report) or "")
        for _ in range(20):
            await world.turn(eviction)
        assert eviction.report.ledger.deleted == 0
        assert await world.kinds() == {}  # announcements are withdrawn
        world.feeder.ignored.clear()
        await world.run(eviction)
    assert eviction.report.mismatches == []
    assert await world.in_fast() == set()


async def test_what_a_new_ttl_rule_has_expired_is_no_mismatch(world: World) -> None:
    """The archive follows a rule as soon as there is one; the evictor's own pass comes within a minute."""
    await prepare(world, 5)
    await world.fast.update_one({"_id": 1}, {"$set": {"e": days_ago(90)}})
    await world.feeder.replay()
    world.feeder.ignored.add(an_id(1))
    await world.archive.create_index("e", expireAfterSeconds=3_600)
    await world.archive.delete_one({"_id": 1})  # unless its TTL monitor was faster
    eviction = world.eviction()

    async def others_left() -> bool:
        return await world.in_fast() == {1}

    async with world.feeder:
        await world.run(eviction, others_left)
        for _ in range(20):
            await world.turn(eviction)
            await asyncio.sleep(QUICK.mismatch_pause)
    assert eviction.report.mismatches == []
    assert eviction.report.ledger.skipped[Verdict.EXPIRING.value] > 0
    assert await world.in_fast() == {1}


async def test_quarantined_ids_never_leave(world: World) -> None:
    await prepare(world)
    await world.feeder.replay()
    world.feeder.ignored.add(an_id(1))
    world.feeder.quarantine = [{"ns": NS, "id": 1, "code": 121, "reason": "refused"}]
    await world.archive.delete_one({"_id": 1})
    eviction = world.eviction()
    async with world.feeder:
        await world.run(eviction)
    assert await world.in_fast() == {1}
    assert eviction.report.mismatches == []
    assert eviction.report.ledger.skipped["quarantined"] > 0


async def test_two_evictors_at_once(world: World) -> None:
    await prepare(world, 200, floor=days_ago(900))
    before = await documents(world.tiers.fast, NS)
    one, two = world.eviction(), world.eviction()
    async with world.feeder:
        done = lambda: is_empty(world)  # noqa: E731
        await asyncio.gather(world.run(one, done, 90), world.run(two, done, 90))
    assert await documents(world.tiers.archive, NS) == before
    total = one.report.ledger.deleted + two.report.ledger.deleted
    assert total == one.report.ledger.confirmed + two.report.ledger.confirmed == 200
    assert not one.report.mismatches
    assert not two.report.mismatches


async def test_an_open_cursor_holds_eviction_up_until_it_ends(world: World) -> None:
    await prepare(world, 20, floor=days_ago(900))
    eviction = world.eviction()
    async with world.feeder:
        reader = world.fast.find({}, batch_size=5)
        stream = await world.fast.watch()
        await reader.next()
        with pytest.raises(TimeoutError):
            await world.run(eviction, lambda: False, seconds=4)
        assert eviction.report.state == "waiting for open cursors to end"
        assert len([d async for d in reader]) == 19
        await world.run(eviction)  # the change stream is no reason to wait
        await stream.close()
    assert await world.in_fast() == set()


async def test_a_cursor_over_the_limit_is_killed_and_counted(world: World) -> None:
    await prepare(world, 20, floor=days_ago(900))
    eviction = world.eviction(dataclasses.replace(QUICK, cursor_limit=1.5))
    async with world.feeder:
        reader = world.fast.find({}, batch_size=5)
        await reader.next()
        await world.run(eviction)
        assert eviction.report.ledger.killed_cursors >= 1
        with pytest.raises(OperationFailure, match="not found"):
            [d async for d in reader]
    assert await world.in_fast() == set()


async def test_a_write_that_runs_since_before_the_announcement_is_waited_for(world: World) -> None:
    """An updateMany that chose its documents early must not miss one that leaves ahead of it."""
    await prepare(world)
    eviction = world.eviction()
    slow = {"$where": "sleep(500) || true"}
    async with world.feeder:
        write = asyncio.create_task(world.fast.update_many(slow, {"$inc": {"v": 1}}))
        await asyncio.sleep(0.1)
        await world.run(eviction, lambda: is_empty(world))
        assert (await write).matched_count == 3
    assert {d["v"] async for d in world.archive.find()} == {1}


async def test_dry_run_counts_and_writes_nothing(world: World) -> None:
    await prepare(world, 250, floor=days_ago(900))
    await world.fast.insert_many([{"_id": f"y{i}", "t": days_ago(i)} for i in range(10)])
    eviction = world.eviction()
    before = await coverage(world.tiers, NS)
    async with world.feeder:
        for _ in range(5):
            await world.turn(eviction, mode=EvictorMode.DRY_RUN)
    await eviction.tools.members.close()
    assert eviction.report.would_evict == 250
    assert eviction.report.oldest_resident == to_milliseconds(days_ago(60 + 249))
    assert await coverage(world.tiers, NS) == before
    assert await world.kinds() == {}
    assert len(await world.in_fast()) == 260


async def test_from_dry_run_to_running_there_is_no_pause(world: World) -> None:
    await prepare(world)
    eviction = world.eviction(dataclasses.replace(QUICK, dry_run_pause=600.0))
    async with world.feeder:
        for _ in range(3):
            await world.turn(eviction, mode=EvictorMode.DRY_RUN)
        assert eviction.report.would_evict == 3
        await world.run(eviction)
    assert await world.in_fast() == set()


async def test_paused_it_withdraws_what_it_announced(world: World) -> None:
    await prepare(world)
    eviction = world.eviction(dataclasses.replace(QUICK, announce_seconds=30.0))
    async with world.feeder:
        await announced(world, eviction, 3)
        assert set((await world.kinds()).values()) == {"leaving"}
        await world.turn(eviction, mode=EvictorMode.PAUSED)
    await eviction.tools.members.close()
    assert await world.kinds() == {}
    assert await world.in_fast() == {0, 1, 2}


async def test_readers_of_the_archive_are_bound_to_what_left(world: World) -> None:
    """Before anything leaves, the coverage names a time at which the archive held it."""
    await prepare(world)
    eviction = world.eviction(SLOW)
    async with world.feeder:
        await announced(world, eviction, 3)
        time = (await coverage(world.tiers, NS)).archive_time
        assert time is not None
        at = {"readConcern": {"level": "snapshot", "atClusterTime": time}}
        assert await documents(world.tiers.archive, NS, **at) == await documents(
            world.tiers.fast, NS
        )
        await world.run(eviction)
        after = (await coverage(world.tiers, NS)).archive_time
        assert after is not None
        assert after > time


async def test_many_documents_of_one_age_and_many_arrays(world: World) -> None:
    await activate(world.tiers, NS)
    same = days_ago(50)
    await world.fast.insert_many(
        [{"_id": f"a{i}", "t": [days_ago(99), days_ago(1)]} for i in range(300)]
        + [{"_id": i, "t": same} for i in range(350)]
        + [{"_id": -i, "t": days_ago(40)} for i in range(1, 50)]
    )
    async with world.feeder:
        await world.run(world.eviction())
    assert await world.in_fast() == {f"a{i}" for i in range(300)}


async def test_long_ids_of_one_age(world: World) -> None:
    """Together more than a reply of 16 MB: no page gets past them, and no command holds them all."""
    await activate(world.tiers, NS)
    await world.fast.create_index("t")
    for n in range(5):
        await world.fast.insert_many(
            [{"_id": f"{n}/{i}" + "i" * 40_000, "t": days_ago(300)} for i in range(90)]
        )
    now = await coverage(world.tiers, NS)
    walk = Walk(world.tiers, now, "t_1")
    found: list[DocId] = []
    while page := await walk.page(to_milliseconds(NOW), 100):
        found += page
    assert 300 < len(found) == len(set(found))
    wanted = list(await documents(world.tiers.fast, NS))
    assert len(wanted) == 450
    tokens = await announce(world.tiers, NS, wanted)
    assert tokens.keys() == set(wanted)
    assert set((await read_records(world.tiers.fast, NS, wanted)).keys()) == set(wanted)
    assert len(await find_by_ids(world.tiers.fast, NS, wanted)) == 450
    assert await announce(world.tiers, NS, wanted) == {}, "they are announced"
    await withdraw(world.tiers, NS, tokens)
    assert await world.removed.find_one() is None


async def test_an_unknown_outcome_is_learned_from_the_records(
    make_replica_set: Callable[..., ReplicaSet], archive: ReplicaSet
) -> None:
    fast = make_replica_set("fast", test_commands=True)
    async with fast.async_client() as here, archive.async_client() as there:
        world = World(Tiers(here, there))
        await prepare(world)
        eviction = world.eviction()
        async with world.feeder:
            await announced(world, eviction, 3)
            error = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "on purpose"}
            await here.admin.command(
                {
                    "configureFailPoint": "failCommand",
                    "mode": {"times": 2},
                    "data": {"failCommands": ["commitTransaction"], "writeConcernError": error},
                }
            )
            ledger = eviction.report.ledger
            await world.run(eviction, lambda: ledger.deleted == 3)
        assert await world.in_fast() == set()
        assert (ledger.deleted, ledger.confirmed) == (3, 3)


async def test_the_floor_never_lies_while_warmer_and_evictor_work_against_each_other(
    world: World,
) -> None:
    """At every time of F, what the coverage document of that time promises is in F."""
    await activate(world.tiers, NS)
    docs = [{"_id": i, "t": days_ago(i / 4), "v": 0} for i in range(400)]
    await world.archive.insert_many(docs)
    looks = checks = 0

    def now() -> dt.datetime:
        # A day passes in ten looks; so the horizon moves through the documents, and no faster than
        # this machine works.
        return NOW + dt.timedelta(days=looks / 10)

    eviction = world.eviction(now=now)
    tools = WarmerTools(world.tiers, WarmerSettings(batch=20), now=now)
    warming = Warming(tools)
    warming._size = 20
    policy = WarmerPolicy(NS, "t", dt.timedelta(days=30))

    async def warm() -> None:
        while True:
            if not await warming.step(
                await coverage_store.read_one(world.tiers, NS), policy, "Auto"
            ):
                await asyncio.sleep(0.05)

    async def write() -> None:
        numbers = random.Random(1)
        while True:
            number = numbers.randrange(400)
            await keep(world.tiers, await coverage(world.tiers, NS), [an_id(number)])
            age = days_ago(numbers.uniform(-5, 99))
            await world.fast.update_one({"_id": number}, {"$set": {"t": age}, "$inc": {"v": 1}})
            await asyncio.sleep(0.01)

    async def check() -> None:
        nonlocal looks, checks
        while True:
            before = await documents(world.tiers.archive, NS)
            time = (await world.tiers.fast.admin.command("ping"))["operationTime"]
            at = {"readConcern": {"level": "snapshot", "atClusterTime": time}}
            command = {"find": names.COVERAGE, "filter": {"_id": NS}, **at}
            found = [d async for d in find_raw(world.tiers.fast, names.DATABASE, command)]
            floor = found[0].get("floor")
            here = await documents(world.tiers.fast, NS, **at)
            after = await documents(world.tiers.archive, NS)
            assert len(here.keys() | before.keys()) == 400
            for doc_id in before.keys() - here.keys():
                # The same before and after (each write counts ``v`` up), and so at that time too.
                if before[doc_id] == after[doc_id]:
                    age = scalar_date(before[doc_id], "t")
                    assert age is not None
                    assert floor is None or age < int(floor)
            looks += 1
            checks += floor is not None
            await asyncio.sleep(0.05)

    async with world.feeder:
        tasks = [asyncio.create_task(work()) for work in (warm, write, check)]
        tasks.append(asyncio.create_task(world.run(eviction, lambda: False, seconds=200)))
        running = set(tasks)
        deadline = asyncio.get_running_loop().time() + 180
        while asyncio.get_running_loop().time() < deadline:
            _, running = await asyncio.wait(running, timeout=1, return_when=asyncio.FIRST_EXCEPTION)
            enough = checks > 20 and eviction.report.ledger.deleted and warming.report.copied > 100
            if (looks >= 120 and enough) or len(running) < len(tasks):
                break
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in tasks:
            if task not in running:
                task.result()
    assert checks > 20
    assert eviction.report.ledger.deleted > 0
    assert warming.report.copied > 100


async def test_a_copy_reads_the_archive_as_of_the_last_eviction(world: World) -> None:
    """Also with a coverage document of before: a deposed primary of the archive must not answer."""
    await prepare(world)
    old = await coverage(world.tiers, NS)
    asked: list[Any] = []
    async with world.feeder:
        await world.run(world.eviction())
        time = (await coverage(world.tiers, NS)).archive_time

        async def watched(client: Any, namespace: str, ids: Any, **options: Any) -> Any:
            if client is world.tiers.archive:
                asked.append(options["fields"]["readConcern"]["afterClusterTime"])
            return await find_by_ids(client, namespace, ids, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("thermocline_common.copy_in.find_by_ids", watched)
            await keep(world.tiers, old, [an_id(1)])
    assert old.archive_time is not None
    assert asked == [time]
    assert time is not None
    assert time > old.archive_time

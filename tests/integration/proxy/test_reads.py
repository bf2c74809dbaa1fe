"""Reads by the handler on two real tiers, with evictions, promotions and deletes between its steps."""

import datetime as dt
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from bson.timestamp import Timestamp

from support.mongod import ReplicaSet
from support.read_gateway import ReadBench
from thermocline_common import names
from thermocline_common.coverage import Coverage, State, Tier, UniqueIndex
from thermocline_common.removals import Kind
from thermocline_common.tiers import Tiers
from thermocline_proxy.commands.snapshots import is_whole, marked

pytestmark = pytest.mark.integration

NS = "shop.orders"
FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OLD, NEW = FLOOR - dt.timedelta(days=5), FLOOR + dt.timedelta(days=5)
EMAIL = UniqueIndex("email", ("email",), plain=True)


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as hot, archive.async_client() as cold:
        yield Tiers(hot, cold)


async def make(
    tiers: Tiers, *, quarantined: bool = False, relaxed: bool = False, **fields: Any
) -> ReadBench:
    for client in (tiers.fast, tiers.archive):
        await client.shop.orders.create_index("t")
    fast_time = (await tiers.fast.admin.command("ping"))["operationTime"]
    archive_time = (await tiers.archive.admin.command("ping"))["operationTime"]
    given: dict[str, Any] = {
        "age_field": "t", "floor": FLOOR, "published_at": fast_time, "archive_time": archive_time,
        "unique": (EMAIL,), **fields,
    }  # fmt: skip
    coverage = Coverage(namespace=NS, state=State.ACTIVE, target=State.ACTIVE, **given)
    return ReadBench(tiers, coverage, quarantined=quarantined, relaxed=relaxed)


@pytest.fixture
async def bench(tiers: Tiers) -> ReadBench:
    return await make(tiers)


# --- by _id


async def test_a_hit_in_the_fast_tier_is_the_answer(bench: ReadBench) -> None:
    await bench.put(Tier.FAST, {"_id": 1, "t": OLD, "v": "fast"})
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "v": "stale"})
    reply = await bench.run({"find": "orders", "filter": {"_id": 1}})
    assert reply["cursor"]["firstBatch"][0]["v"] == "fast"
    assert bench.asked() == ["fast"]
    assert bench.reasons == ["point-id"]


@pytest.mark.parametrize(
    "query",
    [{"_id": 1}, {"_id": {"$eq": 1}}, {"$and": [{"_id": 1}, {"v": 1}]}, {"_id": 1.0, "v": 1}],
)
async def test_a_cold_document_is_found_in_the_archive_without_a_barrier(
    bench: ReadBench, query: dict[str, Any]
) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "v": 1})
    await bench.record(1, Kind.EVICTED)
    assert await bench.find(query) == [1]
    assert bench.barrier.passes == 0
    assert bench.asked() == ["fast", "archive"]
    concern = bench.exchange.sent[-1][1]["readConcern"]
    archive_time = bench.leases.snapshot.tierings[NS].coverage.archive_time
    assert concern == {"level": "majority", "afterClusterTime": archive_time}


async def test_the_questions_come_in_the_protocols_order(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "v": 1})
    assert await bench.find({"_id": 1, "v": 1}) == [1]
    assert bench.steps.log == ["fast find", "in_fast", "records", "archive find"]
    bench.steps.log.clear()
    assert await bench.find({"_id": 1}) == [1]
    assert bench.steps.log == ["fast find", "records", "archive find"]


async def test_a_version_in_the_fast_tier_that_does_not_match_hides_the_archives(
    bench: ReadBench,
) -> None:
    await bench.put(Tier.FAST, {"_id": 1, "t": OLD, "status": "done"})
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "status": "new"})
    assert await bench.find({"_id": 1, "status": "new"}) == []
    assert "archive" not in bench.asked()


@pytest.mark.parametrize("kind", [Kind.DELETED, Kind.EXPIRED])
@pytest.mark.parametrize("command", ["find", "count", "aggregate", "distinct"])
async def test_a_removed_document_does_not_come_back(
    bench: ReadBench, kind: Kind, command: str
) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD})
    await bench.record(1, kind)
    assert await everything(bench, command, {"_id": 1}) == 0
    assert "archive" not in bench.asked()


async def everything(bench: ReadBench, command: str, query: dict[str, Any]) -> int:
    """How many documents a command counts."""
    if command == "find":
        return len(await bench.find(query))
    if command == "count":
        reply = await bench.run({"count": "orders", "query": query})
        return int(reply["n"])
    if command == "distinct":
        reply = await bench.run({"distinct": "orders", "key": "_id", "query": query})
        return len(reply["values"])
    pipeline = [{"$match": query}, {"$group": {"_id": None, "n": {"$sum": 1}}}]
    reply = await bench.run({"aggregate": "orders", "pipeline": pipeline, "cursor": {}})
    found = reply["cursor"]["firstBatch"]
    return int(found[0]["n"]) if found else 0


async def test_deleted_between_the_questions(bench: ReadBench) -> None:
    """Promoted, deleted through another proxy; the archive hasn't heard of it."""
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD})
    bench.steps.after["fast find"] = lambda: bench.delete(1)
    assert await bench.find({"_id": 1}) == []


async def test_promoted_between_the_questions(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "v": 1})
    bench.steps.after["fast find"] = lambda: bench.promote(1)
    assert await bench.find({"_id": 1, "v": 1}) == [1]


async def test_deleted_and_inserted_again_between_the_questions(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "v": "old"})

    async def again() -> None:
        await bench.delete(1)
        await bench.put(Tier.FAST, {"_id": 1, "t": NEW, "v": "new"})

    bench.steps.after["fast find"] = again
    reply = await bench.run({"find": "orders", "filter": {"_id": 1}})
    assert [d["v"] for d in reply["cursor"]["firstBatch"]] == ["new"]


async def test_evicted_after_it_was_seen_not_to_match(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "t": OLD, "v": 2})
    bench.steps.after["in_fast"] = lambda: bench.evict(1)
    assert await bench.find({"_id": 1, "v": 1}) == []


async def test_null_is_an_id_like_any_other(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": None, "t": OLD})
    assert await bench.find({"_id": None}) == [None]
    await bench.record(None, Kind.DELETED)
    assert await bench.find({"_id": None}) == []


async def test_absent_everywhere(bench: ReadBench) -> None:
    assert await bench.find({"_id": "nobody"}) == []


@pytest.mark.parametrize("command", ["count", "aggregate", "distinct"])
async def test_commands_that_hide_what_they_found(bench: ReadBench, command: str) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": "cold", "t": OLD}, {"_id": "hot", "t": OLD})
    await bench.put(Tier.FAST, {"_id": "hot", "t": OLD})
    assert await everything(bench, command, {"_id": "hot"}) == 1
    assert bench.asked() == ["fast", "fast"]
    assert await everything(bench, command, {"_id": "cold"}) == 1
    assert bench.barrier.passes == 0
    await bench.record("hot", Kind.LEAVING)
    assert await everything(bench, command, {"_id": "hot"}) == 1
    assert bench.barrier.passes == 1, "it may leave any moment"
    await bench.record("hot", Kind.EVICTED)
    assert await everything(bench, command, {"_id": "hot"}) == 1
    assert bench.barrier.passes == 1, "promoted after an eviction: it stays"


@pytest.mark.parametrize("command", ["count", "aggregate", "distinct"])
async def test_evicted_behind_the_first_look(bench: ReadBench, command: str) -> None:
    await bench.both({"_id": 1, "t": OLD})
    bench.steps.before["records"] = lambda: bench.evict(1)
    assert await everything(bench, command, {"_id": 1}) == 1


async def test_an_empty_first_batch_proves_no_absence(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "t": OLD})
    reply = await bench.run({"find": "orders", "filter": {"_id": 1}, "batchSize": 0})
    assert reply["cursor"]["id"] != 0


# --- by a list of ids


async def test_a_list_of_ids_that_the_fast_tier_has(bench: ReadBench) -> None:
    await bench.put(Tier.FAST, *({"_id": i, "t": OLD} for i in range(150)))
    assert len(await bench.find({"_id": {"$in": list(range(150))}})) == 150
    assert bench.asked() == ["fast"]


@pytest.mark.parametrize(
    "query", [{"_id": {"$in": [1, 2]}}, {"_id": {"$in": [1, 2, 1.0]}, "t": OLD}]
)
async def test_a_list_with_a_cold_id_comes_from_the_archive(
    bench: ReadBench, query: dict[str, Any]
) -> None:
    await bench.put(Tier.FAST, {"_id": 1, "t": OLD})
    await bench.put(Tier.ARCHIVE, {"_id": 2, "t": OLD})
    bench.barrier.replay = lambda: bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD})
    assert sorted(await bench.find(query)) == [1, 2]
    assert bench.barrier.passes == 1


async def test_a_list_with_a_deleted_id(bench: ReadBench) -> None:
    await bench.put(Tier.FAST, {"_id": 1, "t": OLD})
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD}, {"_id": 2, "t": OLD})
    await bench.record(2, Kind.DELETED)
    assert await everything(bench, "count", {"_id": {"$in": [1, 2]}}) == 1
    assert "archive" not in bench.asked()
    await bench.record(1, Kind.LEAVING)
    bench.barrier.replay = lambda: drop(bench, 2)
    assert await everything(bench, "count", {"_id": {"$in": [1, 2]}}) == 1
    assert bench.asked()[-1] == "archive"


async def drop(bench: ReadBench, doc_id: Any) -> None:
    await bench.tiers.archive.shop.orders.delete_one({"_id": doc_id})


async def test_a_list_whose_answer_takes_several_batches_comes_from_the_archive(
    bench: ReadBench,
) -> None:
    """The fast tier has every id now, but may lack some when the client asks for the rest."""
    await bench.both(*({"_id": i, "t": OLD, "v": 1} for i in range(10)))
    query = {"_id": {"$in": list(range(10))}, "v": 1}
    reply = await bench.run({"find": "orders", "filter": query, "batchSize": 5})
    assert len(reply["cursor"]["firstBatch"]) == 5
    assert bench.steps.log[-2:] == ["fast killCursors", "archive find"]
    assert len(await bench.find(query)) == 10
    assert bench.steps.log[-1] == "fast find"


# --- by a unique key


async def test_a_unique_key_in_the_fast_tier(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "t": OLD, "email": "a@x"})
    assert await bench.find({"email": "a@x"}) == [1]
    assert bench.asked() == ["fast"]


async def test_a_cold_unique_key(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "email": "a@x", "v": 1})
    assert await bench.find({"email": "a@x"}) == [1]
    assert await bench.find({"email": "a@x", "v": 1}) == [1]
    assert await bench.find({"email": "a@x", "v": 2}) == []
    assert await bench.find({"email": "nobody@x"}) == []
    assert bench.barrier.passes == 1, "only the one that matched the key and nothing else"


async def test_a_unique_key_that_the_archive_has_not_heard_the_end_of(bench: ReadBench) -> None:
    await bench.put(Tier.FAST, {"_id": 1, "t": OLD, "email": "new@x"})
    await bench.put(
        Tier.ARCHIVE, {"_id": 1, "t": OLD, "email": "old@x"}, {"_id": 2, "email": "gone@x"}
    )
    await bench.record(2, Kind.DELETED)
    assert await bench.find({"email": "old@x"}) == []
    assert await bench.find({"email": "gone@x"}) == []
    assert "archive" not in bench.asked()


async def test_a_unique_key_whose_holder_is_promoted_meanwhile(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD, "email": "a@x", "v": 1})
    for step in ("fast find", "fast_has_key", "archive_ids", "in_fast"):
        bench.steps.after[step] = lambda: bench.promote(1)
        assert await bench.find({"email": "a@x", "v": 1}) == [1]
        await bench._remove(1)


# --- proven by coverage


async def test_a_covered_range(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "t": NEW})
    await bench.put(Tier.ARCHIVE, {"_id": 2, "t": OLD})
    assert await bench.find({"t": {"$gte": FLOOR}}) == [1]
    assert await everything(bench, "count", {"t": {"$gte": NEW}}) == 1
    assert set(bench.asked()) == {"fast"}
    published = bench.leases.snapshot.tierings[NS].coverage.published_at
    assert bench.exchange.sent[0][1]["readConcern"] == {"afterClusterTime": published}


async def test_an_answer_whose_lease_ended_is_thrown_away(bench: ReadBench) -> None:
    await bench.put(Tier.FAST, *({"_id": i, "t": NEW} for i in range(5)))
    await bench.put(Tier.ARCHIVE, *({"_id": i, "t": NEW} for i in range(6)))

    async def end() -> None:
        bench.leases.end()

    async def open_cursors() -> int:
        status = await bench.tiers.fast.admin.command("serverStatus")
        return int(status["metrics"]["cursor"]["open"]["total"])

    before = await open_cursors()
    bench.steps.after["fast find"] = end
    assert await bench.find({"t": {"$gte": FLOOR}}, batchSize=2) == [0, 1]
    assert bench.steps.log == ["fast find", "fast killCursors", "archive find"]
    assert bench.barrier.passes == 1
    assert bench.reasons == ["covered", "lease-ended"]
    # Other tests use these servers too, and what they left open may end meanwhile.
    assert await open_cursors() <= before


async def test_nothing_is_sent_without_a_lease(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "t": NEW})
    bench.started_with = bench.leases.snapshot
    bench.leases.end()
    bench.leases.snapshot = replace(bench.leases.snapshot, archive_only=True)
    assert await bench.find({"_id": 1}) == [1]
    assert bench.asked() == ["archive"], "decided by the new snapshot, which alone says so"


async def test_a_lease_that_ends_between_the_questions(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD})

    async def end() -> None:
        bench.leases.end()

    bench.steps.after["fast find"] = end
    assert await bench.find({"_id": 1}) == [1]
    assert bench.steps.log == ["fast find", "fast find", "records", "archive find"]


async def test_a_namespace_that_left_during_the_barrier_is_decided_anew(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "v": 1})

    async def leave() -> None:
        bench.leases.end()
        bench.leases.snapshot = replace(bench.leases.snapshot, tierings={}, listed=frozenset())

    bench.barrier.replay = leave
    assert await bench.find({"v": 1}) == [1]
    assert bench.reasons == ["no-bound", "untiered"]


async def test_an_unknown_namespace_is_waited_for(bench: ReadBench) -> None:
    bench.leases.snapshot = replace(bench.leases.snapshot, tierings={})
    reply = await bench.run({"find": "orders", "filter": {"_id": 1}})
    assert (reply["ok"], reply["code"]) == (0, 262)
    assert bench.leases.waited == 1
    assert bench.asked() == []


async def test_only_a_lease_that_ended_during_the_barrier_changes_nothing(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "v": 1})

    async def end() -> None:
        bench.barrier.replay = None
        bench.leases.end()

    bench.barrier.replay = end
    assert await bench.find({"v": 1}) == [1]
    assert bench.barrier.passes == 1, "nothing else changed: the barrier counts"


async def test_newest_first(bench: ReadBench) -> None:
    await bench.both(*({"_id": i, "t": FLOOR + dt.timedelta(days=i)} for i in range(10)))
    await bench.put(Tier.ARCHIVE, {"_id": -1, "t": OLD})
    assert await bench.find({}, sort={"t": -1}, limit=3) == [9, 8, 7]
    assert await bench.find({}, sort={"t": -1}, limit=3, projection={"t": 1}) == [9, 8, 7]
    assert set(bench.asked()) == {"fast"}
    assert len(await bench.find({}, sort={"t": -1}, limit=11)) == 11
    assert bench.reasons[-2:] == ["newest-first", "fast-incomplete"]
    assert await bench.find({}, sort={"t": -1}, limit=3, projection={"v": 1}) == [9, 8, 7]
    assert bench.reasons[-1] == "no-bound"


async def test_a_long_newest_first_list_comes_in_one_batch(bench: ReadBench) -> None:
    await bench.both(*({"_id": i, "t": FLOOR + dt.timedelta(days=i)} for i in range(150)))
    assert len(await bench.find({}, sort={"t": -1}, limit=140)) == 140
    assert bench.asked() == ["fast"]


async def test_any_match(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "t": OLD, "v": 1})
    await bench.put(Tier.ARCHIVE, {"_id": 2, "t": OLD, "v": 2})
    assert await bench.find({"v": 1}, limit=1) == [1]
    assert bench.asked() == ["fast"]
    assert await bench.find({"v": 2}, limit=1) == [2]
    assert bench.barrier.passes == 1


async def test_an_index_that_only_the_archive_has(bench: ReadBench) -> None:
    await bench.tiers.archive.shop.orders.create_index("v", name="only-there")
    await bench.both({"_id": 1, "t": NEW, "v": 1})
    assert await bench.find({"t": {"$gte": FLOOR}}, hint="only-there") == [1]
    assert bench.reasons == ["covered", "fast-error"]


async def test_an_error_is_the_archives(bench: ReadBench) -> None:
    reply = await bench.run({"find": "orders", "filter": {"t": {"$gte": FLOOR}}, "sort": 5})
    assert (reply["ok"], reply["code"]) == (0, 14)


# --- the archive


async def test_behind_the_barrier(bench: ReadBench) -> None:
    bench.barrier.replay = lambda: bench.put(Tier.ARCHIVE, {"_id": 1, "v": 7})
    assert await bench.find({"v": 7}) == [1]
    assert bench.exchange.sent[0][1]["readConcern"]["level"] == "majority"


async def test_a_clients_time_never_reaches_the_archive(bench: ReadBench) -> None:
    far = Timestamp(2**31 - 10, 1)
    concern = {"level": "local", "afterClusterTime": far}
    await bench.put(Tier.ARCHIVE, {"_id": 1, "v": 7})
    assert await bench.find({"v": 7}, readConcern=concern) == [1]
    sent = bench.exchange.sent[0][1]["readConcern"]
    assert sent["level"] == "majority"
    assert sent["afterClusterTime"] < far


async def test_linearizable_goes_to_the_archives_primary_without_a_time(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "v": 7})
    preference = {"mode": "secondaryPreferred"}
    found = await bench.find(
        {"v": 7},
        readConcern={"level": "linearizable"},
        maxTimeMS=10_000,
        **{"$readPreference": preference},
    )
    assert found == [1]
    _, sent, to_primary = bench.exchange.sent[0]
    assert sent["readConcern"] == {"level": "linearizable"}
    assert to_primary


@pytest.mark.parametrize("level", [None, "local", "available", "majority", "linearizable"])
async def test_every_level_works_on_the_fast_tier(bench: ReadBench, level: str | None) -> None:
    await bench.both({"_id": 1, "t": NEW})
    extra: dict[str, Any] = {"maxTimeMS": 10_000}
    if level is not None:
        extra["readConcern"] = {"level": level}
    assert await bench.find({"t": {"$gte": FLOOR}}, **extra) == [1]
    assert await bench.find({"_id": 1}, **extra) == [1]
    assert set(bench.asked()) == {"fast"}


async def test_an_invalid_level_is_an_error(bench: ReadBench) -> None:
    for query in ({"v": 1}, {"_id": 1}):
        reply = await bench.run({"find": "orders", "filter": query, "readConcern": {"level": "x"}})
        assert (reply["ok"], reply["code"]) == (0, 9)


SNAPSHOT: dict[str, Any] = {"level": "snapshot"}


async def test_a_snapshot_session_reads_the_archive_at_one_time(bench: ReadBench) -> None:
    await bench.put(Tier.FAST, {"_id": 1, "t": NEW, "v": 7})

    async def replay() -> None:
        await bench.put(Tier.ARCHIVE, {"_id": 1, "t": NEW, "v": 7})

    bench.barrier.replay = replay
    first = await bench.run({"find": "orders", "filter": {"_id": 1}, "readConcern": SNAPSHOT})
    assert [d["v"] for d in first["cursor"]["firstBatch"]] == [7], "acknowledged by F before"
    at = first["cursor"]["atClusterTime"]
    assert is_whole(at)
    bench.barrier.replay = None
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": NEW, "v": 8}, {"_id": 2, "t": NEW, "v": 9})
    concern = {"level": "snapshot", "atClusterTime": at}
    for query in ({"_id": 1}, {"v": 7}, {"t": {"$gte": FLOOR}}, {"_id": {"$in": [1, 2]}}):
        again = await bench.run({"find": "orders", "filter": query, "readConcern": concern})
        assert [d["v"] for d in again["cursor"]["firstBatch"]] == [7]
        assert again["cursor"]["atClusterTime"] == at
    distinct = await bench.run({"distinct": "orders", "key": "v", "readConcern": concern})
    assert (distinct["values"], distinct["atClusterTime"]) == ([7], at)
    assert set(bench.asked()) == {"archive"}
    assert bench.barrier.passes == 1


async def test_a_time_of_the_fast_tier_is_served_there_or_not_at_all(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "v": 7, "t": NEW})
    await bench.put(Tier.ARCHIVE, {"_id": 2, "v": 7, "t": OLD})
    now = (await bench.tiers.fast.admin.command("ping"))["operationTime"]
    concern = {"level": "snapshot", "atClusterTime": now}
    for query in ({"v": 7}, {"_id": 2}, {"email": "x"}, {"_id": {"$in": [2]}}):
        reply = await bench.run({"find": "orders", "filter": query, "readConcern": concern})
        assert (reply["ok"], reply["code"]) == (0, 72), query
    assert await bench.find({"t": {"$gte": FLOOR}}, readConcern=concern) == [1]


async def test_a_snapshot_from_when_the_archive_lacked_documents(
    bench: ReadBench, tiers: Tiers
) -> None:
    """Mended since: what counts is what it lacked at that time."""
    checkpoints = tiers.archive.thermocline.checkpoint
    await checkpoints.replace_one(
        {"_id": names.CHECKPOINT_ID}, {"quarantine": [{"ns": NS, "id": 1}]}, upsert=True
    )
    reply = await bench.run({"find": "orders", "readConcern": SNAPSHOT})
    assert (reply["ok"], reply["code"]) == (0, 96), "the lease doesn't know of it yet"
    await tiers.archive.shop.plain.insert_one({"_id": 1})
    then = await tiers.archive.shop.command({"find": "plain", "readConcern": SNAPSHOT})
    at = marked(then["cursor"]["atClusterTime"], whole=True)
    await checkpoints.update_one({"_id": names.CHECKPOINT_ID}, {"$set": {"quarantine": []}})
    again = {"find": "orders", "readConcern": {"level": "snapshot", "atClusterTime": at}}
    assert (await bench.run(again))["code"] == 96
    assert (await bench.run({"find": "orders", "readConcern": SNAPSHOT}))["ok"] == 1


async def test_a_snapshot_that_is_too_old_or_of_a_time_to_come(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "v": 7, "t": OLD})
    now = (await bench.tiers.archive.admin.command("ping"))["operationTime"]
    for seconds, codes in ((now.time - 4_000, (239, 246)), (now.time + 4_000, (72,))):
        at = marked(Timestamp(seconds, 1), whole=True)
        concern = {"level": "snapshot", "atClusterTime": at}
        reply = await bench.run({"find": "orders", "readConcern": concern})
        assert (reply["ok"], reply["code"] in codes) == (0, True), reply


async def test_relaxed_reads_skip_the_barrier(tiers: Tiers) -> None:
    bench = await make(tiers, relaxed=True)
    await bench.put(Tier.ARCHIVE, {"_id": 1, "v": 7})
    assert await bench.find({"v": 7}) == [1]
    assert bench.barrier.passes == 0
    archive_time = bench.leases.snapshot.tierings[NS].coverage.archive_time
    concern = bench.exchange.sent[0][1]["readConcern"]
    assert concern == {"level": "majority", "afterClusterTime": archive_time}


async def test_quarantine(tiers: Tiers) -> None:
    bench = await make(tiers, quarantined=True)
    await bench.both({"_id": 1, "t": NEW, "v": 1})
    assert await bench.find({"_id": 1}) == [1]
    assert await bench.find({"t": {"$gte": FLOOR}}) == [1]
    reply = await bench.run({"find": "orders", "filter": {"v": 1}})
    assert (reply["ok"], reply["code"]) == (0, 96)
    assert "Degraded" in reply["errmsg"]
    relaxed = await make(tiers, quarantined=True, relaxed=True)
    assert await relaxed.find({"v": 1}) == [1]


async def test_one_time_budget_for_both_tiers(bench: ReadBench) -> None:
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD})

    async def slow() -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - the reader's clock must move, whatever the loop does

    bench.deadline = time.monotonic() + 1.0
    bench.steps.after["fast find"] = slow
    assert await bench.find({"_id": 1}, maxTimeMS=1_000) == [1]
    assert bench.exchange.sent[0][1]["maxTimeMS"] == 1_000
    assert bench.exchange.sent[1][1]["maxTimeMS"] <= 700
    bench.deadline = time.monotonic() + 0.2
    bench.steps.after["fast find"] = slow
    reply = await bench.run({"find": "orders", "filter": {"_id": 1}, "maxTimeMS": 200})
    assert (reply["ok"], reply["code"]) == (0, 50)


async def test_explain_names_the_tier_and_runs_on_one(bench: ReadBench) -> None:
    await bench.both({"_id": 1, "t": NEW})
    for query, tier in (
        ({"_id": 1}, "fast"),
        ({"t": {"$gte": NEW}}, "fast"),
        ({"v": 1}, "archive"),
    ):
        bench.exchange.sent.clear()
        inner = {"find": "orders", "filter": query}
        reply = await bench.run({"explain": inner, "verbosity": "executionStats"})
        assert reply["serverInfo"]["tier"] == tier
        assert reply["executionStats"]["executionSuccess"]
        assert bench.asked() == [tier]
    pipeline: list[Any] = [{"$match": {"t": {"$gte": NEW}}}]
    reply = await bench.run({"aggregate": "orders", "pipeline": pipeline, "explain": True})
    assert reply["serverInfo"]["tier"] == "fast"


async def test_a_causal_read_while_the_namespace_joins(tiers: Tiers) -> None:
    bench = await make(tiers)
    coverage = Coverage(namespace=NS, state=State.PAUSING, target=State.ACTIVE, age_field="t")
    bench = ReadBench(tiers, coverage)
    await bench.put(Tier.ARCHIVE, {"_id": 1, "v": 1})
    far = Timestamp(2**31 - 10, 1)
    assert await bench.find({"v": 1}, readConcern={"afterClusterTime": far}) == [1]
    # Behind the barrier even so: another proxy may have the next state already (decision 9).
    assert bench.barrier.passes == 1
    assert bench.exchange.sent[-1][1]["readConcern"]["afterClusterTime"] < far

"""Writes against an evictor, a feeder, a switch and other writers, with pause points (cases M)."""

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import bson
import pytest
from bson.binary import Binary
from pymongo import AsyncMongoClient, WriteConcern
from pymongo.errors import OperationFailure
from pymongo.monitoring import CommandListener, CommandStartedEvent
from pymongo.read_concern import ReadConcern

from support.direct import DirectWorld, close_world, open_world
from support.mongod import ReplicaSet
from thermocline_common import names
from thermocline_common.copy_in import keep
from thermocline_common.coverage import State, Tier
from thermocline_common.ids import DocId
from thermocline_common.sessions import is_reserved
from thermocline_common.tiers import Tiers
from thermocline_proxy.writes import handle, run as run_module
from thermocline_proxy.writes.removal import record_deletions

pytestmark = pytest.mark.integration
NS = "shop.orders"


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[DirectWorld]:
    made = await open_world(fast, archive)
    yield made
    await close_world(made)


class MiniEvictor:
    """Announces and evicts as the evictor does, but when the test says so; and replays in between."""

    def __init__(self, world: DirectWorld) -> None:
        self.world = world
        self.tokens: dict[Any, uuid.UUID] = {}
        self.evicted = 0

    async def announce(self, *ids: Any) -> None:
        for doc_id in ids:
            key = bson.SON([("ns", NS), ("id", doc_id)])
            token = uuid.uuid4()
            try:
                await self.world.removed.insert_one(
                    {"_id": key, "kind": "leaving", "token": Binary.from_uuid(token)}
                )
            except OperationFailure:
                continue
            self.tokens[doc_id] = token

    async def evict(self, doc_id: Any) -> bool:
        """One document in one transaction, if its record is still the announcement."""
        async with self.world.feeding:
            await self._confirm(doc_id)
            try:
                return await self._transaction(doc_id)
            except OperationFailure as error:
                if not error.has_error_label("TransientTransactionError"):
                    raise
                return False

    async def _confirm(self, doc_id: Any) -> None:
        document = await self.world.fast.find_one({"_id": doc_id})
        if document is not None:
            await self.world.archive.replace_one({"_id": doc_id}, document, upsert=True)

    async def _transaction(self, doc_id: Any) -> bool:
        key = bson.SON([("ns", NS), ("id", doc_id)])
        client = self.world.tiers.fast
        async with (
            client.start_session(causal_consistency=False) as session,
            await session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority")),
        ):
            hot = await self.world.fast.find_one({"_id": doc_id}, session=session)
            record = await self.world.removed.find_one({"_id": key}, session=session)
            cold = await self.world.archive.find_one({"_id": doc_id})
            token = self.tokens.get(doc_id)
            if hot is None or hot != cold or record is None or record["token"] != token:
                return False
            if record["kind"] != "leaving":
                return False
            await self.world.fast.delete_one({"_id": doc_id}, session=session)
            await self.world.removed.update_one(
                {"_id": key},
                {"$set": {"kind": "evicted", "token": Binary.from_uuid(uuid.uuid4())}},
                session=session,
            )
        self.evicted += 1
        return True


def at_send(world: DirectWorld, number: int, action: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Do something right before the handler's ``number``-th send (from 1), once."""
    results: list[Any] = []
    seen = 0

    async def before(tier: Tier, command: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            results.append(await action())

    world.exchange.before = before
    return results


async def test_m1_an_insert_of_an_id_that_is_being_evicted(world: DirectWorld) -> None:
    evictor = MiniEvictor(world)
    await world.place({"_id": 1, "v": "old"}, "fast", "archive")
    await evictor.announce(1)
    gone = at_send(world, 1, lambda: evictor.evict(1))
    reply = await world.run({"insert": "orders", "documents": [{"_id": 1, "v": "new"}]}, handle)
    assert gone == [False]
    assert reply["writeErrors"][0]["code"] == 11000
    assert await world.truth() == [{"_id": 1, "v": "old"}]


async def test_m1_an_upsert_of_an_id_that_is_being_evicted(world: DirectWorld) -> None:
    evictor = MiniEvictor(world)
    await world.place({"_id": 1, "v": 0}, "fast", "archive")
    await evictor.announce(1)
    gone = at_send(world, 1, lambda: evictor.evict(1))
    statement = {"q": {"_id": 1}, "u": {"$inc": {"v": 1}}, "upsert": True}
    reply = await world.run({"update": "orders", "updates": [statement]}, handle)
    assert gone == [True]
    assert reply == {"n": 1, "nModified": 1, "ok": 1.0}
    assert await world.truth() == [{"_id": 1, "v": 1}]


async def test_an_update_whose_document_is_evicted_just_before(world: DirectWorld) -> None:
    evictor = MiniEvictor(world)
    await world.place({"_id": 1, "v": 0}, "fast", "archive")
    await evictor.announce(1)
    gone = at_send(world, 1, lambda: evictor.evict(1))
    command = {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"v": 1}}}]}
    assert (await world.run(command, handle))["n"] == 1
    assert gone == [True]
    assert await world.truth() == [{"_id": 1, "v": 1}]


async def test_a_document_that_arrives_after_the_update_is_updated(world: DirectWorld) -> None:
    """F misses, then somebody promotes the document: 0 would be wrong, it was there all along."""
    await world.place({"_id": 1, "v": 0}, "archive")
    original = world.exchange._round_trip

    async def promoted_afterwards(tier: Tier, command: Any) -> bytes:
        raw = await original(tier, command)
        if len(world.exchange.sent) == 1:
            await world.fast.insert_one({"_id": 1, "v": 0})
        return raw

    world.exchange._round_trip = promoted_afterwards  # type: ignore[method-assign]
    command = {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"v": 1}}}]}
    assert (await world.run(command, handle))["n"] == 1


async def test_m12_a_filter_that_only_the_old_version_matches(world: DirectWorld) -> None:
    await world.place({"_id": 1, "status": "done"}, "fast")
    await world.place({"_id": 1, "status": "new"}, "archive")
    query = {"_id": 1, "status": "new"}
    command = {"update": "orders", "updates": [{"q": query, "u": {"$set": {"x": 1}}}]}
    assert (await world.run(command, handle))["n"] == 0
    deletion = {"delete": "orders", "deletes": [{"q": query, "limit": 1}]}
    assert (await world.run(deletion, handle))["n"] == 0
    assert await world.truth() == [{"_id": 1, "status": "done"}]


async def test_m14_nothing_is_executed_after_an_error_on_a_cold_document(
    world: DirectWorld,
) -> None:
    await world.place({"_id": 1, "v": "text"}, "archive")
    await world.place({"_id": 2, "v": 0}, "fast", "archive")
    updates = [{"q": {"_id": i}, "u": {"$inc": {"v": 1}}} for i in (1, 2)]
    reply = await world.run({"update": "orders", "updates": updates}, handle)
    assert [e["index"] for e in reply["writeErrors"]] == [0]
    assert (await world.fast.find_one({"_id": 2}))["v"] == 0


async def test_m2_update_many_writes_each_document_once_while_others_are_evicted(
    world: DirectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evictor's minute and the proxy's ten seconds, in the same proportion but shorter."""
    monkeypatch.setattr(run_module, "KEPT_SECONDS", 0.3)
    monkeypatch.setattr("thermocline_proxy.writes.many.KEPT_SECONDS", 0.3)
    monkeypatch.setattr("thermocline_proxy.writes.many.MOST_IDS", 100)
    count = 3_000
    documents = [{"_id": i, "n": 0} for i in range(count)]
    await world.fast.insert_many(documents[: count // 2])
    await world.archive.insert_many(documents)
    evictor = MiniEvictor(world)
    done = asyncio.Event()

    async def evict() -> None:
        while not done.is_set():
            sample = await world.fast.aggregate([{"$sample": {"size": 40}}])
            ids = [found["_id"] async for found in sample]
            await evictor.announce(*ids)
            await asyncio.sleep(2.0)
            for doc_id in ids:
                await evictor.evict(doc_id)

    task = asyncio.create_task(evict())
    statement = {"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}
    for turn in (1, 2, 3):
        reply = await world.run({"update": "orders", "updates": [statement]}, handle)
        assert reply == {"n": count, "nModified": count, "ok": 1.0}
        assert {d["n"] for d in await world.truth()} == {turn}
        await asyncio.sleep(1.5)
    done.set()
    await task
    assert evictor.evicted > 0


async def test_m2_a_document_evicted_between_the_two_questions_to_f(
    world: DirectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    evictor = MiniEvictor(world)
    await world.place({"_id": 1, "n": 0}, "fast", "archive")
    await evictor.announce(1)
    found = asyncio.Event()
    ids, records = run_module.Run.fast_ids, run_module.Run.records

    async def first(run: run_module.Run, wanted: Any) -> Any:
        answer = await ids(run, wanted)
        found.set()
        return answer

    async def second(run: run_module.Run, wanted: Any) -> Any:
        await found.wait()
        await evictor.evict(1)
        return await records(run, wanted)

    monkeypatch.setattr(run_module.Run, "fast_ids", first)
    monkeypatch.setattr(run_module.Run, "records", second)
    statement = {"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}
    reply = await world.run({"update": "orders", "updates": [statement]}, handle)
    assert evictor.evicted == 1
    assert reply["n"] == 1


async def test_a_delete_that_takes_too_long_after_its_record_starts_over(
    world: DirectWorld,
) -> None:
    await world.place({"_id": 1}, "fast", "archive")
    late = 100.0
    clock = world.gateway.clock
    offset = 0.0
    world.gateway.clock = lambda: clock() + offset
    original = world.tiers.fast.start_session
    turns = 0

    def slow(*args: Any, **options: Any) -> Any:
        nonlocal offset, turns
        turns += 1
        if turns == 1:
            offset = late
        return original(*args, **options)

    world.tiers.fast.start_session = slow  # type: ignore[method-assign]
    reply = await world.run(
        {"delete": "orders", "deletes": [{"q": {"_id": 1}, "limit": 1}]}, handle
    )
    assert reply == {"n": 1, "ok": 1.0}
    assert turns >= 2
    assert await world.truth() == []


async def test_m3_records_commit_at_majority_and_the_feeder_sees_them(fast: ReplicaSet) -> None:
    class Log(CommandListener):
        def __init__(self) -> None:
            self.commands: list[dict[str, Any]] = []

        def started(self, event: CommandStartedEvent) -> None:
            self.commands.append(dict(event.command))

        def succeeded(self, event: Any) -> None:
            pass

        def failed(self, event: Any) -> None:
            pass

    log = Log()
    client: AsyncMongoClient[dict[str, Any]] = fast.async_client(event_listeners=[log])
    await client["shop"]["orders"].insert_one({"_id": 1})
    log.commands.clear()
    wanted = DocId.of_document(bson.encode({"_id": 1}))
    missing = DocId.of_document(bson.encode({"_id": 2}))
    there = await record_deletions(Tiers(client, client), NS, [wanted, missing])
    assert there == {wanted}
    commit = next(c for c in log.commands if "commitTransaction" in c)
    assert commit["writeConcern"] == {"w": "majority"}
    assert not is_reserved(bytes(commit["lsid"]["id"]))
    records = [d async for d in client[names.DATABASE][names.REMOVED].find()]
    assert [(d["_id"], d["kind"]) for d in records] == [({"ns": NS, "id": 1}, "deleted")]
    await client.close()


async def test_e11000_under_a_delete_and_an_insert_at_once(world: DirectWorld) -> None:
    """A delete by _id and an insert of the same _id, in many orders: in the end one truth."""
    for turn in range(15):
        await world.place({"_id": turn, "v": 0}, "archive")
        delete = world.run(
            {"delete": "orders", "deletes": [{"q": {"_id": turn}, "limit": 1}]}, handle
        )
        insert = world.run({"insert": "orders", "documents": [{"_id": turn, "v": 1}]}, handle)
        deleted, inserted = await asyncio.gather(delete, insert)
        assert deleted["n"] == 1 or "writeErrors" in inserted
        truth = [d for d in await world.truth() if d["_id"] == turn]
        if "writeErrors" in inserted:
            assert truth == []
        else:
            assert truth in ([{"_id": turn, "v": 1}], [])
        await world.replay()
        archive = [d async for d in world.archive.find({"_id": turn})]
        assert archive == truth


# States and leases


async def test_a_pausing_namespace_answers_262_and_drivers_may_retry(world: DirectWorld) -> None:
    world.set_coverage(state=State.PAUSING)
    command = {"insert": "orders", "documents": [{"_id": 1}]}
    reply = await world.run(command, handle)
    assert (reply["code"], reply["codeName"]) == (262, "ExceededTimeLimit")
    session = {"id": Binary(uuid.uuid4().bytes, 4)}
    reply = await world.run({**command, "lsid": session, "txnNumber": bson.Int64(1)}, handle)
    assert reply["errorLabels"] == ["RetryableWriteError"]
    assert await world.truth() == []
    assert world.exchange.sent == []


@pytest.mark.parametrize("state", [State.ACTIVE, State.PASSTHROUGH])
async def test_a_write_waits_for_the_end_of_the_pause(world: DirectWorld, state: State) -> None:
    world.set_coverage(state=State.PAUSING)

    async def end() -> None:
        world.set_coverage(state=state, epoch=uuid.uuid4())

    world.leases.on_wait = end
    reply = await world.run({"insert": "orders", "documents": [{"_id": 1}]}, handle)
    assert reply == {"n": 1, "ok": 1.0}
    tier = world.fast if state is State.ACTIVE else world.archive
    assert await tier.find_one({"_id": 1}) is not None
    other = world.archive if state is State.ACTIVE else world.fast
    assert await other.find_one({"_id": 1}) is None


async def test_an_unknown_namespace_that_is_listed_waits(world: DirectWorld) -> None:
    import dataclasses

    world.leases.snapshot = dataclasses.replace(world.leases.snapshot, tierings={})
    reply = await world.run({"insert": "orders", "documents": [{"_id": 1}]}, handle)
    assert reply["code"] == 262
    assert world.exchange.sent == []


async def test_nothing_is_sent_under_a_lease_that_is_over(world: DirectWorld) -> None:
    await world.place({"_id": 1, "v": 0}, "archive")
    seen: list[bool] = []

    async def before(tier: Tier, command: dict[str, Any]) -> None:
        seen.append(world.leases.running)
        world.leases.running = False

    world.exchange.before = before
    command = {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"v": 1}}}]}
    assert (await world.run(command, handle))["n"] == 1
    assert seen == [True, True]


async def test_m7_update_many_over_a_switch_counts_each_document_once(
    world: DirectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thermocline_proxy.writes.many.MOST_IDS", 10)
    documents = [{"_id": i, "n": 0} for i in range(35)]
    await world.archive.insert_many(documents)
    await world.fast.insert_many(documents[:20])

    async def to_passthrough() -> None:
        await world.replay()
        await world.fast.delete_many({})
        await world.removed.delete_many({})
        world.set_coverage(state=State.PASSTHROUGH, epoch=uuid.uuid4())

    async def before(tier: Tier, command: dict[str, Any]) -> None:
        if len(world.exchange.sent) == 2:
            # The second chunk is on its way: the next one meets a pause that ends in Passthrough.
            world.set_coverage(state=State.PAUSING)
            world.leases.on_wait = to_passthrough

    world.exchange.before = before
    statement = {"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}
    reply = await world.run({"update": "orders", "updates": [statement]}, handle)
    assert reply == {"n": 35, "nModified": 35, "ok": 1.0}
    assert {d["n"] async for d in world.archive.find()} == {1}
    assert {tier for tier, _ in world.exchange.sent} == {Tier.FAST, Tier.ARCHIVE}


async def test_one_time_budget_for_every_step(world: DirectWorld) -> None:
    await world.place({"_id": 1, "v": 0}, "archive")
    command = {
        "update": "orders",
        "updates": [{"q": {"_id": 1}, "u": {"$inc": {"v": 1}}}],
        "maxTimeMS": 5_000,
    }
    assert (await world.run(command, handle, seconds=5.0))["n"] == 1
    limits = [sent["maxTimeMS"] for _, sent in world.exchange.sent]
    assert limits[0] == 5_000
    assert 0 < limits[1] < 5_000
    await world.place({"_id": 2, "v": 0}, "archive")

    async def slow(tier: Tier, sent: dict[str, Any]) -> None:
        await asyncio.sleep(0.2)

    world.exchange.before = slow
    command["updates"] = [{"q": {"_id": 2}, "u": {"$inc": {"v": 1}}}]
    reply = await world.run({**command, "maxTimeMS": 100}, handle, seconds=0.1)
    assert reply["code"] == 50


async def test_a_quarantined_namespace_refuses_writes_that_must_ask_the_archive(
    world: DirectWorld,
) -> None:
    import dataclasses

    from thermocline_proxy.routing.snapshot import Tiering

    await world.place({"_id": 1, "k": 5}, "archive")
    tierings = {NS: Tiering(world.coverage, quarantined=True)}
    world.leases.snapshot = dataclasses.replace(world.leases.snapshot, tierings=tierings)
    by_filter = {"update": "orders", "updates": [{"q": {"k": 5}, "u": {"$set": {"x": 1}}}]}
    reply = await world.run(by_filter, handle)
    assert reply["ok"] == 0.0
    assert "Degraded" in reply["errmsg"]
    by_id = {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}
    assert (await world.run(by_id, handle))["n"] == 1


async def test_transactions_are_refused(world: DirectWorld) -> None:
    reply = await world.run(
        {
            "insert": "orders",
            "documents": [{"_id": 1}],
            "lsid": {"id": Binary(uuid.uuid4().bytes, 4)},
            "txnNumber": bson.Int64(1),
            "autocommit": False,
            "startTransaction": True,
        },
        handle,
    )
    assert reply["code"] == 263
    assert world.exchange.sent == []


FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COVERED = {"t": {"$gte": FLOOR}}


@pytest.mark.parametrize(
    "command",
    [
        {"update": "orders", "updates": [{"q": COVERED, "u": {"$set": {"x": 1}}, "multi": True}]},
        {"update": "orders", "updates": [{"q": COVERED, "u": {"$set": {"x": 1}}}]},
        {"delete": "orders", "deletes": [{"q": COVERED, "limit": 1}]},
        {"delete": "orders", "deletes": [{"q": COVERED, "limit": 0}]},
    ],
    ids=["updateMany", "updateOne", "deleteOne", "deleteMany"],
)
async def test_a_floor_that_was_raised_when_the_lease_was_renewed_covers_nothing(
    world: DirectWorld, command: dict[str, Any]
) -> None:
    """The first lease ends with the first send; by the second, the document is in the archive alone."""
    world.set_coverage(floor=FLOOR)
    await world.place({"_id": 1, "t": FLOOR}, "archive", "evicted")

    async def raised(tier: Tier, sent: dict[str, Any]) -> None:
        if not world.exchange.sent:
            world.set_coverage(floor=None, raised=1)
            world.leases.running = False

    world.exchange.before = raised
    assert (await world.run(command, handle))["n"] == 1


async def test_an_upsert_asks_the_archive_when_the_floor_was_raised(world: DirectWorld) -> None:
    world.set_coverage(floor=FLOOR)
    await world.place({"_id": 1, "t": FLOOR}, "archive", "evicted")

    async def raised(tier: Tier, sent: dict[str, Any]) -> None:
        if not world.exchange.sent:
            world.set_coverage(floor=None, raised=1)
            world.leases.running = False

    world.exchange.before = raised
    statement = {"q": COVERED, "u": {"$set": {"x": 1}}, "upsert": True}
    reply = await world.run({"update": "orders", "updates": [statement]}, handle)
    assert "upserted" not in reply
    assert [d["_id"] for d in await world.truth()] == [1]


async def test_a_keep_all_that_is_no_longer_complete_is_asked_for_in_the_archive(
    world: DirectWorld,
) -> None:
    world.set_coverage(keep_all=True, age_field=None, complete=True)
    await world.place({"_id": 1}, "archive")
    world.set_coverage(complete=False)
    reply = await world.run({"insert": "orders", "documents": [{"_id": 1}]}, handle)
    assert reply["writeErrors"][0]["code"] == 11000
    world.set_coverage(complete=True)
    reply = await world.run({"insert": "orders", "documents": [{"_id": 2}]}, handle)
    assert ("write-insert-complete", "fast") in world.counted


# Everything at once, on one document


async def _disturb(world: DirectWorld, evictor: MiniEvictor, done: asyncio.Event) -> None:
    """Replay, announce, evict, and bring back, all the time; an eviction 1.5 s after its announcement."""
    clock = asyncio.get_running_loop().time
    seen: dict[uuid.UUID, float] = {}
    while not done.is_set():
        await world.replay()
        await evictor.announce(1)
        for _ in range(15):
            await asyncio.sleep(0.1)
            await world.replay()
        await evictor.evict(1)
        if evictor.evicted % 2:
            await keep(world.tiers, world.coverage, [DocId.of_document(bson.encode({"_id": 1}))])
        # As the feeder does after five minutes: longer than any operation that may have seen it lasts.
        async for record in world.removed.find({"kind": {"$ne": "leaving"}}):
            first = seen.setdefault(record["token"], clock())
            void = await world.fast.find_one({"_id": 1}) or not await world.archive.find_one(
                {"_id": 1}
            )
            if clock() - first > 3.0 and (void or record["kind"] == "evicted"):
                await world.removed.delete_one({"_id": record["_id"], "token": record["token"]})


async def test_every_acknowledged_increment_is_there(
    world: DirectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "KEPT_SECONDS", 0.2)
    evictor = MiniEvictor(world)
    done = asyncio.Event()
    task = asyncio.create_task(_disturb(world, evictor, done))
    acknowledged = 0
    ways: list[dict[str, Any]] = [
        {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}, "upsert": True}]},
        {"findAndModify": "orders", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "upsert": True},
        {"update": "orders", "updates": [{"q": {"k": None}, "u": {"$inc": {"n": 1}}}]},
    ]  # fmt: skip
    end = asyncio.get_running_loop().time() + 10

    async def work(number: int) -> None:
        nonlocal acknowledged
        while asyncio.get_running_loop().time() < end:
            reply = await world.run(ways[number % len(ways)], handle)
            assert reply["ok"] == 1.0, reply
            acknowledged += reply.get("n", reply.get("lastErrorObject", {}).get("n", 0))
            await asyncio.sleep(0.3)

    await world.run(ways[0], handle)
    acknowledged += 1
    await asyncio.gather(*map(work, range(4)))
    done.set()
    await task
    assert [d["n"] for d in await world.truth()] == [acknowledged]
    assert evictor.evicted > 0


async def test_an_insert_is_a_lock_and_a_delete_its_release(
    world: DirectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never two holders, and every release finds the document, wherever it is by then."""
    monkeypatch.setattr(run_module, "KEPT_SECONDS", 0.2)
    monkeypatch.setattr("thermocline_proxy.writes.singles.RECORDED_SECONDS", 0.2)
    monkeypatch.setattr("thermocline_proxy.writes.batches.RECORDED_SECONDS", 0.2)
    evictor = MiniEvictor(world)
    done = asyncio.Event()
    task = asyncio.create_task(_disturb(world, evictor, done))
    holders: set[int] = set()
    taken = 0
    end = asyncio.get_running_loop().time() + 10

    async def work(number: int) -> None:
        nonlocal taken
        while asyncio.get_running_loop().time() < end:
            got = await world.run(
                {"insert": "orders", "documents": [{"_id": 1, "owner": number}]}, handle
            )
            if "writeErrors" in got:
                assert got["writeErrors"][0]["code"] == 11000
                await asyncio.sleep(0.2)
                continue
            assert not holders
            holders.add(number)
            taken += 1
            before = evictor.evicted
            for _ in range(200 if taken in (3, 6) else 1):
                await asyncio.sleep(0.1)
                if evictor.evicted > before:
                    break
            holders.discard(number)
            query = {"_id": 1} if taken % 2 else {"owner": number}
            released = await world.run(
                {"delete": "orders", "deletes": [{"q": query, "limit": 1}]}, handle
            )
            assert released["n"] == 1, released

    await asyncio.gather(*map(work, range(3)))
    done.set()
    await task
    await world.replay()
    assert await world.truth() == []
    assert await world.archive.count_documents({}) == 0
    assert taken >= 3
    assert evictor.evicted > 0

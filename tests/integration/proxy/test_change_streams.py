"""Change streams through the proxy: exactly the application's events, in order, whatever moves documents."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bson.timestamp import Timestamp
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from support.hand_feeder import utc
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from support.wire import Wire
from thermocline_common.timing import TEST_VARIABLE

pytestmark = pytest.mark.integration
NS = "shop.orders"
DAY = 86_400
POLICIES = [
    {"namespace": NS, "ageField": "t", "maxAge": "30d"},
    {"namespace": "shop.fresh", "keep": "All"},
]
QUICK = {**HASTE, TEST_VARIABLE: "1"}
LAST = "the last"
Client = MongoClient[dict[str, Any]]
Event = dict[str, Any]


def load(archive: ReplicaSet) -> None:
    """Half of the documents are cold."""
    with archive.client() as client:
        client.shop.orders.create_index("t")
        client.shop.orders.insert_many(
            [{"_id": i, "t": utc(i * DAY / 5), "v": 0} for i in range(300)]
        )


@contextlib.contextmanager
def started(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    """Every service, the collection active."""
    load(archive)
    system = Thermocline(fast, archive, POLICIES, environment=QUICK)
    try:
        system.start()
        with system.logs_on_failure():
            settled(system, "Active")
            yield system
    finally:
        system.stop()


@pytest.fixture
def running(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    """Without logins."""
    with started(fast, archive) as system:
        yield system


@pytest.fixture
def secured(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> Iterator[Thermocline]:
    """With logins, and with the archive's clock far ahead of the fast tier's."""
    with started(secure_fast, secure_archive) as system:
        yield system


def settled(system: Thermocline, state: str) -> None:
    """Wait for the state, and until every proxy knows of it."""
    system.wait_state(state)
    time.sleep(0.6)


def write_a_lot(client: Client, seed: int, count: int = 300) -> list[tuple[str, Any]]:
    """Writes on hot, cold and new documents; what each must show as: (operation, id)."""
    orders = client.shop.orders
    chance = random.Random(seed)
    alive = set(orders.distinct("_id"))
    done: list[tuple[str, Any]] = []
    for number in range(count):
        identity = chance.choice(sorted(alive, key=str))
        kind = chance.randrange(8)
        if kind < 3:
            orders.update_one({"_id": identity}, {"$inc": {"v": 1}})
            done.append(("update", identity))
        elif kind == 3:
            orders.replace_one({"_id": identity}, {"t": utc(50 * DAY), "w": number})
            done.append(("replace", identity))
        elif kind == 4:
            orders.delete_one({"_id": identity})
            alive.remove(identity)
            done.append(("delete", identity))
        elif kind == 5:
            ids = [f"{seed}-{number}-{i}" for i in range(3)]
            orders.insert_many([{"_id": i, "t": utc(40 * DAY), "v": 0} for i in ids])
            alive.update(ids)
            done += [("insert", i) for i in ids]
        elif kind == 6:
            orders.find_one_and_update({"_id": identity}, {"$set": {"n": number}})
            done.append(("update", identity))
        else:
            new = f"{seed}-{number}"
            orders.update_one({"_id": new}, {"$set": {"t": utc(number)}}, upsert=True)
            alive.add(new)
            done.append(("insert", new))
        orders.find_one({"_id": identity})
    return done


def seen(event: Event) -> tuple[str, Any]:
    return event["operationType"], event["documentKey"]["_id"]


def is_last(event: Event) -> bool:
    return bool(event["operationType"] == "insert" and event["documentKey"]["_id"] == LAST)


def end(client: Client) -> None:
    client.shop.orders.insert_one({"_id": LAST, "t": utc(0)})


def read_to_the_end(client: Client, **options: Any) -> list[Event]:
    found: list[Event] = []
    with client.shop.orders.watch(max_await_time_ms=500, **options) as stream:
        while True:
            event = stream.try_next()
            if event is None:
                continue
            if is_last(event):
                return found
            found.append(event)


def position(client: Client) -> Any:
    """A token of now."""
    with client.shop.orders.watch() as stream:
        return stream.resume_token


async def test_every_driver_sees_exactly_what_the_application_did(running: Thermocline) -> None:
    with running.client() as client:
        wait_until("warmed", lambda: "floor" in (running.coverage(NS) or {}), 60)
        start = position(client)

        def follow() -> list[Event]:
            with running.client() as other:
                return read_to_the_end(other, resume_after=start)

        following = asyncio.create_task(asyncio.to_thread(follow))
        done = await asyncio.to_thread(write_a_lot, client, 1)
        evicted = running.evicted()
        wait_until("evictions among the writes", lambda: running.evicted() > evicted, 60)
        done += await asyncio.to_thread(write_a_lot, client, 2, 100)
        end(client)
        follower = await asyncio.wait_for(following, 60)
        assert [seen(event) for event in follower] == done
        assert {event["ns"]["coll"] for event in follower} == {"orders"}
        # From the switch on, so while it was warmed: that shows nothing either.
        activated = (running.coverage(NS) or {})["activatedAt"]
        since: dict[str, Any] = {"start_at_operation_time": activated}
        assert await asyncio.to_thread(read_to_the_end, client, **since) == follower

        async with running.async_client() as other:
            again = []
            async with await other.shop.orders.watch(resume_after=start) as stream:
                async for event in stream:
                    if is_last(event):
                        break
                    again.append(event)
        assert again == follower
        motor: AsyncIOMotorClient[Event] = AsyncIOMotorClient(running.uri(), tz_aware=True)
        count = 0
        async with motor.shop.orders.watch(
            [{"$match": {"operationType": "delete"}}], start_after=start, batch_size=7
        ) as deletes:
            async for _ in deletes:
                count += 1
                if count == len([kind for kind, _ in done if kind == "delete"]):
                    break
        motor.close()
        assert count


def test_resumed_through_a_killed_proxy_and_another_one(running: Thermocline) -> None:
    other_proxy = running.add_service("proxy", "proxy2")
    other_proxy.wait_ready()
    with running.client() as client, running.client() as watching:
        found: list[Event] = []
        tokens: list[Any] = []
        opened = threading.Event()

        def follow() -> None:
            with watching.shop.orders.watch(max_await_time_ms=200) as stream:
                opened.set()
                while True:
                    try:
                        event = stream.try_next()
                    except PyMongoError:
                        assert stream.alive
                        time.sleep(0.1)
                        continue
                    tokens.append(stream.resume_token)
                    if event is not None and is_last(event):
                        return
                    if event is not None:
                        found.append(event)

        pool = ThreadPoolExecutor(1)
        following = pool.submit(follow)
        assert opened.wait(30)
        done = []
        for turn in range(3):
            done += write_a_lot(client, 10 + turn, 40)
            running.services["proxy"].kill()
            running.services["proxy"].start()
            running.services["proxy"].wait_ready()
            client.shop.orders.find_one({"_id": 0})
        end(client)
        following.result(60)
        pool.shutdown()
        assert [seen(event) for event in found] == done

        # What one proxy opened, the other goes on with, from any place.
        with running_client(running, other_proxy.listen) as other:
            for event in found[:: max(1, len(found) // 5)]:
                rest = read_to_the_end(other, resume_after=event["_id"])
                assert rest == found[found.index(event) + 1 :]
            for token in tokens[::20]:
                rest = read_to_the_end(other, resume_after=token)
                assert rest == found[len(found) - len(rest) :]
            assert_served_across(client, running.port, other_proxy.listen or 0)


def assert_served_across(client: Client, port: int, other_port: int) -> None:
    """A cursor that one proxy opened, without a session, used through the other."""
    watch = {
        "aggregate": "orders",
        "pipeline": [{"$changeStream": {}}],
        "cursor": {},
        "$db": "shop",
    }
    with Wire(port) as one, Wire(other_port) as other:
        cursor = one.ask(watch)["cursor"]["id"]
        client.shop.orders.insert_one({"_id": "across", "t": utc(0)})
        more = {"getMore": cursor, "collection": "orders", "maxTimeMS": 2_000, "$db": "shop"}
        reply = other.ask(more)
        assert [seen(e) for e in reply["cursor"]["nextBatch"]] == [("insert", "across")]
        kill = {"killCursors": "orders", "cursors": [cursor], "$db": "shop"}
        assert other.ask(kill)["cursorsKilled"] == [cursor]
        assert one.ask(more)["code"] == 43


def running_client(system: Thermocline, port: int | None) -> Client:
    return MongoClient(system.uri(port), tz_aware=True)


def test_a_stream_ends_with_the_state_it_was_opened_in(secured: Thermocline) -> None:
    with secured.client() as client:
        idle = position(client)
        with client.shop.orders.watch() as stream:
            client.shop.orders.insert_one({"_id": "one", "t": utc(0)})
            event = stream.next()
        operation_time = event["clusterTime"]
        waiting = client.shop.orders.watch(max_await_time_ms=300)
        database = client.shop.watch(max_await_time_ms=300)
        secured.manifest.change(mode="Passthrough")
        with pytest.raises(OperationFailure) as caught:
            read_until_it_fails(waiting)
        error = caught.value
        assert error.code == 286, error
        assert error.has_error_label("NonResumableChangeStreamError")
        assert not waiting.alive
        settled(secured, "Passthrough")
        assert database.try_next() is None or database.alive

        # On the archive, nothing of the fast tier goes on.
        for options in (
            {"resume_after": idle},
            {"start_after": idle},
            {"resume_after": event["_id"]},
        ):
            with pytest.raises(OperationFailure) as caught:
                read_until_it_fails(client.shop.orders.watch(max_await_time_ms=100, **options))
            error = caught.value
            assert error.code in (280, 286), (options, error)
            assert error.has_error_label("NonResumableChangeStreamError")
        with pytest.raises(OperationFailure) as caught:
            client.shop.orders.watch(start_at_operation_time=operation_time)
        assert caught.value.code == 72
        with client.shop.orders.watch() as stream:
            old = stream.resume_token
            client.shop.orders.insert_one({"_id": "two", "t": utc(0)})
            passthrough_event = stream.next()
        assert "clusterTime" not in passthrough_event
        waiting = client.shop.orders.watch(max_await_time_ms=300)
        secured.manifest.change(mode="Active")
        settled(secured, "Active")
        with pytest.raises(OperationFailure) as caught:
            read_until_it_fails(waiting)
        error = caught.value
        assert error.code == 286, error

        # Nor does anything of the archive, or of the activation before, on the fast tier.
        for token in (idle, old, event["_id"], passthrough_event["_id"]):
            with pytest.raises(OperationFailure) as caught:
                client.shop.orders.watch(resume_after=token)
            assert caught.value.code == 286, caught.value
        for at in (operation_time, Timestamp(1, 1)):
            with pytest.raises(OperationFailure) as caught:
                client.shop.orders.watch(start_at_operation_time=at)
            assert caught.value.code == 286, caught.value
        with client.shop.orders.watch() as stream:
            client.shop.orders.insert_one({"_id": "three", "t": utc(0)})
            event = stream.next()
        again = client.shop.orders.watch(start_at_operation_time=event["clusterTime"])
        assert seen(again.next()) == ("insert", "three")


SLEEPERS: list[list[dict[str, Any]]] = [
    [],
    [{"$match": {"operationType": "insert"}}],
    [{"$match": {"documentKey._id": "unheard of"}}],
    [{"$project": {"operationType": 1}}, {"$match": {"operationType": "delete"}}],
]


def test_a_stream_that_slept_through_two_switches_ends_all_the_same(running: Thermocline) -> None:
    """Nobody asked for its events while the other tier had the say; then its own has it again."""

    def asleep(client: Client) -> list[Any]:
        return [client.shop.orders.watch(stages, max_await_time_ms=200) for stages in SLEEPERS]

    def switched(client: Client, mode: str, identity: str) -> None:
        running.manifest.change(mode=mode)
        settled(running, mode)
        client.shop.orders.update_one({"_id": 3}, {"$inc": {"v": 1}})
        client.shop.orders.insert_one({"_id": identity, "t": utc(0)})

    def all_end(client: Client, streams: list[Any]) -> None:
        tokens = [stream.resume_token for stream in streams]
        for stream in streams:
            with pytest.raises(OperationFailure) as caught:
                read_until_it_fails(stream)
            assert caught.value.code == 286, caught.value
            assert caught.value.has_error_label("NonResumableChangeStreamError")
        for stages, token in zip(SLEEPERS, tokens, strict=True):
            with pytest.raises(OperationFailure) as caught:
                read_until_it_fails(client.shop.orders.watch(stages, resume_after=token))
            assert caught.value.code in (280, 286), caught.value

    with running.client() as client:
        on_fast = asleep(client)
        switched(client, "Passthrough", "one")
        on_archive = asleep(client)
        switched(client, "Active", "two")
        all_end(client, on_fast)
        running.wait_applied()
        switched(client, "Passthrough", "three")
        all_end(client, on_archive)


def read_until_it_fails(stream: Any) -> None:
    """A stream may still show something before it ends."""
    with stream:
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            stream.try_next()
    raise AssertionError("the stream goes on")


def test_what_was_evicted_meanwhile_is_looked_up_all_the_same(running: Thermocline) -> None:
    """Each part with cold documents of its own: those that a look-up brought in leave only half a minute later."""
    with running.client() as client, running.fast.client() as here:
        orders = client.shop.orders

        def update(ids: range) -> Any:
            """A token of before."""
            start = position(client)
            for identity in ids:
                orders.update_one({"_id": identity}, {"$set": {"v": identity}})
            return start

        def wait_until_gone(ids: range) -> None:
            within = {"_id": {"$in": list(ids)}}
            wait_until("evicted", lambda: here.shop.orders.count_documents(within) == 0, 120)

        cold = range(200, 220)
        start = update(cold)
        orders.update_one({"_id": 299}, {"$set": {"v": 1}})
        orders.delete_one({"_id": 299})
        wait_until_gone(cold)
        end(client)
        events = read_to_the_end(client, resume_after=start, full_document="updateLookup")
        assert [seen(e) for e in events] == [
            *(("update", i) for i in cold), ("update", 299), ("delete", 299)
        ]  # fmt: skip
        assert [e["fullDocument"] and e["fullDocument"]["v"] for e in events[:-1]] == [*cold, None]

        cold = range(220, 240)
        start = update(cold)
        wait_until_gone(cold)
        with orders.watch(resume_after=start, full_document="updateLookup", batch_size=7) as stream:
            found = [stream.next()["fullDocument"] for _ in cold]
        assert [document["v"] for document in found] == list(cold)

        # Stages that would hide whether a document was found; evicted before and under the open stream.
        stages: list[dict[str, Any]] = [
            {"$project": {"v": "$fullDocument.v"}},
            {"$match": {"v": {"$gte": 0}}},
        ]
        for cold, before in ((range(240, 260), True), (range(260, 280), False)):
            start = update(cold)
            if before:
                wait_until_gone(cold)
            stages[1]["$match"]["v"]["$gte"] = cold.start + 5
            with orders.watch(
                stages, resume_after=start, full_document="updateLookup", batch_size=4
            ) as stream:
                values = [stream.next()]
                if not before:
                    wait_until_gone(cold)
                values += [stream.next() for _ in range(14)]
            assert [event["v"] for event in values] == list(cold)[5:]


def test_whole_databases_are_watched_on_the_archive(running: Thermocline) -> None:
    with running.client() as client:
        with client.shop.watch(max_await_time_ms=500) as database, client.watch() as cluster:
            client.shop.orders.insert_one({"_id": "new", "t": utc(0)})
            client.other.things.insert_one({"_id": 1})
            event = database.next()
            assert seen(event) == ("insert", "new")
            assert "clusterTime" not in event
            both = [cluster.next(), cluster.next()]
            assert {e["ns"]["db"] for e in both} == {"shop", "other"}
        with pytest.raises(OperationFailure) as caught:
            client.thermocline.watch()
        assert caught.value.code == 13
        with client.shop.watch(resume_after=event["_id"], max_await_time_ms=200) as stream:
            assert stream.try_next() is None


def test_a_collection_that_does_not_exist_yet(running: Thermocline) -> None:
    with running.client() as client:
        fresh = client.shop.fresh
        with fresh.watch(max_await_time_ms=300) as stream:
            assert stream.try_next() is None
            before = stream.resume_token
            fresh.insert_one({"_id": 1})
            with client.start_session() as session:
                fresh.update_one({"_id": 1}, {"$set": {"v": 1}}, session=session)
                with fresh.watch(session=session, resume_after=before) as causal:
                    found = [seen(causal.next()) for _ in range(2)]
            assert [seen(stream.next()) for _ in range(2)] == found
        assert found == [("insert", 1), ("update", 1)]

        def paired() -> bool:
            return bool((running.coverage("shop.fresh") or {}).get("uuids"))

        wait_until("the collection's counterpart", paired, 30)
        time.sleep(0.6)
        with fresh.watch(resume_after=before) as stream:
            assert [seen(stream.next()) for _ in range(2)] == found
            event = stream.resume_token
        with fresh.watch(start_after=event, max_await_time_ms=300) as stream:
            assert stream.try_next() is None

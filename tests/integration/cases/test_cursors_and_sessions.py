"""Cases C and D: cursors, sessions and times, through a real proxy, compared with a mongod."""

import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from support.mongod import ReplicaSet
from support.wire import Wire, message

pytestmark = pytest.mark.integration

RECENT = "recent"
"""Stands for a filter that the fast tier answers."""


@pytest.fixture
def wires(world: Any) -> Iterator[tuple[Wire, Wire, Wire]]:
    """Two connections to the proxy and one to the archive's mongod."""
    port = world.thermocline.port
    direct = world.thermocline.archive.members[0].port
    with Wire(port, 30) as one, Wire(port, 30) as two, Wire(direct, 30) as three:
        yield one, two, three


def lsid() -> dict[str, Any]:
    return {"id": Binary(uuid.uuid4().bytes, 4)}


def recent(world: Any) -> dict[str, Any]:
    """A filter at or above the floor: 20 documents."""
    return {"t": {"$gte": world.oracle.orders.find_one({"_id": 19})["t"]}}


def owners(ask: Any, again: Any, find: dict[str, Any]) -> list[Any]:
    """What the owner's rules answer, for cursors without and with a session."""
    mine, other = lsid(), lsid()
    answers: list[Any] = []

    def opened(**fields: Any) -> Int64:
        return Int64(ask({**find, "batchSize": 2, **fields})["cursor"]["id"])

    def more(cursor: Any, collection: str = find["find"], **fields: Any) -> dict[str, Any]:
        base = {"getMore": cursor, "collection": collection, "batchSize": 2, "$db": find["$db"]}
        return {**base, **fields}

    def note(reply: dict[str, Any]) -> None:
        batch = reply.get("cursor", {}).get("nextBatch")
        answers.append(reply.get("code") or [d["_id"] for d in batch])

    free, bound = opened(), opened(lsid=mine)
    note(ask(more(free, lsid=mine)))
    note(ask(more(bound)))
    note(ask(more(bound, lsid=other)))
    note(ask(more(free, "elsewhere")))
    note(ask(more(int(free) % 1000 or 1)))
    note(ask(more(Int64(987_654_321))))
    note(again(more(bound, lsid=mine)))
    note(again(more(free)))
    note(ask(more(free, maxTimeMS=100)))
    return answers


@pytest.mark.parametrize("route", ["fast", "archive", "untiered"])
def test_c2_a_cursor_is_its_owners(world: Any, wires: tuple[Wire, Wire, Wire], route: str) -> None:
    one, two, direct = wires
    collection = "plain" if route == "untiered" else "orders"
    query = recent(world) if route == "fast" else {}
    find = {"find": collection, "filter": query, "sort": {"t": -1}}
    expected = owners(direct.ask, direct.ask, {**find, "$db": "oracle"})
    assert owners(one.ask, two.ask, {**find, "$db": "shop"}) == expected
    assert expected[:6] == [50736, 50737, 50738, 13, 14, 43]


BATCHES: dict[str, dict[str, Any]] = {
    "size of the result": {"filter": RECENT, "batchSize": 20},
    "one less": {"filter": RECENT, "batchSize": 19},
    "one more": {"filter": RECENT, "batchSize": 21},
    "limit is the batch": {"filter": RECENT, "limit": 5, "batchSize": 5},
    "limit above the batch": {"filter": RECENT, "limit": 6, "batchSize": 5},
    "nothing at first": {"filter": RECENT, "batchSize": 0},
    "single batch": {"filter": RECENT, "batchSize": 5, "singleBatch": True},
    "everything": {"filter": {}, "batchSize": 60},
    "everything, nothing at first": {"filter": {}, "batchSize": 0},
    "single batch of everything": {"filter": {}, "batchSize": 7, "singleBatch": True},
    "default batch": {"filter": {}},
    "negative limit": {"filter": RECENT, "limit": -5},
    "negative batch": {"filter": {}, "batchSize": -5},
    "half a document": {"filter": RECENT, "limit": 5.5},
    "a string": {"filter": RECENT, "limit": "5"},
    "a string as batch": {"filter": {}, "batchSize": "5"},
    "newest first": {"filter": {}, "sort": {"t": -1}, "limit": 10},
    "newest first, in batches": {"filter": {}, "sort": {"t": -1}, "limit": 10, "batchSize": 4},
    "newest first over the floor": {"filter": {}, "sort": {"t": -1}, "limit": 40},
    "by id": {"filter": {"_id": 3}},
    "by id, nothing at first": {"filter": {"_id": 3}, "batchSize": 0},
    "by id, batch of one": {"filter": {"_id": 3}, "batchSize": 1},
    "cold by id, batch of one": {"filter": {"_id": 45}, "batchSize": 1},
    "cold by id, nothing at first": {"filter": {"_id": 45}, "batchSize": 0},
    "absent, nothing at first": {"filter": {"_id": "absent"}, "batchSize": 0},
}


def drained(wire: Wire, command: dict[str, Any]) -> Any:
    """The sizes and ids of all batches, or the code."""
    reply = wire.ask(command)
    if not reply["ok"]:
        return reply["code"]
    batches = [[d["_id"] for d in reply["cursor"]["firstBatch"]]]
    while cursor := reply["cursor"]["id"]:
        more = {"getMore": Int64(cursor), "collection": command["find"], "$db": command["$db"]}
        reply = wire.ask({**more, "batchSize": 6})
        batches.append([d["_id"] for d in reply["cursor"]["nextBatch"]])
    return batches


@pytest.mark.parametrize("name", BATCHES)
def test_c3_batches_end_where_mongod_ends_them(
    world: Any, wires: tuple[Wire, Wire, Wire], name: str
) -> None:
    one, _, direct = wires
    fields = dict(BATCHES[name])
    if fields["filter"] == RECENT:
        fields["filter"] = recent(world)
    command = {"find": "orders", "sort": {"t": -1}, **fields}
    if "_id" in fields["filter"]:
        del command["sort"]
    expected = drained(direct, {**command, "$db": "oracle"})
    assert drained(one, {**command, "$db": "shop"}) == expected


def test_c3_a_time_limit_on_get_more_is_for_tailable_cursors(
    wires: tuple[Wire, Wire, Wire],
) -> None:
    one, _, direct = wires
    for wire, database in ((one, "shop"), (direct, "oracle")):
        cursor = wire.ask({"find": "orders", "batchSize": 2, "$db": database})["cursor"]["id"]
        more = {"getMore": Int64(cursor), "collection": "orders", "maxTimeMS": 100}
        assert wire.ask({**more, "$db": database})["code"] == 2


@pytest.mark.parametrize("query", [RECENT, {}], ids=["fast", "archive"])
def test_c5_ending_a_session_leaves_its_cursors_and_killing_it_ends_them(
    world: Any, wires: tuple[Wire, Wire, Wire], query: Any
) -> None:
    one, two, _ = wires
    session = lsid()
    find = {"find": "orders", "filter": recent(world) if query == RECENT else query}
    cursor = one.ask({**find, "batchSize": 2, "lsid": session, "$db": "shop"})["cursor"]["id"]
    more = {"getMore": Int64(cursor), "collection": "orders", "batchSize": 2, "lsid": session}
    assert one.ask({"refreshSessions": [session], "$db": "admin"})["ok"] == 1
    assert two.ask({"endSessions": [session], "$db": "admin"})["ok"] == 1
    assert len(one.ask({**more, "$db": "shop"})["cursor"]["nextBatch"]) == 2
    assert two.ask({"killSessions": [session], "$db": "admin"})["ok"] == 1
    assert one.ask({**more, "$db": "shop"})["code"] in (43, 237)


def test_c7_tailable_cursors_need_a_capped_collection_and_stay_where_they_are(
    world: Any, wires: tuple[Wire, Wire, Wire]
) -> None:
    one, two, direct = wires
    for wire, database in ((one, "shop"), (direct, "oracle")):
        for collection in ("orders", "plain"):
            find: dict[str, Any] = {"find": collection, "$db": database}
            assert wire.ask({**find, "tailable": True})["code"] == 2
            assert wire.ask({**find, "awaitData": True})["code"] == 9
    world.client.shop.create_collection("capped", capped=True, size=65_536)
    world.client.shop.capped.insert_one({"_id": 0})
    find = {"find": "capped", "tailable": True, "awaitData": True, "$db": "shop"}
    cursor = one.ask(find)["cursor"]["id"]
    more = {"getMore": Int64(cursor), "collection": "capped", "maxTimeMS": 2_000, "$db": "shop"}
    two.send(message(more))
    assert one.ask({"find": "orders", "filter": {"_id": 3}, "$db": "shop"})["ok"] == 1
    world.client.shop.capped.insert_one({"_id": 1})
    assert [d["_id"] for d in two.receive()[2]["cursor"]["nextBatch"]] == [1]
    world.client.shop.capped.drop()


def test_d4_a_barrier_waits_for_its_own_mark_and_not_for_other_writers(world: Any) -> None:
    """Each read waits for the writes before it; those that others go on making don't put it off."""
    stop = threading.Event()

    def write() -> None:
        with world.thermocline.client() as client:
            number = 0
            while not stop.is_set():
                number += 1
                client.shop.strict.update_one({"_id": "hot"}, {"$set": {"price": number}})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        took = []
        for number in range(12):
            world.shop.orders.update_one({"_id": 5}, {"$set": {"mark": number}})
            started = time.monotonic()
            assert world.shop.orders.count_documents({"mark": number}) == 1
            took.append(time.monotonic() - started)
    finally:
        stop.set()
        writer.join()
        world.shop.orders.update_one({"_id": 5}, {"$unset": {"mark": 1}})
    assert statistics.median(took) < 1.0, took


def test_d5_a_write_that_changed_nothing_is_not_waited_for(world: Any) -> None:
    orders = world.shop.orders
    for _ in range(3):
        hot = orders.find_one({"_id": 4})
        assert orders.update_one({"_id": 4}, {"$set": {"v": hot["v"]}}).modified_count == 0
        assert orders.update_one({"_id": "absent"}, {"$set": {"v": 1}}).matched_count == 0
        assert orders.delete_one({"_id": "absent"}).deleted_count == 0
        assert orders.delete_many({"v": "absent"}).deleted_count == 0
        started = time.monotonic()
        assert orders.count_documents({}) == 60
        assert time.monotonic() - started < 3.0


def test_d8_what_the_driver_left_out_is_not_put_in(world: Any) -> None:
    """``w: 0`` comes without a session, and reaches the server without one."""
    with Wire(world.thermocline.port) as wire:
        write = {"writeConcern": {"w": 0}, "$db": "quiet"}
        world.direct.quiet.command("profile", 2)
        try:
            wire.send(message({"insert": "c", "documents": [{"_id": 1}], **write}, flags=2))
            assert wire.ask({"count": "c", "$db": "quiet"})["n"] == 1
        finally:
            world.direct.quiet.command("profile", 0)
    entries = list(world.direct.quiet.system.profile.find({"op": "insert"}))
    assert entries
    assert all("lsid" not in e["command"] and "txnNumber" not in e["command"] for e in entries)
    world.direct.drop_database("quiet")


@pytest.fixture(scope="module")
def ahead(world: Any) -> MongoClient[dict[str, Any]]:
    """The archive's clock pushed ahead: from here on, one of its times is a time of the future in F."""
    archive: ReplicaSet = world.thermocline.archive
    archive.push_clock(100)
    client: MongoClient[dict[str, Any]] = world.direct
    return client


def test_d2_a_session_reads_its_own_writes_on_both_tiers(
    world: Any, ahead: MongoClient[dict[str, Any]]
) -> None:
    orders = world.shop.orders
    with world.client.start_session(causal_consistency=True) as session:
        for number in range(5):
            orders.insert_one({"_id": f"own {number}", "v": "own"}, session=session)
            assert orders.find_one({"_id": 40 + number}, session=session)["v"] == 40 + number
            assert orders.count_documents({"v": "own"}, session=session) == number + 1
            world.shop.plain.insert_one({"_id": f"own {number}"}, session=session)
            assert world.shop.plain.find_one({"_id": f"own {number}"}, session=session)
            assert world.shop.products.find_one({"_id": number}, session=session)
        assert orders.delete_many({"v": "own"}, session=session).deleted_count == 5
        assert orders.count_documents({"v": "own"}, session=session) == 0
    world.shop.plain.delete_many({"_id": {"$regex": "^own"}})


def test_d9_errors_carry_no_time_of_the_archive(
    world: Any, ahead: MongoClient[dict[str, Any]]
) -> None:
    limit = world.fast.admin.command("ping")["operationTime"].time + 50
    shop = world.shop
    attempts: dict[str, Any] = {
        "unknown command": lambda: shop.command("bogus"),
        "refused": lambda: shop.command("convertToCapped", "orders", size=4096),
        "closed database": lambda: world.client.thermocline.tiered.find_one(),
        "archive, untiered": lambda: shop.plain.insert_one({"_id": 1}),
        "archive, filter": lambda: shop.plain.find_one({"$bad": 1}),
        "archive behind the barrier": lambda: list(shop.orders.find({"$bad": 1})),
        "fast": lambda: shop.orders.insert_one({"_id": 45}),
        "no such cursor": lambda: shop.command("getMore", Int64(123_456_789), collection="plain"),
    }
    for name, attempt in attempts.items():
        with pytest.raises(OperationFailure) as caught:
            attempt()
        details = caught.value.details or {}
        for time_shown in (details.get("operationTime"), _cluster_time(details)):
            assert time_shown is None or time_shown.time <= limit, (name, details)


def _cluster_time(details: Any) -> Any:
    return (details.get("$clusterTime") or {}).get("clusterTime")


def test_m33_an_untiered_read_then_a_write_to_the_fast_tier_in_one_session(
    world: Any, ahead: MongoClient[dict[str, Any]]
) -> None:
    with world.client.start_session(causal_consistency=True) as session:
        for number in range(5):
            assert world.shop.plain.find_one({"_id": number}, session=session)
            world.shop.orders.update_one({"_id": 2}, {"$set": {"m": number}}, session=session)
            found = world.shop.orders.find_one({"_id": 2}, session=session)
            assert found is not None
            assert found["m"] == number
        world.shop.orders.update_one({"_id": 2}, {"$unset": {"m": 1}}, session=session)


def test_d1_a_token_of_the_archive_itself_does_no_harm(
    world: Any, ahead: MongoClient[dict[str, Any]]
) -> None:
    """A client that spoke to the archive directly before, and keeps its cluster time."""
    with ahead.start_session() as direct:
        ahead.oracle.plain.find_one({}, session=direct)
        cluster_time, operation_time = direct.cluster_time, direct.operation_time
    assert cluster_time is not None
    assert operation_time is not None
    orders = world.shop.orders
    with world.client.start_session(causal_consistency=True) as session:
        session.advance_cluster_time(cluster_time)
        for _ in range(2):
            assert orders.find_one({"_id": 3}, session=session)["v"] == 3
            assert orders.find_one({"_id": 45}, session=session)["v"] == 45
            assert orders.count_documents({}, session=session) == 60
            assert len(list(orders.find({}, batch_size=7, session=session))) == 60
            assert len(list(orders.find(recent(world), batch_size=7, session=session))) == 20
            assert world.shop.plain.find_one({"_id": 3}, session=session)
            assert len(list(world.shop.plain.find({}, batch_size=7, session=session))) == 60
            orders.update_one({"_id": 3}, {"$set": {"v": 3}}, session=session)
            orders.update_one({"_id": 45}, {"$set": {"v": 45}}, session=session)
            world.shop.plain.update_one({"_id": 3}, {"$set": {"v": 3}}, session=session)
    time_of_f = world.fast.admin.command("ping")["$clusterTime"]["clusterTime"]
    assert time_of_f.time < operation_time.time - 20, "F's clock wasn't moved by it"

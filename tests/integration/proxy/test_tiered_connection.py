"""Tiered and untiered statements over the same connections: nothing crosses from one tier to the other."""

import datetime as dt
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from support.wire import Wire, message

pytestmark = pytest.mark.integration

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
DOCUMENTS = [{"_id": n, "t": NOW - dt.timedelta(days=n), "v": n} for n in range(60)]


@pytest.fixture(scope="module")
def tiered(mongod_binary: str) -> Iterator[Thermocline]:
    collections = [{"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"}]
    with ReplicaSet("fast") as fast, ReplicaSet("archive") as archive:
        with archive.client() as client:
            client.shop.orders.create_index("t")
            client.shop.orders.insert_many(DOCUMENTS)
            client.shop.plain.insert_many([{"_id": n} for n in range(60)])
        thermocline = Thermocline(fast, archive, collections)
        with thermocline, thermocline.logs_on_failure():
            thermocline.wait_state("Active")
            wait_until(
                "warm", lambda: (thermocline.coverage("shop.orders") or {}).get("floor"), 60, 0.2
            )
            yield thermocline


def routes(thermocline: Thermocline) -> dict[str, Any]:
    found: dict[str, Any] = thermocline.services["proxy"].status()["proxy"]["routes"]
    return found


def test_point_reads_take_the_short_path_and_misses_the_long_one(tiered: Thermocline) -> None:
    with tiered.client() as client:
        orders = client.shop.orders
        orders.find_one({"_id": 1})
        before = routes(tiered)["fast"]["point-id"]
        for _ in range(20):
            for number in (1, 2, 3):
                assert orders.find_one({"_id": number}) == DOCUMENTS[number]
        assert routes(tiered)["fast"]["point-id"] == before + 60
        own = tiered.services["proxy"].status()["proxy"]["namespaces"]["shop.orders"]
        assert own["fast"] >= 60
        assert orders.find_one({"_id": 59}) == DOCUMENTS[59]
        assert orders.find_one({"_id": "nowhere"}) is None
        own = tiered.services["proxy"].status()["proxy"]["namespaces"]["shop.orders"]
        assert own["archive"]["fast-miss"] >= 1
        assert orders.find_one({"_id": 1}, {"v": 1}) == {"_id": 1, "v": 1}


def test_cursors_of_both_tiers_interleave_on_one_connection(tiered: Thermocline) -> None:
    recent = {"t": {"$gte": NOW - dt.timedelta(days=20)}}
    commands = {
        "fast": {"find": "orders", "filter": recent, "batchSize": 3, "$db": "shop"},
        "archive": {"find": "orders", "filter": {}, "batchSize": 3, "$db": "shop"},
        "untiered": {"find": "plain", "filter": {}, "batchSize": 3, "$db": "shop"},
    }
    with Wire(tiered.port) as wire:
        batches: dict[str, list[Any]] = {}
        cursors = {}
        for name, command in commands.items():
            cursor = wire.ask(command)["cursor"]
            batches[name] = cursor["firstBatch"]
            cursors[name] = (cursor["id"], command["find"])
        while cursors:
            for name, (cursor_id, collection) in list(cursors.items()):
                more = {"getMore": Int64(cursor_id), "collection": collection, "batchSize": 3}
                cursor = wire.ask({**more, "$db": "shop"})["cursor"]
                batches[name] += cursor["nextBatch"]
                if not cursor["id"]:
                    del cursors[name]
    assert {name: len(batch) for name, batch in batches.items()} == {
        "fast": 21,
        "archive": 60,
        "untiered": 60,
    }


def test_unacknowledged_writes_do_what_acknowledged_ones_do(tiered: Thermocline) -> None:
    with tiered.client() as client:
        quiet = client.shop.get_collection("orders", write_concern=WriteConcern(w=0))
        orders = client.shop.orders
        quiet.update_one({"_id": 55}, {"$set": {"quiet": 1}})  # in the archive alone
        quiet.insert_one({"_id": "quiet", "t": NOW})
        wait_until("inserted", lambda: orders.find_one({"_id": "quiet"}) is not None, 10)
        wait_until("updated", lambda: (orders.find_one({"_id": 55}) or {}).get("quiet") == 1, 10)
        quiet.delete_one({"_id": "quiet"})
        wait_until("deleted", lambda: orders.find_one({"_id": "quiet"}) is None, 10)
        orders.update_one({"_id": 55}, {"$unset": {"quiet": 1}})
    with Wire(tiered.port) as wire:
        update = {"q": {"_id": 54}, "u": {"$inc": {"once": 1}}}
        answer = wire.ask(
            {"update": "orders", "updates": [update], "writeConcern": {"w": 0}, "$db": "shop"}
        )
        assert (answer["n"], answer["ok"]) == (0, 1)
        found = wire.ask({"find": "orders", "filter": {"_id": 54}, "$db": "shop"})
        assert found["cursor"]["firstBatch"][0]["once"] == 1
        unset = {"q": {"_id": 54}, "u": {"$unset": {"once": 1}}}
        # With j, MongoDB acknowledges all the same.
        concern = {"w": 0, "j": True}
        answer = wire.ask(
            {"update": "orders", "updates": [unset], "writeConcern": concern, "$db": "shop"}
        )
        assert (answer["n"], answer["nModified"], answer["ok"]) == (1, 1, 1)


def test_what_two_tiers_cannot_do_is_refused_with_what_to_do(tiered: Thermocline) -> None:
    with tiered.client() as client:
        orders = client.shop.orders

        expected: dict[str, tuple[Callable[[], Any], int]] = {
            "rename": (lambda: orders.rename("other"), 115),
            "rename onto": (lambda: client.shop.plain.rename("orders", dropTarget=True), 115),
            "capped": (lambda: client.shop.command("convertToCapped", "orders", size=10**5), 115),
            "clone": (
                lambda: client.shop.command(
                    "cloneCollectionAsCapped", "orders", toCollection="small", size=10**5
                ),
                115,
            ),
            "out": (lambda: list(client.shop.plain.aggregate([{"$out": "orders"}])), 20),
            "merge": (lambda: list(client.shop.plain.aggregate([{"$merge": "orders"}])), 20),
        }
        for name, (attempt, code) in expected.items():
            with pytest.raises(OperationFailure) as caught:
                attempt()
            assert caught.value.code == code, (name, caught.value)
        assert orders.count_documents({}) == 60


def test_other_databases_may_be_dropped_and_renamed(tiered: Thermocline) -> None:
    with tiered.client() as client:
        client.other.a.insert_one({"_id": 1})
        client.other.a.rename("b")
        assert client.other.b.find_one() == {"_id": 1}
        client.shop.create_collection("extra")
        client.shop.extra.drop()
        client.drop_database("other")
        assert "other" not in client.list_database_names()


def test_a_view_is_as_fresh_as_its_collection(tiered: Thermocline) -> None:
    with tiered.client() as client:
        started = time.monotonic()
        client.shop.command(
            "create", "recent", viewOn="orders", pipeline=[{"$match": {"v": {"$gte": 0}}}]
        )
        assert time.monotonic() - started >= 0.5, "every proxy knows the view when it may be used"
        for number in range(10):
            client.shop.orders.insert_one({"_id": f"view {number}", "v": 1, "t": NOW})
            assert client.shop.recent.count_documents({}) == 61 + number
        client.shop.orders.delete_many({"_id": {"$regex": "^view"}})
        assert client.shop.recent.count_documents({}) == 60
        joined = [
            {"$lookup": {"from": "recent", "localField": "_id", "foreignField": "_id", "as": "o"}}
        ]
        client.shop.orders.insert_one({"_id": "joined", "v": 2, "t": NOW})
        client.shop.plain.insert_one({"_id": "joined"})
        found = list(client.shop.plain.aggregate([{"$match": {"_id": "joined"}}, *joined]))
        assert [d["v"] for d in found[0]["o"]] == [2]
        client.shop.orders.delete_one({"_id": "joined"})
        client.shop.recent.drop()
        # A view that comes to read it by another pipeline alone.
        client.shop.command("create", "mixed", viewOn="plain", pipeline=[])
        started = time.monotonic()
        client.shop.command("collMod", "mixed", pipeline=[{"$unionWith": "orders"}])
        assert time.monotonic() - started >= 0.5
        for number in range(10):
            client.shop.orders.insert_one({"_id": f"mixed {number}", "v": 3, "t": NOW})
            assert client.shop.mixed.count_documents({"v": 3, "_id": f"mixed {number}"}) == 1
        client.shop.orders.delete_many({"_id": {"$regex": "^mixed"}})
        client.shop.mixed.drop()


def test_pipelined_statements_of_both_tiers_are_answered_in_order(tiered: Thermocline) -> None:
    commands = []
    for number in range(30):
        commands += [
            message({"find": "orders", "filter": {"_id": number}, "$db": "shop"}),
            message({"find": "plain", "filter": {"_id": number}, "$db": "shop"}),
            message({"count": "orders", "query": {"v": number}, "$db": "shop"}),
        ]
    with Wire(tiered.port, 60) as wire:
        wire.send(b"".join(commands))
        for number in range(30):
            assert wire.receive()[2]["cursor"]["firstBatch"][0]["v"] == number
            assert wire.receive()[2]["cursor"]["firstBatch"] == [{"_id": number}]
            assert wire.receive()[2]["n"] == 1

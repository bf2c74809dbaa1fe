"""Cases E, G and M: what is read and written through a real proxy, compared with one mongod."""

import datetime as dt
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import DuplicateKeyError, OperationFailure, WriteError

from support.processes import wait_until
from support.services import Manifest, ServiceProcess
from support.wire import Wire
from thermocline_common import names

pytestmark = pytest.mark.integration


def both(world: Any, act: Callable[[Any], Any]) -> Any:
    """Do the same on the tiered database and on the oracle; the outcome, which must be equal."""
    outcomes = []
    for database in (world.oracle, world.shop):
        try:
            outcomes.append(act(database))
        except OperationFailure as error:
            outcomes.append((type(error).__name__, error.code))
            print(error, world.thermocline.services["feeder"].status()["feeder"]["quarantine"])
    assert outcomes[1] == outcomes[0]
    return outcomes[0]


def ids(cursor: Any) -> list[Any]:
    return [document["_id"] for document in cursor]


def days_old(world: Any, number: int) -> dt.datetime:
    found: dt.datetime = world.oracle.orders.find_one({"_id": number})["t"]
    return found


# Reads

LOOKUP = {"from": "products", "localField": "product", "foreignField": "_id", "as": "p"}
ORDERS_OF = {"from": "orders", "localField": "_id", "foreignField": "product", "as": "o"}
PIPELINES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "lookup from old and new": ("orders", [{"$lookup": LOOKUP}, {"$sort": {"_id": 1}}]),
    "lookup into old and new": ("products", [{"$lookup": ORDERS_OF}, {"$sort": {"_id": 1}}]),
    "lookup from untiered": ("plain", [{"$lookup": LOOKUP}, {"$sort": {"_id": 1}}]),
    "lookup into a pipeline": (
        "products",
        [
            {
                "$lookup": {
                    "from": "orders",
                    "let": {"p": "$_id"},
                    "pipeline": [
                        {"$match": {"$expr": {"$eq": ["$product", "$$p"]}}},
                        {"$sort": {"_id": 1}},
                    ],
                    "as": "o",
                }
            },
            {"$sort": {"_id": 1}},
        ],
    ),
    "union": (
        "products",
        [{"$unionWith": {"coll": "orders"}}, {"$group": {"_id": None, "n": {"$sum": 1}}}],
    ),
    "graph": (
        "products",
        [
            {
                "$graphLookup": {
                    "from": "products",
                    "startWith": "$parent",
                    "connectFromField": "parent",
                    "connectToField": "_id",
                    "as": "up",
                }
            },
            {"$project": {"n": {"$size": "$up"}}},
            {"$sort": {"_id": 1}},
        ],
    ),
    "facet": (
        "orders",
        [
            {
                "$facet": {
                    "low": [{"$match": {"v": {"$lt": 40}}}, {"$count": "n"}],
                    "joined": [{"$lookup": LOOKUP}, {"$match": {"p.title": "Product 3"}}, {"$count": "n"}],
                }
            }
        ],
    ),
    "near": (
        "orders",
        [
            {"$geoNear": {"near": [5.9, 5.9], "distanceField": "d", "key": "place"}},
            {"$limit": 1},
            {"$project": {"_id": 1}},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
def test_g12_joins_see_both_tiers(world: Any, name: str) -> None:
    collection, pipeline = PIPELINES[name]
    both(world, lambda database: _unordered(database[collection].aggregate(pipeline)))


def _unordered(documents: Any) -> Any:
    """Arrays of joins have no order of their own."""
    found = list(documents)
    for document in found:
        for field in ("p", "o", "up"):
            if field in document:
                document[field].sort(key=lambda d: d["_id"])
    return found


def test_g12_a_copy_of_a_tiered_collection_is_whole_and_none_can_be_made_into_one(
    world: Any,
) -> None:
    orders = world.shop.orders
    orders.insert_one({"_id": "fresh", "t": days_old(world, 0)})
    list(orders.aggregate([{"$match": {"v": {"$ne": -1}}}, {"$out": "copied"}]))
    assert world.shop.copied.count_documents({}) == 61
    list(orders.aggregate([{"$merge": {"into": "copied", "whenMatched": "replace"}}]))
    assert world.shop.copied.count_documents({}) == 61
    world.shop.copied.drop()
    orders.delete_one({"_id": "fresh"})
    for stage in ({"$out": "orders"}, {"$merge": "orders"}, {"$out": "products"}):
        with pytest.raises(OperationFailure) as caught:
            list(world.shop.plain.aggregate([stage]))
        assert caught.value.code == 20
        assert "tiered" in str(caught.value)


def test_g14_counts_and_statistics(world: Any) -> None:
    orders = world.shop.orders
    orders.insert_one({"_id": "fresh", "t": days_old(world, 0), "v": "fresh"})
    world.oracle.orders.insert_one({"_id": "fresh", "t": days_old(world, 0), "v": "fresh"})
    recent = {"t": {"$gte": days_old(world, 10)}}
    try:
        both(world, lambda database: database.command("count", "orders")["n"])
        both(world, lambda database: database.command("count", "orders", query=recent)["n"])
        both(world, lambda database: database.orders.count_documents({}))
        both(world, lambda database: database.orders.count_documents(recent))
        both(world, lambda database: database.orders.estimated_document_count())
        both(world, lambda database: sorted(map(str, database.orders.distinct("v"))))
        both(world, lambda database: database.orders.distinct("v", recent))
        both(world, lambda database: database.command("collStats", "orders")["count"])
        both(world, lambda database: database.command("collStats", "orders")["nindexes"])
        both(world, lambda database: database.command("validate", "orders")["nrecords"])
        both(world, lambda database: sorted(database.orders.index_information()))
        assert world.shop.command("dbStats")["collections"] >= 4
        assert set(names_of(world.shop)) >= {"orders", "products", "strict", "plain"}
    finally:
        for database in (world.shop, world.oracle):
            database.orders.delete_one({"_id": "fresh"})


def names_of(database: Any) -> list[str]:
    found: list[str] = database.list_collection_names()
    return found


def _deep(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_deep(inner, key) for inner in value.values())
    return isinstance(value, list) and any(_deep(inner, key) for inner in value)


def test_g15_explain_goes_where_the_command_goes(world: Any) -> None:
    fast = world.thermocline.fast.members[0].port
    archive = world.thermocline.archive.members[0].port
    recent = {"t": {"$gte": days_old(world, 10)}}
    plan: dict[str, Any] = {}
    for query, port in ((recent, fast), ({}, archive), ({"v": 3}, archive)):
        before = world.shop.orders.count_documents({})
        # A stalled machine renews a short lease late, and meanwhile all goes to the archive.
        for _ in range(20):
            plan = world.shop.command("explain", {"find": "orders", "filter": query})
            if plan["serverInfo"]["port"] == port:
                break
            time.sleep(0.5)
        assert plan["serverInfo"]["port"] == port, plan["serverInfo"]
        update = {"update": "orders", "updates": [{"q": query, "u": {"$set": {"no": 1}}}]}
        world.shop.command("explain", update, verbosity="executionStats")
        assert world.shop.orders.count_documents({"no": 1}) == 0, "an explanation executes nothing"
        assert world.shop.orders.count_documents({}) == before
    assert (
        "thermocline" in json.dumps(plan["serverInfo"], default=str).lower()
        or "tier" in plan["serverInfo"]
    )


FINDS: dict[str, dict[str, Any]] = {
    "near, one": {"filter": {"place": {"$near": [5.9, 5.9]}}, "limit": 1},
    "near, covered, one": {"filter": {"t": "RECENT", "place": {"$near": [5.9, 5.9]}}, "limit": 1},
    "partial index": {"filter": {"name": "Name 3", "v": {"$gte": 50}}, "hint": "old_names"},
    "partial index, covered age": {"filter": {"t": "RECENT", "name": "Name 3"}, "hint": "old_names"},
    "sparse unique key": {"filter": {"k": "key 45"}, "limit": 1},
    "unique key, another case": {
        "filter": {"k": "KEY 45"}, "limit": 1, "collation": {"locale": "en", "strength": 2},
    },
    "id, another collation": {
        "filter": {"_id": 45}, "collation": {"locale": "en", "strength": 2},
    },
    "multikey": {"filter": {"tags": 2, "v": {"$gte": 25}}, "sort": {"_id": 1}},
    "one of many, skipped": {"filter": {"v": {"$gte": 58}}, "limit": 1, "skip": 1, "sort": {"v": 1}},
    "unknown hint": {"filter": {"t": "RECENT"}, "hint": "nowhere"},
    "natural": {"filter": {"v": {"$gte": 58}}, "hint": {"$natural": 1}},
    "negated": {"filter": {"t": {"$not": {"$lt": "RECENT"}}}, "sort": {"_id": 1}},
    "expression": {"filter": {"$expr": {"$gte": ["$t", "RECENT"]}}, "sort": {"_id": 1}},
    "min": {"filter": {}, "hint": {"t": 1}, "min": {"t": "RECENT"}, "sort": {"t": 1}},
}  # fmt: skip


@pytest.mark.parametrize("name", FINDS)
def test_m17_what_the_fast_tier_could_not_prove_is_never_its_own_answer(
    world: Any, name: str
) -> None:
    cutoff = days_old(world, 10)

    def filled(value: Any, inside: bool = False) -> Any:
        if value == "RECENT":
            return cutoff if inside else {"$gte": cutoff}
        if isinstance(value, dict):
            return {
                k: filled(v, inside or k.startswith("$") or k in ("min",)) for k, v in value.items()
            }
        return [filled(v, inside) for v in value] if isinstance(value, list) else value

    command = {"find": "orders", **filled(FINDS[name])}
    both(world, lambda database: ids(database.command(command)["cursor"]["firstBatch"]))


@pytest.mark.parametrize("level", ["local", "available", "majority", "linearizable"])
def test_g23_every_read_concern_sees_both_tiers(world: Any, level: str) -> None:
    for query in (
        {"_id": 3},
        {"_id": 45},
        {"v": {"$gte": 25}},
        {"t": {"$gte": days_old(world, 10)}},
    ):
        find = {"find": "orders", "filter": query, "readConcern": {"level": level}}
        command = {**find, "sort": {"_id": 1}, "maxTimeMS": 20_000}

        def first(database: Any, command: dict[str, Any] = command) -> list[Any]:
            return ids(database.command(command)["cursor"]["firstBatch"])

        both(world, first)


def test_g22_empty_tags_mean_any_member_and_tags_of_nobody_none(world: Any) -> None:
    with Wire(world.thermocline.port, 30) as wire:
        find: dict[str, Any] = {}
        any_member: tuple[list[dict[str, str]], ...] = ([], [{}], [{"dc": "none"}, {}])
        for number in (3, 45):
            find = {"find": "orders", "filter": {"_id": number}, "$db": "shop"}
            for tags in any_member:
                preference = {"mode": "secondaryPreferred", "tags": tags}
                reply = wire.ask({**find, "$readPreference": preference})
                assert ids(reply["cursor"]["firstBatch"]) == [number]
        nobody = {"mode": "nearest", "tags": [{"dc": "none"}]}
        reply = wire.ask({**find, "$readPreference": nobody, "maxTimeMS": 500})
        assert (reply["ok"], reply["code"]) == (0, 50), "the client's own time ran out first"
        reply = wire.ask({**find, "$readPreference": nobody})
        assert (reply["ok"], reply["code"]) == (0, 133), "as a mongos answers"
        assert reply["codeName"] == "FailedToSatisfyReadPreference"
        shown = '{ mode: "nearest", tags: [ { dc: "none" } ] }'
        name = f"Could not find host matching read preference {shown} for set fast"
        assert reply["errmsg"] == name


# Writes


def test_e8_replies_have_the_shape_of_a_mongods(world: Any) -> None:
    """Fields and counts, at the first time and at the second, for hot and cold documents."""
    for number in (6, 46):
        commands: list[dict[str, Any]] = [
            {"update": "orders", "updates": [{"q": {"_id": number}, "u": {"$inc": {"e": 1}}}]},
            {"update": "orders", "updates": [{"q": {"_id": "no"}, "u": {"$set": {"e": 1}}}]},
            {"update": "orders", "updates": [{"q": {"_id": 45}, "u": {"$set": {"v": 45}}}]},
            {"insert": "orders", "documents": [{"_id": f"e8 {number}"}]},
            {"insert": "orders", "documents": [{"_id": number}]},
            {"delete": "orders", "deletes": [{"q": {"_id": f"e8 {number}"}, "limit": 1}]},
            {"findAndModify": "orders", "query": {"_id": number}, "update": {"$unset": {"e": 1}}},
            {"findAndModify": "orders", "query": {"_id": "no"}, "update": {"$set": {"e": 1}}},
        ]
        with (
            Wire(world.thermocline.port, 30) as through,
            Wire(world.thermocline.archive.members[0].port, 30) as direct,
        ):
            for position, command in enumerate(commands):
                # Not the same session on both: the proxy looks up in the archive what was executed there.
                one, other = (
                    {"lsid": {"id": Binary(uuid.uuid4().bytes, 4)}, "txnNumber": Int64(position)}
                    for _ in range(2)
                )
                for _ in range(2):
                    expected = direct.ask({**command, **one, "$db": "oracle"})
                    got = through.ask({**command, **other, "$db": "shop"})
                    assert got.keys() == expected.keys(), (command, got, expected)
                    for field in ("n", "nModified", "retriedStmtIds", "retriedStmtId", "ok"):
                        assert got.get(field) == expected.get(field), (command, field)


def test_g19_an_id_that_only_the_archive_has_in_another_type(world: Any) -> None:
    for same in (5.0, 45, 45.0, Int64(45), Decimal128("45"), Decimal128("45.00")):

        def insert(database: Any, same: Any = same) -> Any:
            return database.orders.insert_one({"_id": same, "t": days_old(world, 0)}).inserted_id

        assert both(world, insert) == ("DuplicateKeyError", 11000)
    with pytest.raises(DuplicateKeyError):
        world.shop.orders.insert_one({"_id": "other", "k": "key 47"})
    assert world.shop.orders.count_documents({}) == 60


def test_g20_writes_over_both_tiers(world: Any) -> None:
    def work(database: Any) -> list[Any]:
        orders = database.orders
        up = orders.update_one({"_id": 48}, {"$set": {"g": 1}}, upsert=True)
        return [
            (up.matched_count, up.modified_count, up.upserted_id),
            orders.find_one_and_update(
                {}, {"$set": {"g": 2}}, sort=[("t", 1)], return_document=ReturnDocument.AFTER
            ),
            orders.find_one_and_update({"v": {"$gte": 57}}, {"$set": {"g": 3}}, sort=[("v", 1)]),
            orders.update_many({"v": {"$gte": 25, "$lt": 35}}, {"$set": {"g": 4}}).modified_count,
            orders.update_many({"g": {"$exists": True}}, {"$unset": {"g": 1}}).modified_count,
            orders.insert_many([{"_id": f"g20 {n}", "t": days_old(world, n)} for n in (1, 59)])
            .inserted_ids,
            orders.delete_many({"_id": {"$regex": "^g20"}}).deleted_count,
            list(orders.find({}).sort("_id", 1)),
        ]  # fmt: skip

    both(world, work)


def test_m12_a_point_read_whose_filter_only_the_old_version_matches(world: Any) -> None:
    orders = world.shop.orders
    orders.insert_one({"_id": "m12", "status": "new", "t": days_old(world, 1)})
    world.thermocline.wait_applied()
    for number in range(20):
        orders.update_one({"_id": "m12"}, {"$set": {"status": f"done {number}"}})
        assert orders.find_one({"_id": "m12", "status": "new"}) is None
        assert orders.find_one({"_id": "m12", "status": f"done {number - 1}"}) is None
    orders.delete_one({"_id": "m12"})


def test_m19_a_document_older_than_its_validator_is_promoted(world: Any) -> None:
    def mended(database: Any) -> Any:
        return database.strict.update_one({"_id": "old"}, {"$set": {"price": 1}}).matched_count

    def still_bad(database: Any) -> Any:
        return database.strict.update_one({"_id": "other"}, {"$set": {"x": 1}}).matched_count

    def deleted(database: Any) -> Any:
        return database.strict.delete_one({"_id": "other"}).deleted_count

    assert both(world, still_bad) == (WriteError.__name__, 121)
    assert both(world, mended) == 1
    assert both(world, deleted) == 1
    assert world.fast.shop.strict.find_one({"_id": "old"})["price"] == 1
    both(world, lambda database: ids(database.strict.find({}).sort("_id", 1)))


def test_m25_an_empty_timestamp_stays_empty_on_its_way(world: Any) -> None:
    """Cold, then promoted by a write, then replayed: always the same bytes."""
    orders, literal = world.direct.shop.orders, bson.Timestamp(0, 0)
    pipeline = [
        {"$replaceWith": {"$literal": {"_id": "m25", "ts": literal, "t": days_old(world, 50)}}}
    ]
    # As a document that was there before the collection was tiered: written to the archive.
    orders.update_one({"_id": "m25"}, pipeline, upsert=True)
    assert world.shop.orders.update_one({"_id": "m25"}, {"$set": {"x": 1}}).modified_count == 1
    assert world.fast.shop.orders.find_one({"_id": "m25"})["ts"] == literal
    world.thermocline.wait_applied()
    assert orders.find_one({"_id": "m25"})["ts"] == literal
    assert world.shop.orders.delete_one({"_id": "m25"}).deleted_count == 1


def test_m8_a_proxy_whose_file_lists_nothing_yet(world: Any) -> None:
    thermocline = world.thermocline
    spec = {**thermocline.manifest.spec, "collections": []}
    other = Manifest(thermocline.directory / "older.yaml", spec)
    port = thermocline.make_service("proxy", "other").listen
    proxy = ServiceProcess("proxy", other.path, thermocline.directory, listen=port, label="older")
    proxy.start()
    try:
        proxy.wait_ready()
        with MongoClient[dict[str, Any]]("127.0.0.1", port) as client:
            orders = client.shop.orders
            orders.insert_one({"_id": "m8", "t": days_old(world, 0)})
            assert world.fast.shop.orders.find_one({"_id": "m8"}) is not None
            orders.update_one({"_id": 49}, {"$set": {"m8": 1}})
            assert world.fast.shop.orders.find_one({"_id": 49})["m8"] == 1
            assert orders.count_documents({"m8": 1}) == 1
            orders.update_one({"_id": 49}, {"$unset": {"m8": 1}})
            orders.delete_one({"_id": "m8"})
        assert world.shop.orders.count_documents({}) == 60
    finally:
        proxy.terminate()


def test_m36_f_restored_from_a_backup_while_the_feeder_is_down(world: Any) -> None:
    """The proxies notice by themselves, before the first wrong answer; untiered ones go on."""
    thermocline = world.thermocline
    feeder = thermocline.services["feeder"]
    feeder.terminate()
    markers = world.fast[names.DATABASE][names.MARKERS]
    marker = markers.find_one({"_id": names.EPOCH_MARKER_ID})
    assert marker is not None
    # What a backup brings back: the counter of then, and the documents of then.
    markers.update_one({"_id": names.EPOCH_MARKER_ID}, {"$set": {"counter": Int64(0)}})
    world.fast.shop.orders.update_one({"_id": 7}, {"$set": {"v": "from the backup"}})
    try:
        proxy = thermocline.services["proxy"]
        wait_until("no lease", lambda: not proxy.status()["proxy"]["leaseAlive"], 20, 0.05)
        update = {"q": {"_id": 7}, "u": {"$inc": {"x": 1}}}
        with thermocline.client(retryReads=False, retryWrites=False) as client:
            attempts: list[Callable[[], Any]] = [
                lambda: client.shop.orders.find_one({"_id": 7}, max_time_ms=1_500),
                lambda: client.shop.orders.count_documents({}, maxTimeMS=1_500),
                lambda: client.shop.command("update", "orders", updates=[update], maxTimeMS=1_500),
            ]
            for attempt in attempts:
                with pytest.raises(OperationFailure) as caught:
                    attempt()
                assert caught.value.code in (50, 262)
            assert client.shop.plain.find_one({"_id": 7}) is not None
    finally:
        markers.update_one({"_id": names.EPOCH_MARKER_ID}, {"$set": {"counter": marker["counter"]}})
        world.fast.shop.orders.update_one({"_id": 7}, {"$set": {"v": 7}})
        feeder.start()
    feeder.wait_ready()

    def served() -> bool:
        try:
            return world.shop.orders.find_one({"_id": 7}) is not None
        except OperationFailure:
            return False

    wait_until("served again", served, 60, 0.2)

"""Writes by ``_id`` through the handler, compared with one plain MongoDB, for documents in every place."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson import Int64
from bson.binary import Binary

from support.comparison import PLACES, Comparison
from support.direct import close_world, open_world
from support.mongod import ReplicaSet
from thermocline_common.coverage import Tier
from thermocline_proxy.writes import handle

pytestmark = pytest.mark.integration


@pytest.fixture
async def compared(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Comparison]:
    world = await open_world(fast, archive)
    comparison = Comparison(world)
    await comparison.fill()
    yield comparison
    await close_world(world)


UPDATES: dict[str, dict[str, Any]] = {
    "set": {"u": {"$set": {"a": 1}}},
    "increment": {"u": {"$inc": {"n": 5}}},
    "replacement": {"u": {"b": 2}},
    "pipeline": {"u": [{"$set": {"c": {"$add": ["$n", 1]}}}]},
    "array filters": {"u": {"$set": {"tags.$[t]": 9}}, "arrayFilters": [{"t": 2}]},
    "positional": {"u": {"$set": {"tags.$": 7}}, "more": {"tags": 2}},
    "no change": {"u": {"$set": {"tags": [1, 2]}}},
    "filter that doesn't match": {"u": {"$set": {"a": 1}}, "more": {"n": -1}},
    "unknown operator": {"u": {"$bad": 1}},
    "bad filter": {"u": {"$set": {"a": 1}}, "more": {"$bad": 1}},
    "immutable _id": {"u": {"$set": {"_id": 99}}},
    "wrong type": {"u": {"$inc": {"place": 1}}},
    "empty modifiers": {"u": {}},
    "multi": {"u": {"$set": {"a": 1}}, "multi": True},
}


@pytest.mark.parametrize("name", UPDATES)
async def test_an_update_by_id_answers_as_one_mongodb(compared: Comparison, name: str) -> None:
    given = dict(UPDATES[name])
    more = given.pop("more", {})
    for upsert in (False, True):
        for doc_id in PLACES:
            statement = {"q": {"_id": doc_id, **more}, **given}
            if upsert:
                statement["upsert"] = True
            await compared.both({"update": "orders", "updates": [statement]})
    await compared.at_rest()


MODIFICATIONS: dict[str, dict[str, Any]] = {
    "update, old": {"update": {"$set": {"a": 1}}},
    "update, new": {"update": {"$inc": {"n": 1}}, "new": True},
    "fields": {"update": {"$inc": {"n": 1}}, "new": True, "fields": {"n": 1}},
    "replace": {"update": {"z": 1}, "new": True},
    "upsert": {"update": {"$set": {"a": 1}}, "upsert": True, "new": True},
    "upsert, old": {"update": {"$set": {"a": 1}}, "upsert": True},
    "sort": {"update": {"$set": {"s": 1}}, "sort": {"n": 1}},
    "remove": {"remove": True},
    "remove, fields": {"remove": True, "fields": {"place": 1}},
    "bad operator": {"update": {"$bad": 1}},
    "remove and new": {"remove": True, "new": True},
    "neither": {},
    "both": {"update": {"$set": {"a": 1}}, "remove": True},
    "immutable _id": {"update": {"$set": {"_id": 99}}},
}


@pytest.mark.parametrize("name", MODIFICATIONS)
async def test_find_and_modify_by_id_answers_as_one_mongodb(
    compared: Comparison, name: str
) -> None:
    for doc_id in PLACES:
        await compared.both(
            {"findAndModify": "orders", "query": {"_id": doc_id}, **MODIFICATIONS[name]}
        )
    await compared.at_rest()


@pytest.mark.parametrize(
    ("more", "limit"), [({}, 1), ({}, 0), ({"n": -1}, 1), ({"$bad": 1}, 1), ({}, 5)]
)
async def test_a_delete_by_id_answers_as_one_mongodb(
    compared: Comparison, more: dict[str, Any], limit: int
) -> None:
    for doc_id in PLACES:
        statement = {"q": {"_id": doc_id, **more}, "limit": limit}
        await compared.both({"delete": "orders", "deletes": [statement]})
    await compared.at_rest()


async def test_an_insert_answers_as_one_mongodb(compared: Comparison) -> None:
    for doc_id in PLACES:
        await compared.both({"insert": "orders", "documents": [{"_id": doc_id, "new": 1}]})
    for odd in ([1], {"$a": 1}, 1.0, Int64(2), None, {"x": 1, "y": [2]}, {"$ref": "c", "$id": 1}):
        await compared.both({"insert": "orders", "documents": [{"_id": odd}]})
    await compared.at_rest()


@pytest.mark.parametrize("ordered", [True, False])
async def test_batches_answer_as_one_mongodb(compared: Comparison, ordered: bool) -> None:
    ids = list(PLACES)
    await compared.both(
        {
            "insert": "orders",
            "documents": [{"_id": 100 + i} if i % 3 else {"_id": i} for i in ids],
            "ordered": ordered,
        }
    )
    await compared.both(
        {
            "update": "orders",
            "updates": [
                *({"q": {"_id": i}, "u": {"$inc": {"n": 1}}} for i in ids),
                {"q": {"_id": 2}, "u": {"$inc": {"place": 1}}},
                {"q": {"_id": 1}, "u": {"$set": {"after": 1}}},
                {"q": {"_id": 50}, "u": {"$set": {"up": 1}}, "upsert": True},
                {"q": {"_id": 6}, "u": {"$set": {"up": 1}}, "upsert": True},
            ],
            "ordered": ordered,
        }
    )
    await compared.both(
        {
            "delete": "orders",
            "deletes": [
                {"q": {"_id": 1}, "limit": 1},
                {"q": {"_id": 2}, "limit": 0},
                {"q": {"$bad": 1}, "limit": 1},
                {"q": {"_id": 3}, "limit": 1},
                {"q": {"_id": 4}, "limit": 1},
            ],
            "ordered": ordered,
        }
    )
    await compared.at_rest()


async def test_an_update_of_a_hot_document_is_one_round_trip(compared: Comparison) -> None:
    world = compared.world
    await compared.both(
        {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}
    )
    assert [tier for tier, _ in world.exchange.sent] == [Tier.FAST]


async def test_an_insert_without_an_id_gets_one(compared: Comparison) -> None:
    reply = await compared.world.run({"insert": "orders", "documents": [{"mark": 1}]}, handle)
    assert reply == {"n": 1, "ok": 1.0}
    found = await compared.world.fast.find_one({"mark": 1})
    assert list(found) == ["_id", "mark"]


async def test_a_collection_uuid_is_that_of_either_tier(compared: Comparison) -> None:
    world = compared.world
    coverage = world.coverage
    assert coverage.fast_uuid is not None
    assert coverage.archive_uuid is not None
    command = {"update": "orders", "updates": [{"q": {"_id": 2}, "u": {"$inc": {"n": 1}}}]}
    for known in (coverage.archive_uuid, coverage.fast_uuid):
        named = {**command, "collectionUUID": Binary.from_uuid(known)}
        assert (await world.run(named, handle))["n"] == 1
    stranger = {**command, "collectionUUID": Binary.from_uuid(uuid.uuid4())}
    assert (await world.run(stranger, handle))["writeErrors"][0]["code"] == 361


async def test_a_large_batch_of_ids_that_the_archive_holds(compared: Comparison) -> None:
    """More than the 101 documents of a find's first batch: each is a duplicate, none is overwritten."""
    world = compared.world
    taken = [{"_id": f"taken {n}", "v": "archive"} for n in range(350)]
    await world.archive.insert_many([dict(d) for d in taken])
    await compared.plain.insert_many([dict(d) for d in taken])
    documents = [{"_id": d["_id"], "v": "new"} for d in taken]
    documents.insert(200, {"_id": "free", "v": "new"})
    await compared.both({"insert": "orders", "documents": documents, "ordered": False})
    await compared.at_rest()

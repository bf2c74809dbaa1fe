"""Writes whose filter names no ``_id``: the same answers and the same documents as one plain MongoDB."""

import datetime as dt
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
FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OLD = FLOOR - dt.timedelta(days=9)
NEW = FLOOR + dt.timedelta(days=9)


@pytest.fixture
async def compared(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Comparison]:
    world = await open_world(fast, archive)
    comparison = Comparison(world)
    await comparison.fill(kind="x", t=OLD)
    yield comparison
    await close_world(world)


MANY: dict[str, dict[str, Any]] = {
    "all": {"q": {}, "u": {"$inc": {"n": 10}}},
    "by field": {"q": {"kind": "x", "n": {"$gt": 1}}, "u": {"$set": {"a": 1}}},
    "by ids": {"q": {"_id": {"$in": [1, 2, 4, 5, 6, 77]}}, "u": {"$inc": {"n": 1}}},
    "ids and field": {"q": {"_id": {"$in": [1, 2, 3]}, "n": 2}, "u": {"$inc": {"n": 1}}},
    "unchanged": {"q": {}, "u": {"$set": {"kind": "x"}}},
    "leaves the filter": {"q": {"n": {"$lt": 7}}, "u": {"$inc": {"n": 7}}},
    "array filters": {
        "q": {},
        "u": {"$set": {"tags.$[t]": 5}},
        "arrayFilters": [{"t": {"$gt": 1}}],
    },
    "pipeline": {"q": {}, "u": [{"$set": {"n": {"$multiply": ["$n", 2]}}}]},
    "nothing": {"q": {"kind": "y"}, "u": {"$set": {"a": 1}}},
    "nothing, upsert": {"q": {"kind": "y", "_id": 70}, "u": {"$set": {"a": 1}}, "upsert": True},
    "upsert of what is there": {"q": {"kind": "x"}, "u": {"$set": {"a": 1}}, "upsert": True},
    "fails": {"q": {}, "u": {"$inc": {"place": 1}}},
    "replacement": {"q": {}, "u": {"a": 1}},
    "hint": {"q": {"n": {"$gt": 0}}, "u": {"$set": {"a": 1}}, "hint": {"_id": 1}},
    "wrong hint": {"q": {"n": {"$gt": 0}}, "u": {"$set": {"a": 1}}, "hint": {"n": 1}},
    "collation": {
        "q": {"kind": "X"},
        "u": {"$set": {"a": 1}},
        "collation": {"locale": "en", "strength": 2},
    },
}


@pytest.mark.parametrize("name", MANY)
async def test_update_many_answers_as_one_mongodb(compared: Comparison, name: str) -> None:
    statement = {**MANY[name], "multi": True}
    await compared.both({"update": "orders", "updates": [statement]})
    await compared.same_documents()
    await compared.both({"update": "orders", "updates": [statement]})
    await compared.at_rest()


DELETIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "field": {"n": {"$in": [1, 2, 3, 4]}},
    "ids": {"_id": {"$in": [1, 2, 3, 4, 5]}},
    "nothing": {"n": -1},
    "bad": {"$bad": 1},
}


@pytest.mark.parametrize("name", DELETIONS)
async def test_delete_many_answers_as_one_mongodb(compared: Comparison, name: str) -> None:
    statement = {"q": DELETIONS[name], "limit": 0}
    await compared.both({"delete": "orders", "deletes": [statement]})
    await compared.at_rest()
    await compared.both({"insert": "orders", "documents": [{"_id": i} for i in (1, 2, 4)]})
    await compared.at_rest()


async def test_let_and_variables(compared: Comparison) -> None:
    await compared.both(
        {
            "update": "orders",
            "updates": [
                {
                    "q": {"$expr": {"$gt": ["$n", "$$least"]}},
                    "u": [{"$set": {"least": "$$least"}}],
                    "multi": True,
                }
            ],
            "let": {"least": 2},
        }
    )
    await compared.at_rest()


async def test_constants_of_one_statement(compared: Comparison) -> None:
    """Which MongoDB lets its filter see, too."""
    statement = {
        "q": {"$expr": {"$eq": ["$n", {"$add": ["$$wanted", "$$more"]}]}},
        "u": [{"$set": {"a": "$$wanted"}}],
        "c": {"wanted": 5},
    }
    for multi in (False, True):
        command = {"update": "orders", "updates": [{**statement, "multi": multi}]}
        assert (await compared.both({**command, "let": {"more": 1}}))["n"] == 1
    await compared.at_rest()


NEAR: dict[str, Any] = {"p": {"$near": [2.2, 0]}}
CHOICES: dict[str, list[dict[str, Any]]] = {
    "update": [{"update": "orders", "updates": [{"q": NEAR, "u": {"$set": {"a": 1}}}]}],
    "nested": [
        {"update": "orders", "updates": [{"q": {"$and": [NEAR]}, "u": [{"$set": {"a": 1}}]}]},
    ],
    "delete": [{"delete": "orders", "deletes": [{"q": NEAR, "limit": 1}]}] * 2,
    "findAndModify": [
        {"findAndModify": "orders", "query": NEAR, "update": {"$inc": {"n": 1}}, "new": True},
        {"findAndModify": "orders", "query": {"p": {"$nearSphere": [5.9, 0]}}, "remove": True},
    ],
    "by sort all the same": [
        {"findAndModify": "orders", "query": NEAR, "sort": {"n": -1}, "update": {"$inc": {"n": 1}}}
    ],
}


@pytest.mark.parametrize("name", CHOICES)
async def test_the_nearest_is_chosen_over_both_tiers(compared: Comparison, name: str) -> None:
    """A filter that brings its own order: the nearest is cold, and the next ones are hot."""
    for collection in (compared.world.fast, compared.world.archive, compared.plain):
        await collection.update_many({}, [{"$set": {"p": ["$n", 0]}}])
        await collection.create_index([("p", "2d")])
    for command in CHOICES[name]:
        await compared.both(command)
        await compared.same_documents()
    await compared.at_rest()


ODD: dict[str, dict[str, Any]] = {
    "an _id that no document has": {"_id": {"$eq": {"$a": 1}}},
    "one in a list": {"_id": {"$in": [{"$a": 1}]}},
    "an array as _id": {"_id": [1, 2]},
    "an expression": {"$expr": {"$eq": ["$n", 2]}},
    "an expression within": {"$and": [{"$or": [{"$expr": {"$eq": ["$n", 1]}}]}]},
    "an expression beside an _id": {"_id": 6, "$expr": {"$eq": ["$n", 6]}},
}


@pytest.mark.parametrize("name", ODD)
async def test_filters_that_not_every_write_takes(compared: Comparison, name: str) -> None:
    query = ODD[name]
    for upsert in (True, False):
        for multi in (False, True):
            statement = {"q": query, "u": {"$set": {"a": 1}}, "multi": multi, "upsert": upsert}
            await compared.both({"update": "orders", "updates": [statement]})
        modify = {"findAndModify": "orders", "query": query, "update": {"$inc": {"m": 1}}}
        await compared.both({**modify, "upsert": upsert, "new": True})
        await compared.same_documents()
    await compared.both({"findAndModify": "orders", "query": query, "remove": True})
    for limit in (1, 0):
        await compared.both({"delete": "orders", "deletes": [{"q": query, "limit": limit}]})
    await compared.at_rest()


SINGLE: dict[str, dict[str, Any]] = {
    "cold": {"n": 2},
    "hot": {"n": 1},
    "leaving": {"n": 3},
    "deleted": {"n": 4},
    "evicted": {"n": 6},
    "absent": {"n": 50},
    "positional": {"n": 2, "tags": 2},
}


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("upsert", [False, True])
async def test_one_document_by_filter(compared: Comparison, name: str, upsert: bool) -> None:
    update = {"$set": {"tags.$": 9}} if name == "positional" else {"$inc": {"n": 100}}
    if name in ("deleted", "absent") and upsert:
        update = {"$set": {"m": 1}, "$setOnInsert": {"_id": 4 if name == "deleted" else 5}}
    statement: dict[str, Any] = {"q": SINGLE[name], "u": update}
    if upsert:
        statement["upsert"] = True
    await compared.both({"update": "orders", "updates": [statement]})
    await compared.at_rest()


@pytest.mark.parametrize("name", SINGLE)
async def test_deletes_of_one_document_by_filter(compared: Comparison, name: str) -> None:
    await compared.both({"delete": "orders", "deletes": [{"q": SINGLE[name], "limit": 1}]})
    await compared.at_rest()


@pytest.mark.parametrize("ascending", [1, -1])
@pytest.mark.parametrize("covered", [False, True])
async def test_a_sort_chooses_over_both_tiers(
    compared: Comparison, ascending: int, covered: bool
) -> None:
    query: dict[str, Any] = {"kind": "x"}
    if covered:
        compared.world.set_coverage(floor=FLOOR)
        for doc_id in (20, 21, 22):
            document = {"_id": doc_id, "n": doc_id, "kind": "x", "t": NEW}
            await compared.world.place(document, "fast", "archive")
            await compared.plain.insert_one(dict(document))
        query = {"kind": "x", "t": {"$gte": FLOOR}}
    for change in (
        {"update": {"$set": {"chosen": 1}, "$inc": {"n": 1000 * ascending}}},
        {"remove": True},
        {"update": {"$set": {"chosen": 2}}, "new": True, "upsert": True},
    ):
        await compared.both(
            {"findAndModify": "orders", "query": query, "sort": {"n": ascending}, **change}
        )
        await compared.same_documents()
    barrier: Any = compared.world.gateway.barrier
    assert (barrier.passed_count == 0) is covered
    await compared.at_rest()


async def test_a_covered_update_many_needs_no_archive(compared: Comparison) -> None:
    compared.world.set_coverage(floor=FLOOR)
    documents = [{"_id": i, "t": NEW, "k": 0} for i in range(30, 40)]
    for document in documents:
        await compared.world.place(document, "fast", "archive")
        await compared.plain.insert_one(dict(document))
    statement = {"q": {"t": {"$gte": FLOOR}}, "u": {"$inc": {"k": 1}}, "multi": True}
    await compared.both({"update": "orders", "updates": [statement]})
    assert ("write-listed-covered", "fast") in compared.world.counted
    await compared.at_rest()


@pytest.mark.parametrize(
    "update",
    [
        {"$set": {"_id": 2}},
        {"$setOnInsert": {"_id": 2}},
        {"_id": 2, "other": 1},
        [{"$set": {"_id": 2}}],
        {"$setOnInsert": {"_id": 4}},
    ],
)
async def test_an_upsert_that_names_a_cold_id_itself(compared: Comparison, update: Any) -> None:
    statement = {"q": {"kind": "none"}, "u": update, "upsert": True}
    await compared.both({"update": "orders", "updates": [statement]})
    await compared.at_rest()


async def test_mixed_batches_keep_their_order_and_numbers(compared: Comparison) -> None:
    for ordered in (True, False):
        await compared.both(
            {
                "update": "orders",
                "updates": [
                    {"q": {"_id": 2}, "u": {"$inc": {"n": 1}}},
                    {"q": {"kind": "x"}, "u": {"$inc": {"m": 1}}, "multi": True},
                    {"q": {"_id": 60 + ordered}, "u": {"$set": {"a": 1}}, "upsert": True},
                    {"q": {"n": 6}, "u": {"$set": {"b": 1}}},
                    {"q": {"_id": 6}, "u": {"$inc": {"place": 1}}},
                    {"q": {"_id": 1}, "u": {"$set": {"last": 1}}},
                    {"q": {"_id": 80 + ordered}, "u": {"$set": {"a": 1}}, "upsert": True},
                ],
                "ordered": ordered,
            }
        )
        await compared.same_documents()
    await compared.at_rest()


async def test_a_batch_in_pieces_has_the_indexes_of_the_whole(compared: Comparison) -> None:
    count = 2_300
    documents = [{"_id": i if i != 1_500 else 2} for i in range(1_000, 1_000 + count)]
    for ordered in (True, False):
        await compared.both({"insert": "orders", "documents": documents, "ordered": ordered})
    await compared.at_rest()


async def test_a_collation_does_not_widen_a_narrowed_write(compared: Comparison) -> None:
    for doc_id in ("abc", "ABC", "x\n", "X\n", "é.*", "É.*"):
        document = {"_id": doc_id, "word": doc_id}
        await compared.world.place(document, "archive")
        await compared.plain.insert_one(dict(document))
    statement = {
        "q": {"word": {"$in": ["abc", "x\n", "é.*"]}},
        "limit": 0,
        "collation": {"locale": "en", "strength": 3},
    }
    await compared.both({"delete": "orders", "deletes": [statement]})
    await compared.at_rest()


async def test_an_acknowledged_delete_leaves_no_way_back(compared: Comparison) -> None:
    await compared.both({"delete": "orders", "deletes": [{"q": {}, "limit": 0}]})
    assert await compared.world.truth() == []
    for doc_id in PLACES:
        assert await compared.world.kind_of(doc_id) in ("deleted", None)


async def test_a_look_up_happens_only_after_f_accepted_the_filter(compared: Comparison) -> None:
    world = compared.world
    await world.run(
        {"delete": "orders", "deletes": [{"q": {"n": {"$bad": 1}}, "limit": 0}]}, handle
    )
    tier, first = world.exchange.sent[0]
    assert tier is Tier.FAST
    assert first["deletes"][0]["q"]["$and"][1] == {"_id": {"$in": []}}
    assert len(world.exchange.sent) == 1
    barrier: Any = world.gateway.barrier
    assert barrier.passed_count == 0


async def test_only_what_no_driver_repeats_waits_for_long(compared: Comparison) -> None:
    """A retryable write's driver sends it again after 262; updateMany and deleteMany are sent once."""
    world = compared.world
    barrier: Any = world.gateway.barrier
    lsid = {"id": Binary(uuid.uuid4().bytes, 4)}
    change: dict[str, Any] = {"q": {"kind": "x", "n": 3}, "u": {"$inc": {"a": 1}}}
    for statement, more, patient in (
        ({**change, "multi": True}, {}, True),
        (change, {}, True),
        (change, {"lsid": lsid, "txnNumber": Int64(1)}, False),
    ):
        barrier.patience.clear()
        # Only the archive matches: what F lacks has to be looked for there.
        await world.fast.delete_many({"n": 3})
        reply = await world.run({"update": "orders", "updates": [statement], **more}, handle)
        assert reply["n"] == 1
        assert [given is not None for given in barrier.patience] == [patient], statement

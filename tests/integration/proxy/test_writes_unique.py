"""Unique keys across the tiers: F refuses what a document of either tier holds, and nothing else."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson import Int64

from support.comparison import Comparison
from support.direct import close_world, open_world
from support.mongod import ReplicaSet
from thermocline_common.coverage import UniqueIndex
from thermocline_common.indexes import list_indexes
from thermocline_feeder.catalog import unique_indexes
from thermocline_proxy.writes import handle

pytestmark = pytest.mark.integration
EMAIL = UniqueIndex("email_1", ("email",), plain=True)
PAIR = UniqueIndex("pair", ("a.x", "b"), plain=True)


@pytest.fixture
async def compared(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Comparison]:
    world = await open_world(fast, archive, unique=(EMAIL, PAIR))
    comparison = Comparison(world)
    await comparison.plain.create_index([("email", 1)], name="email_1", unique=True)
    await comparison.plain.create_index([("a.x", 1), ("b", 1)], name="pair", unique=True)
    places = {
        1: ("fast", "archive"),
        2: ("archive",),
        3: ("fast", "archive", "leaving"),
        4: ("archive", "deleted"),
    }
    for doc_id, where in places.items():
        document = {
            "_id": doc_id,
            "email": f"e{doc_id}",
            "a": [{"x": doc_id}, {"x": -doc_id}],
            "b": 0,
            "n": 0,
        }
        await world.place(document, *where)
        if doc_id != 4:
            await comparison.plain.insert_one(dict(document))
    yield comparison
    await close_world(world)


def doc(doc_id: int, email: Any, x: Any = None) -> dict[str, Any]:
    return {"_id": doc_id, "email": email, "a": {"x": 100 + doc_id if x is None else x}, "b": 0}


async def test_inserts_meet_the_keys_of_cold_and_leaving_documents(compared: Comparison) -> None:
    for document in (
        doc(10, "e1"), doc(11, "e2"), doc(12, "e3"), doc(13, "e4"), doc(14, "new"),
        doc(15, ["q", "e2"]), doc(16, "p", -2), doc(17, "r", [5, 2]), doc(18, "s", Int64(2)),
        {"_id": 19, "b": 0}, {"_id": 20, "b": 0},
    ):  # fmt: skip
        await compared.both({"insert": "orders", "documents": [document]})
    await compared.at_rest()


async def test_m23_a_leaving_neighbour_stays(compared: Comparison) -> None:
    await compared.both({"insert": "orders", "documents": [doc(10, "e3")]})
    assert await compared.world.kind_of(3) is None
    assert await compared.world.fast.find_one({"_id": 3}) is not None


UPDATES: dict[str, Any] = {
    "to a cold key": {"$set": {"email": "e2"}},
    "to a leaving key": {"$set": {"email": "e3"}},
    "to a deleted key": {"$set": {"email": "e4"}},
    "to a free key": {"$set": {"email": "free"}},
    "to its own key": {"$set": {"email": "e1"}},
    "nested": {"$push": {"a": {"x": 2}}},
    "removed": {"$unset": {"email": ""}},
    "other field": {"$inc": {"n": 1}},
    "replacement, cold key": {"email": "e2", "b": 9},
    "replacement, same keys": {"email": "e1", "a": [{"x": 1}, {"x": -1}], "b": 0, "z": 1},
    "renamed onto it": {"$rename": {"n": "email"}},
    "bad": {"$set": {"email": "q", "email.x": 1}},
}


PIPELINES: dict[str, Any] = {
    "pipeline, cold key": [{"$set": {"email": {"$concat": ["e", "2"]}}}],
    "pipeline, leaving key": [
        {"$set": {"n": 3}},
        {"$set": {"email": {"$concat": ["e", {"$toString": "$n"}]}}},
    ],
    "pipeline, deleted key": [{"$set": {"email": "e4"}}],
    "pipeline, free key": [{"$set": {"email": {"$concat": ["free", "$email"]}}}],
    "pipeline, nested": [{"$set": {"a": [{"x": 2}]}}],
    "pipeline, removed": [{"$unset": ["email", "a"]}],
    "pipeline, merged": [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"z": 1}]}}],
    "pipeline, replaced": [{"$replaceWith": {"email": "e3", "b": 1}}],
    "pipeline, no document": [{"$replaceWith": "$n"}],
    "pipeline, bad": [{"$set": {"email": {"$toInt": "$email"}}}],
}


@pytest.mark.parametrize("query", [{"_id": 1}, {"_id": 2}, {"b": 0, "n": {"$lt": 3}}])
async def test_pipelines_on_a_unique_field(compared: Comparison, query: dict[str, Any]) -> None:
    """One behind the other: what fails changes nothing, and what doesn't is the next one's beginning."""
    for pipeline in PIPELINES.values():
        await compared.both({"update": "orders", "updates": [{"q": query, "u": pipeline}]})
    await compared.at_rest()


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize(
    "query", [{"_id": 1}, {"_id": 2}, {"email": "e1"}, {"email": "e2"}, {"_id": 1, "n": 5}]
)
async def test_updates_of_a_unique_field(
    compared: Comparison, name: str, query: dict[str, Any]
) -> None:
    await compared.both({"update": "orders", "updates": [{"q": query, "u": UPDATES[name]}]})
    await compared.at_rest()


@pytest.mark.parametrize(
    "name",
    ["to a cold key", "to a free key", "other field", "pipeline, leaving key"],
)
async def test_find_and_modify_of_a_unique_field(compared: Comparison, name: str) -> None:
    for query in ({"_id": 1}, {"_id": 2}, {"b": 0}):
        command = {
            "findAndModify": "orders",
            "query": query,
            "update": {**UPDATES, **PIPELINES}[name],
            "sort": {"_id": 1},
            "new": True,
        }
        got = await compared.both(command)
        assert "ok" in got
    await compared.at_rest()


@pytest.mark.parametrize(
    ("query", "update"),
    [
        ({"email": "e2"}, {"$set": {"n": 1}}),
        ({"email": "e9"}, {"$set": {"n": 1}}),
        ({"email": "e9"}, {"$set": {"a.x": 2, "b": 0}}),
        ({"_id": 30}, {"$set": {"email": "e2"}}),
        ({"_id": 30}, {"email": "e2"}),
        ({"_id": 30}, {"email": "e30", "b": 1}),
        ({"_id": 2}, {"$set": {"email": "e3"}}),
        ({"_id": 2, "n": 77}, {"$set": {"email": "e30"}}),
        ({"email": "e4"}, {"$set": {"n": 1}}),
        ({"_id": 30}, [{"$set": {"email": {"$concat": ["e", "2"]}}}]),
        ({"_id": 30}, [{"$set": {"email": "e30", "b": 1}}]),
        ({"_id": 2, "n": 77}, [{"$set": {"email": "e30"}}]),
    ],
)
async def test_upserts_with_unique_keys(
    compared: Comparison, query: dict[str, Any], update: dict[str, Any]
) -> None:
    statement = {"q": query, "u": update, "upsert": True}
    reply = await compared.world.run({"update": "orders", "updates": [statement]}, handle)
    expected = await compared._plain({"update": "orders", "updates": [statement]})
    if query.get("email") in ("e9", "e4") and "upserted" in reply:
        made = reply["upserted"][0].pop("_id")
        other = expected["upserted"][0].pop("_id")
        await compared.plain.delete_one({"_id": other})
        await compared.plain.insert_one(await compared.world.fast.find_one({"_id": made}))
    assert reply == expected
    await compared.at_rest()


LARGE: dict[str, Any] = {
    "replacement": {"email": "free", "a": [{"x": 1}], "b": 0, "text": "y" * 9_000_000},
    "cold key": {"$set": {"email": "e2", "text": "y" * 9_000_000}},
    "renamed": {"$rename": {"place": "email"}, "$set": {"text": "y" * 9_000_000}},
    "position": {"$set": {"a.$.x": 77, "text": "y" * 9_000_000}},
}


@pytest.mark.parametrize("name", LARGE)
async def test_documents_that_fill_more_than_half_a_statement(
    compared: Comparison, name: str
) -> None:
    """The one that was there and the one that comes don't fit into one statement together."""
    for collection in (compared.world.fast, compared.world.archive, compared.plain):
        large = {"$set": {"text": "x" * 9_000_000, "place": "somewhere"}}
        await collection.update_one({"_id": 1}, large)
    query: dict[str, Any] = {"_id": 1, "a.x": -1} if name == "position" else {"_id": 1}
    await compared.both({"update": "orders", "updates": [{"q": query, "u": LARGE[name]}]})
    await compared.same_documents()
    modify = {"findAndModify": "orders", "query": query, "update": LARGE[name], "fields": {"b": 1}}
    await compared.both(modify)
    await compared.at_rest()


async def test_update_many_of_a_unique_field_goes_document_by_document(
    compared: Comparison,
) -> None:
    statement = {"q": {"n": 0}, "u": {"$inc": {"b": 1}}, "multi": True}
    await compared.both({"update": "orders", "updates": [statement]})
    await compared.at_rest()


async def test_what_cannot_be_decided_is_refused(compared: Comparison) -> None:
    world = compared.world
    random_key = {"q": {"_id": 1}, "u": [{"$set": {"email": {"$rand": {}}}}]}
    harmless = {"q": {"_id": 1}, "u": [{"$set": {"n": 5}}]}
    reply = await world.run({"update": "orders", "updates": [harmless, random_key]}, handle)
    assert reply["n"] == 1
    assert [(e["index"], e["code"]) for e in reply["writeErrors"]] == [(1, 115)]
    reply = await world.run(
        {"findAndModify": "orders", "query": {"_id": 1}, "update": random_key["u"]}, handle
    )
    assert (reply["ok"], reply["code"]) == (0.0, 115)
    found = await world.fast.find_one({"_id": 1})
    assert found is not None
    assert (found["email"], found["n"]) == ("e1", 5)


INCREMENTS: list[Any] = [{"$inc": {"k": 1}}, [{"$set": {"k": {"$add": ["$k", 1]}}}]]


@pytest.mark.parametrize("size", [0, 2_000_000], ids=["small", "large"])
@pytest.mark.parametrize("update", INCREMENTS, ids=["operator", "pipeline"])
async def test_m24_two_increments_never_make_two_equal_keys(
    fast: ReplicaSet, archive: ReplicaSet, update: Any, size: int
) -> None:
    world = await open_world(fast, archive, unique=(UniqueIndex("k_1", ("k",), plain=True),))
    await world.place({"_id": 1, "k": 4, "text": "x" * size}, "fast", "archive")
    await world.place({"_id": 2, "k": 6}, "archive")
    command = {"update": "orders", "updates": [{"q": {"_id": 1}, "u": update}]}
    replies = await asyncio.gather(world.run(command, handle), world.run(command, handle))
    assert sorted(len(r.get("writeErrors", [])) for r in replies) == [0, 1]
    assert [r["writeErrors"][0]["code"] for r in replies if "writeErrors" in r] == [11000]
    assert [d["k"] for d in await world.truth()] == [5, 6]
    await close_world(world)


async def test_sparse_partial_and_collated_indexes(fast: ReplicaSet, archive: ReplicaSet) -> None:
    indexes = tuple(UniqueIndex(n, (n,), plain=False) for n in ("s", "p", "c"))
    world = await open_world(fast, archive)
    comparison = Comparison(world)
    options: dict[str, dict[str, Any]] = {
        "s": {"sparse": True},
        "p": {"partialFilterExpression": {"live": True}},
        "c": {
            "collation": {"locale": "en", "strength": 2},
            "partialFilterExpression": {"c": {"$exists": True}},
        },
    }
    for collection in (world.fast, world.archive, comparison.plain):
        for name, more in options.items():
            await collection.create_index([(name, 1)], name=name, unique=True, **more)
    world.set_coverage(unique=indexes)
    for document in (
        {"_id": 1, "s": 1, "p": 1, "live": True, "c": "abc"},
        {"_id": 2, "p": 2},
        {"_id": 3, "p": 2},
    ):
        await world.place(document, "archive")
        await comparison.plain.insert_one(dict(document))
    for document in (
        {"_id": 10, "s": 1}, {"_id": 11}, {"_id": 12, "p": 1}, {"_id": 13, "p": 1, "live": True},
        {"_id": 14, "p": 2, "live": True}, {"_id": 15, "c": "ABC"}, {"_id": 16, "c": "abd"},
    ):  # fmt: skip
        await comparison.both({"insert": "orders", "documents": [document]})
    for query, update in (
        ({"_id": 12}, {"$set": {"live": True}}),
        ({"_id": 16}, {"$set": {"c": "aBc"}}),
        ({"_id": 11}, {"$set": {"s": 1}}),
        ({"_id": 11}, {"$set": {"s": 2}}),
    ):
        await comparison.both({"update": "orders", "updates": [{"q": query, "u": update}]})
    await comparison.at_rest()
    await close_world(world)


@pytest.mark.parametrize("update", [{"$set": {"live": True}}, [{"$set": {"live": True}}]])
@pytest.mark.parametrize(
    "expression",
    [{"live": True}, {"$and": [{"k": {"$gt": 0}}, {"live": {"$eq": True}}]}],
)
async def test_a_key_that_comes_into_a_partial_index_by_another_field(
    fast: ReplicaSet, archive: ReplicaSet, update: Any, expression: dict[str, Any]
) -> None:
    world = await open_world(fast, archive)
    comparison = Comparison(world)
    for collection in (world.fast, world.archive, comparison.plain):
        await collection.create_index(
            "k", name="k", unique=True, partialFilterExpression=expression
        )
    specs = await list_indexes(world.tiers.archive, "shop.orders")
    world.set_coverage(unique=tuple(unique_indexes(specs)))
    for document in ({"_id": 1, "k": 1, "live": True}, {"_id": 2, "k": 1}, {"_id": 3, "k": 3}):
        await world.place(document, "archive")
        await comparison.plain.insert_one(dict(document))
    for doc_id in (2, 3):
        await comparison.both(
            {"update": "orders", "updates": [{"q": {"_id": doc_id}, "u": update}]}
        )
    await comparison.at_rest()
    await close_world(world)


SHAPES: list[Any] = [
    None, [], [1], [1, 2], 5, "5", [[1]], [[]], {}, {"b": 1}, {"b": None}, {"b": []}, {"b": [1, 2]},
    {"b": [[1]]}, [{"b": 1}], [{"b": 1}, {"b": [2]}], [{}], [{}, {"b": 3}], [{"b": []}], [5, {"b": 1}],
    {"b": {"x": 1}}, [{"b": [{}]}], [None], [{"b": None}], [[{"b": 1}]], {"0": {"b": 1}}, [{"b": 2.0}],
    {"b": float("nan")}, {"b": -0.0}, {"b": 0},
]  # fmt: skip


@pytest.mark.parametrize(
    "paths", [("a",), ("a.b",), ("a.0",), ("a.0.b",), ("c", "a.b"), ("a.b.x",)]
)
async def test_every_shape_of_a_key_is_found_in_the_archive(
    fast: ReplicaSet, archive: ReplicaSet, paths: tuple[str, ...]
) -> None:
    """One cold document, one insert: whether that is a duplicate, MongoDB says."""
    world = await open_world(fast, archive, unique=(UniqueIndex("u", paths, plain=True),))
    comparison = Comparison(world)
    await comparison.plain.create_index([(path, 1) for path in paths], name="u", unique=True)
    shapes = [*({"a": shape} for shape in SHAPES), {}]
    pairs = list(itertools.product(shapes, shapes))
    duplicates = 0
    for cold, new in random.Random(".".join(paths)).sample(pairs, 100):
        for collection in (world.archive, comparison.plain):
            await collection.insert_one({"_id": "cold", **cold})
        insert = {"insert": "orders", "documents": [{"_id": "new", **new}]}
        expected = await comparison._plain(insert)
        got = await world.run(insert, handle)
        assert ("writeErrors" in got) == ("writeErrors" in expected), (cold, new)
        duplicates += "writeErrors" in got
        await world.fast.delete_many({})
        for collection in (world.archive, comparison.plain):
            await collection.delete_many({})
    assert duplicates > 5
    await close_world(world)

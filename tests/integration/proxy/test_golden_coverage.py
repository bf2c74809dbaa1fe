"""Whatever ``decide`` sends to the fast tier is complete there, on a real mongod.

The archive holds documents with every kind of age; the fast tier lacks the scalar Dates below the
floor, but for two that were promoted. Filters, sorts and limits come from tables and from a seeded generator; each one
that is routed to the fast tier must get the archive's answer from it.
"""

import datetime as dt
import itertools
import random
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.code import Code
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from support.mongod import ReplicaSet
from thermocline_common.coverage import Coverage, State
from thermocline_proxy.commands.command import Command
from thermocline_proxy.routing import newest
from thermocline_proxy.routing.decide import decide
from thermocline_proxy.routing.routes import AnyRead, ArchiveRead, FastRead, NewestRead, Route
from thermocline_proxy.routing.snapshot import Snapshot, Tiering

pytestmark = pytest.mark.integration

Client = MongoClient[dict[str, Any]]


def day(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=number)


FLOOR = day(0)
MILLISECOND = dt.timedelta(milliseconds=1)
OLD, OLDEST, NEW, NEWEST = day(-5), day(-300), day(5), day(50)

SCALARS: dict[str, Any] = {
    "old": OLD,
    "oldest": OLDEST,
    "just-below": FLOOR - MILLISECOND,
    "at-floor": FLOOR,
    "just-above": FLOOR + MILLISECOND,
    "new": NEW,
    "newest": NEWEST,
    "epoch": dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    "before-epoch": dt.datetime(1931, 1, 1, tzinfo=dt.UTC),
    "null": None,
    "string": "2026-01-01T00:00:00Z",
    "empty-string": "",
    "int": 1_767_225_600,
    "long": Int64(1_767_225_600_000),
    "double": 1.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "decimal": Decimal128("1767225600000"),
    "bool": True,
    "oid": ObjectId("65920080" + "0" * 16),
    "timestamp-old": Timestamp(1, 1),
    "timestamp-new": Timestamp(1_893_456_000, 1),
    "regex": Regex("^2026"),
    "code": Code("return 1"),
    "scoped": Code("return 1", {"x": 1}),
    "binary": Binary(b"x"),
    "document": {"x": NEW},
    "min-key": MinKey(),
    "max-key": MaxKey(),
}
ARRAYS: dict[str, Any] = {
    "empty-array": [],
    "array-old": [OLD],
    "array-new": [NEW],
    "array-both": [OLD, NEW],
    "array-both-reversed": [NEW, OLDEST],
    "array-null": [None],
    "array-nested": [[OLD, NEW]],
    "array-mixed": ["x", OLD, 5],
}


def documents(path: str) -> list[dict[str, Any]]:
    values = {**SCALARS, **ARRAYS}
    if path == "t":
        found = [
            {"_id": name, "t": value, "n": i % 3} for i, (name, value) in enumerate(values.items())
        ]
        found.append({"_id": "missing", "n": 1})
        return found
    found = [
        {"_id": name, "a": {"b": value}, "n": i % 3}
        for i, (name, value) in enumerate(values.items())
    ]
    found += [
        {"_id": f"in-array-{name}", "a": [{"b": value}], "n": i % 3}
        for i, (name, value) in enumerate(SCALARS.items())
    ]
    found += [
        {"_id": "two-elements", "a": [{"b": OLD}, {"b": NEW}], "n": 0},
        {"_id": "two-old", "a": [{"b": OLD}, {"b": OLDEST}], "n": 1},
        {"_id": "deep-array", "a": [[{"b": OLD}]], "n": 2},
        {"_id": "missing", "n": 1},
        {"_id": "a-scalar", "a": OLD, "n": 1},
        {"_id": "a-null", "a": None, "n": 1},
        {"_id": "a-empty", "a": {}, "n": 1},
        {"_id": "numeric-key", "a": {"0": {"b": OLD}}, "n": 1},
    ]
    return found


PROMOTED = frozenset({"oldest", "before-epoch"})
"""Old documents that the fast tier holds all the same, as after an update."""


def old_scalar(document: dict[str, Any], path: str) -> bool:
    """What invariant 3 lets be in the archive alone, worked out independently of the product."""
    value: Any = document
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return isinstance(value, dt.datetime) and value < FLOOR


OPERANDS: list[Any] = [
    FLOOR, FLOOR - MILLISECOND, FLOOR - 2 * MILLISECOND, FLOOR + MILLISECOND, NEW, OLD, None, 5, Int64(1_767_225_600_000),
    1.5, Decimal128("7"), "2026", "", True, MinKey(), MaxKey(), Timestamp(1, 1),
    Timestamp(1_893_456_000, 1), Regex("^2"), {"x": 1}, [], [NEW], [OLD, NEW],
    ObjectId("65920080" + "0" * 16), Binary(b"x"),
]  # fmt: skip


def table(path: str) -> Iterator[dict[str, Any]]:
    for operand in OPERANDS:
        yield {path: operand}
        for operator in ("$eq", "$gt", "$gte", "$lt", "$lte", "$ne"):
            if isinstance(operand, Regex) and operator != "$eq":
                continue
            yield {path: {operator: operand}}
    for one, other in itertools.combinations(OPERANDS[:9], 2):
        yield {path: {"$in": [one, other]}}
        yield {path: {"$nin": [one, other]}}
    yield {path: {"$in": []}}
    yield {path: {"$in": [NEW, Regex("^2")]}}
    yield {path: {"$in": [NEW, [OLD]]}}
    for inner in ({"$gte": NEW}, {"$lt": FLOOR}, {"$exists": True}, {"$ne": 3}):
        yield {path: {"$elemMatch": inner}}
        yield {path: {"$not": inner}}
        yield {path: {"$not": {"$elemMatch": inner}}}
    parent = path.rpartition(".")[0]
    if parent:
        yield {parent: {"$elemMatch": {"b": {"$lt": NEW}}}}
        yield {parent: {"$elemMatch": {"$elemMatch": {"b": OLD}}}}
        yield {parent: {"$gte": FLOOR}}
        yield {parent: {"b": NEW}}
        yield {f"{parent}.0.b": {"$gte": FLOOR}}
    yield {path: {"$gte": FLOOR, "$lt": NEW}}
    yield {path: {"$gte": OLD, "$lt": NEW}}
    yield {path: {"$gte": FLOOR, "$ne": NEW, "$exists": True}}
    yield {path: {"$exists": False}}
    yield {path: {"$type": "date"}}
    yield {path: {"$size": 1}}
    yield {path: {"$all": [NEW]}}
    yield {path: {"$all": [OLD]}}
    yield {path: {"$all": [OLD, NEW]}}
    yield {path: {"$mod": [5, 0]}}
    yield {"$nor": [{path: {"$lt": FLOOR}}]}
    yield {"$expr": {"$gte": [f"${path}", FLOOR]}}
    yield {"$or": [{path: {"$gte": FLOOR}}, {path: None}]}
    yield {"$or": [{path: {"$gte": FLOOR}}, {"n": 1}]}
    yield {"$and": [{"$or": [{path: NEW}, {path: {"$gt": NEW}}]}, {"n": {"$gte": 0}}]}
    yield {"$jsonSchema": {"properties": {"n": {"minimum": 1}}}}
    yield {}
    yield {"n": 1}


def generated(path: str, count: int) -> Iterator[dict[str, Any]]:
    """Nested filters, the same in each run."""
    source = random.Random(f"golden {path}")
    leaves = list(table(path))

    def grow(depth: int) -> dict[str, Any]:
        if depth == 0 or source.random() < 0.3:
            return source.choice(leaves)
        operator = source.choice(["$and", "$or", "$or", "$nor"])
        return {operator: [grow(depth - 1) for _ in range(source.randint(1, 3))]}

    for _ in range(count):
        yield grow(3)


def snapshot(path: str) -> Snapshot:
    coverage = Coverage(
        namespace="golden.orders", state=State.ACTIVE, target=State.ACTIVE, age_field=path,
        floor=FLOOR, published_at=Timestamp(1, 1), archive_time=Timestamp(1, 1),
    )  # fmt: skip
    return Snapshot(
        expires=1e18, untiered_expires=1e18, tierings={"golden.orders": Tiering(coverage)},
        listed=frozenset({"golden.orders"}),
    )  # fmt: skip


def route(fields: dict[str, Any], path: str) -> Route:
    return decide(Command(bson.encode({**fields, "$db": "golden"})), snapshot(path))


def batch(client: Client, fields: dict[str, Any]) -> list[bytes]:
    options: Any = bson.codec_options.CodecOptions(document_class=RawBSONDocument)
    reply = client.get_database("golden", codec_options=options).command(
        fields, codec_options=options
    )
    return [bytes(document.raw) for document in reply["cursor"]["firstBatch"]]


@pytest.fixture(params=["t", "a.b"])
def tiers(
    request: pytest.FixtureRequest, fast: ReplicaSet, archive: ReplicaSet
) -> Iterator[tuple[str, Client, Client]]:
    path: str = request.param
    with fast.client() as hot, archive.client() as cold:
        everything = documents(path)
        for client in (hot, cold):
            client.golden.orders.create_index([(path, 1)], name="age")
        cold.golden.orders.insert_many(everything)
        hot.golden.orders.insert_many(
            [d for d in everything if d["_id"] in PROMOTED or not old_scalar(d, path)]
        )
        yield path, hot, cold


def ids(found: list[bytes]) -> list[Any]:
    return sorted(bson.decode(document)["_id"] for document in found)


def test_filters_that_are_routed_to_the_fast_tier_are_complete_there(
    tiers: tuple[str, Client, Client],
) -> None:
    path, hot, cold = tiers
    covered = tried = 0
    for query in itertools.chain(table(path), generated(path, 400)):
        command = {"find": "orders", "filter": query, "batchSize": 1_000}
        taken = route(command, path)
        assert isinstance(taken, FastRead | ArchiveRead), query
        if isinstance(taken, ArchiveRead):
            continue
        try:
            whole = batch(cold, command)
        except OperationFailure:
            continue
        tried += 1
        covered += bool(whole)
        assert ids(batch(hot, command)) == ids(whole), query
        pipeline = [{"$match": query}, {"$group": {"_id": None, "count": {"$sum": 1}}}]
        aggregate = {"aggregate": "orders", "pipeline": pipeline, "cursor": {}}
        assert isinstance(route(aggregate, path), FastRead)
        assert batch(hot, aggregate) == batch(cold, aggregate), query
    assert tried > 100
    assert covered > 60, "the filters prove too little to be a test"


@pytest.mark.parametrize("collation", [None, {"locale": "en", "strength": 1}], ids=["simple", "en"])
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "scan"])
def test_newest_first_lists_are_taken_from_the_fast_tier_only_where_they_are_whole(
    tiers: tuple[str, Client, Client], collation: dict[str, Any] | None, indexed: bool
) -> None:
    path, hot, cold = tiers
    if not indexed:
        for client in (hot, cold):
            client.golden.orders.drop_index("age")
    proven = refuted = 0
    filters: list[dict[str, Any]] = [
        {}, {"n": 1}, {"n": {"$gte": 1}}, {path: {"$lt": NEW}}, {path: {"$gte": OLD}},
        {path: {"$type": "date"}}, {path: {"$ne": NEW}}, {path: {"$exists": True}},
    ]  # fmt: skip
    for query, limit in itertools.product(filters, range(1, 80)):
        command: dict[str, Any] = {
            "find": "orders", "filter": query, "sort": {path: -1, "_id": 1}, "limit": limit,
        }  # fmt: skip
        if collation:
            command["collation"] = collation
        taken = route(command, path)
        if collation and not isinstance(taken, NewestRead | FastRead):
            continue
        assert isinstance(taken, NewestRead), command
        answer = batch(hot, command)
        if newest.proves(answer, taken.count, taken.path, taken.floor):
            assert answer == batch(cold, command), command
            proven += 1
        else:
            refuted += 1
        pipeline = [{"$match": query}, {"$sort": {path: -1, "_id": 1}}, {"$limit": limit}]
        aggregate = {"aggregate": "orders", "pipeline": pipeline, "cursor": {}}
        same = route(aggregate, path)
        assert isinstance(same, NewestRead)
        answer = batch(hot, aggregate)
        if newest.proves(answer, same.count, same.path, same.floor):
            assert answer == batch(cold, aggregate), aggregate
    assert collation or (proven > 10 and refuted > 10)


def test_oldest_first_and_sorts_by_other_fields_are_never_taken_from_the_fast_tier(
    tiers: tuple[str, Client, Client],
) -> None:
    path, _, _ = tiers
    for sort in ({path: 1}, {"n": 1, path: -1}, {"$natural": -1}, {path: {"$meta": "textScore"}}):
        command = {"find": "orders", "filter": {}, "sort": sort, "limit": 5}
        assert isinstance(route(command, path), ArchiveRead)


def test_a_match_in_the_fast_tier_is_a_match(tiers: tuple[str, Client, Client]) -> None:
    path, hot, cold = tiers
    for query in itertools.chain(table(path), generated(path, 100)):
        command = {"find": "orders", "filter": query, "limit": 1, "singleBatch": True}
        taken = route(command, path)
        if not isinstance(taken, AnyRead):
            continue
        try:
            found = batch(hot, command)
        except OperationFailure:
            continue
        if found:
            assert bson.decode(found[0])["_id"] in ids(
                batch(cold, {"find": "orders", "filter": query, "batchSize": 1_000})
            ), query

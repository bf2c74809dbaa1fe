"""The self-check: what is sampled, and what the archive is asked."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_proxy.commands.command import Command
from thermocline_proxy.routing.questions import ask
from thermocline_proxy.verify.questions import Shape, ask_again, at_time, scan, shows_ids
from thermocline_proxy.verify.sampling import chosen, suits

T = Timestamp(100, 1)


def command(fields: dict[str, Any]) -> Command:
    return Command(bson.encode({**fields, "$db": "shop"}))


def cursor(*documents: dict[str, Any], cursor_id: int = 0) -> bytes:
    return bson.encode(
        {
            "cursor": {"firstBatch": list(documents), "id": Int64(cursor_id), "ns": "shop.c"},
            "ok": 1.0,
        }
    )


# --- sampling


@pytest.mark.parametrize(
    ("share", "draw", "expected"),
    [(0.0, 0.0, False), (1.0, 0.999, True), (0.5, 0.499, True), (0.5, 0.5, False)],
)
def test_chosen(share: float, draw: float, expected: bool) -> None:
    assert chosen(share, draw) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"find": "c", "filter": {"a": 1}}, True, id="find"),
        pytest.param({"count": "c"}, True, id="count"),
        pytest.param({"distinct": "c", "key": "a"}, True, id="distinct"),
        pytest.param({"aggregate": "c", "pipeline": [], "cursor": {}}, True, id="aggregate"),
        pytest.param({"insert": "c"}, False, id="a write"),
        pytest.param({"explain": {"find": "c"}}, False, id="an explanation"),
        pytest.param({"find": "c", "autocommit": False}, False, id="in a transaction"),
        pytest.param({"find": "c", "startTransaction": True}, False, id="begins a transaction"),
        pytest.param({"find": "c", "readConcern": {"level": "snapshot"}}, False, id="snapshot"),
        pytest.param({"find": "c", "readConcern": {"afterClusterTime": T}}, True, id="causal"),
        pytest.param({"find": "c", "readConcern": {"atClusterTime": T}}, False, id="of the past"),
        pytest.param({"find": "c", "filter": 5}, False, id="no filter"),
        pytest.param(
            {"find": "c", "filter": {"$expr": {"$lt": ["$a", {"$rand": {}}]}}}, False, id="random"
        ),
        pytest.param(
            {"find": "c", "filter": {"$expr": {"$lt": ["$t", "$$NOW"]}}}, False, id="by the clock"
        ),
        pytest.param({"aggregate": "c", "pipeline": [{"$sample": {"size": 1}}]}, False, id="dice"),
        pytest.param(
            {"aggregate": "c", "pipeline": [{"$changeStream": {}}]}, False, id="a change stream"
        ),
    ],
)
def test_suits(fields: dict[str, Any], expected: bool) -> None:
    assert suits(command(fields)) is expected


# --- what the archive is asked


def asked(fields: dict[str, Any], reply: bytes) -> dict[str, Any] | None:
    found = ask_again(command(fields), reply)
    if found is None:
        return None
    plain = bson.decode(found.command.body)
    for name in ("$db", "comment", "maxTimeMS"):
        assert plain.pop(name)
    return {**plain, "shape": found.shape}


DOCUMENT, RESULT = Shape.DOCUMENTS, Shape.RESULTS
TWO = ({"_id": 1}, {"_id": 2})
ONCE = {"singleBatch": True}


@pytest.mark.parametrize(
    ("fields", "reply", "expected"),
    [
        pytest.param(
            {"find": "c", "filter": {"a": 1}, "lsid": {"id": 1}, "readConcern": {}},
            cursor(*TWO),
            {"find": "c", "filter": {"a": 1}, **ONCE, "batchSize": 3, "shape": DOCUMENT},
            id="whole: one too many would show",
        ),
        pytest.param(
            {"find": "c", "filter": {"a": 1}, "limit": 5},
            cursor(*TWO),
            {"find": "c", "filter": {"a": 1}, "limit": 5, **ONCE, "batchSize": 3, "shape": DOCUMENT},
            id="limit not reached: whole",
        ),
        pytest.param(
            {"find": "c", "filter": {"_id": 9}, "limit": 1, "singleBatch": True},
            cursor(),
            {"find": "c", "filter": {"_id": 9}, "limit": 1, **ONCE, "batchSize": 1, "shape": DOCUMENT},
            id="nothing: whole",
        ),
        pytest.param(
            {"find": "c", "filter": {"a": 1}, "limit": 2, "hint": "a_1"},
            cursor(*TWO),
            {
                "find": "c",
                "filter": {"$and": [{"a": 1}, {"_id": {"$in": [1, 2]}}]},
                **ONCE,
                "batchSize": 2,
                "shape": DOCUMENT,
            },
            id="any two: about those two",
        ),
        pytest.param(
            {"find": "c", "filter": {}, "skip": 4},
            cursor(*TWO),
            {
                "find": "c",
                "filter": {"$and": [{}, {"_id": {"$in": [1, 2]}}]},
                **ONCE,
                "batchSize": 2,
                "shape": DOCUMENT,
            },
            id="skipped somewhere",
        ),
        pytest.param(
            {"find": "c", "filter": {}, "sort": {"$natural": 1}, "limit": 2},
            cursor(*TWO),
            {
                "find": "c",
                "filter": {"$and": [{}, {"_id": {"$in": [1, 2]}}]},
                **ONCE,
                "batchSize": 2,
                "shape": DOCUMENT,
            },
            id="a server's own order is none",
        ),
        pytest.param(
            {"find": "c", "filter": {}, "sort": {"a": 1}, "limit": 2},
            cursor(*TWO),
            {
                "find": "c",
                "filter": {},
                "sort": {"a": 1},
                "limit": 2,
                **ONCE,
                "batchSize": 2,
                "shape": DOCUMENT,
            },
            id="ordered: the same",
        ),
        pytest.param(
            {"find": "c", "filter": {}, "batchSize": 2},
            cursor(*TWO, cursor_id=7),
            {
                "find": "c",
                "filter": {"$and": [{}, {"_id": {"$in": [1, 2]}}]},
                **ONCE,
                "batchSize": 2,
                "shape": DOCUMENT,
            },
            id="a first batch",
        ),
        pytest.param({"find": "c", "batchSize": 0}, cursor(cursor_id=7), None, id="an empty batch"),
        pytest.param(
            {"find": "c", "projection": {"_id": 0, "a": 1}, "limit": 1},
            cursor({"a": 1}),
            None,
            id="any one, without its id",
        ),
        pytest.param(
            {"find": "c", "projection": {"_id": 0, "a": 1}},
            cursor({"a": 1}),
            {
                "find": "c",
                "projection": {"_id": 0, "a": 1},
                **ONCE,
                "batchSize": 2,
                "shape": RESULT,
            },
            id="whole, without ids",
        ),
        pytest.param(
            {"count": "c", "query": {"a": 1}, "limit": 3, "lsid": {"id": 1}},
            bson.encode({"n": 3}),
            {"count": "c", "query": {"a": 1}, "limit": 3, "shape": Shape.COUNT},
            id="count",
        ),
        pytest.param(
            {"distinct": "c", "key": "k", "query": {"a": 1}},
            bson.encode({"values": []}),
            {"distinct": "c", "key": "k", "query": {"a": 1}, "shape": Shape.VALUES},
            id="distinct",
        ),
        pytest.param(
            {"aggregate": "c", "pipeline": [{"$match": {}}], "cursor": {"batchSize": 5}},
            cursor({"x": 1}),
            {
                "aggregate": "c",
                "pipeline": [{"$match": {}}],
                "cursor": {"batchSize": 2},
                "shape": RESULT,
            },
            id="a whole pipeline",
        ),
        pytest.param(
            {"aggregate": "c", "pipeline": [{"$match": {}}], "cursor": {"batchSize": 1}},
            cursor({"x": 1}, cursor_id=7),
            None,
            id="any part of a pipeline's results",
        ),
        pytest.param(
            {"aggregate": "c", "pipeline": [{"$limit": 1}], "cursor": {}},
            cursor({"x": 1}),
            None,
            id="a pipeline about any document",
        ),
        pytest.param(
            {"aggregate": "c", "pipeline": [{"$sort": {"a": 1}}, {"$limit": 1}], "cursor": {}},
            cursor({"x": 1}),
            {
                "aggregate": "c",
                "pipeline": [{"$sort": {"a": 1}}, {"$limit": 1}],
                "cursor": {"batchSize": 2},
                "shape": RESULT,
            },
            id="an ordered pipeline",
        ),
    ],
)  # fmt: skip
def test_ask_again(fields: dict[str, Any], reply: bytes, expected: dict[str, Any] | None) -> None:
    assert asked(fields, reply) == expected


@pytest.mark.parametrize(
    ("projection", "expected"),
    [
        ({}, True), ({"a": 1}, True), ({"a": 0}, True), ({"_id": 0}, False), ({"_id": 1}, True),
        ({"_id": False, "a": 1}, False), ({"_id": 0.0}, False), ({"_id": 1.0}, True),
        ({"_id": "$a"}, False), ({"_id": {"$add": [1, 2]}}, False),
    ],
)  # fmt: skip
def test_shows_ids(projection: dict[str, Any], expected: bool) -> None:
    assert shows_ids(bson.encode(projection)) is expected


def test_at_one_time_a_count_is_a_pipeline() -> None:
    found = ask_again(
        command({"count": "c", "query": {"a": 1}, "skip": 2, "limit": -3}), bson.encode({"n": 1})
    )
    assert found is not None
    plain = bson.decode(at_time(found, T).command.body)
    assert plain["pipeline"] == [
        {"$match": {"a": 1}},
        {"$skip": 2},
        {"$limit": 3},
        {"$count": "n"},
    ]
    assert plain["readConcern"] == {"level": "snapshot", "atClusterTime": T}
    assert (plain["aggregate"], plain["$db"]) == ("c", "shop")


def test_a_scan_is_of_the_questions_own_filter_and_of_all_that_is_joined() -> None:
    stages = [{"$match": {"t": 1}}, {"$lookup": {"from": "d", "as": "x"}}]
    question = ask(command({"aggregate": "c", "pipeline": stages, "let": {"v": 1}, "cursor": {}}))
    own = bson.decode(scan(question, "shop.c", T).body)
    assert (own["find"], own["filter"], own["let"]) == ("c", {"t": 1}, {"v": 1})
    joined = bson.decode(scan(question, "shop.d", T).body)
    assert joined["find"] == "d"
    assert "filter" not in joined
    assert own["readConcern"] == joined["readConcern"] == {"level": "snapshot", "atClusterTime": T}

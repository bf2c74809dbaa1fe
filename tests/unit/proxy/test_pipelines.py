"""What pipelines read, write and prove."""

from typing import Any

import bson
import pytest

from thermocline_proxy.commands.pipelines import Pipeline, read_pipeline

LOOKUP = {"from": "b", "localField": "x", "foreignField": "y", "as": "z"}


def parse(*stages: dict[str, Any]) -> Pipeline:
    return read_pipeline([bytes(bson.encode(stage)) for stage in stages], "db")


@pytest.mark.parametrize(
    ("stages", "joined"),
    [
        ([{"$match": {"from": "b"}}], set()),
        ([{"$lookup": LOOKUP}], {"db.b"}),
        ([{"$lookup": {"from": "b", "pipeline": [{"$lookup": {**LOOKUP, "from": "c"}}], "as": "z"}}], {"db.b", "db.c"}),
        ([{"$unionWith": "b"}], {"db.b"}),
        ([{"$unionWith": {"coll": "b", "pipeline": [{"$unionWith": "c"}]}}], {"db.b", "db.c"}),
        ([{"$graphLookup": {"from": "b", "startWith": "$x"}}], {"db.b"}),
        ([{"$facet": {"one": [{"$lookup": LOOKUP}], "two": [{"$unionWith": "c"}]}}], {"db.b", "db.c"}),
    ],
)  # fmt: skip
def test_joined(stages: list[dict[str, Any]], joined: set[str]) -> None:
    found = parse(*stages)
    assert found.joined == joined
    assert found.portable


@pytest.mark.parametrize(
    "stages",
    [
        [{"$lookup": {"as": "z", "pipeline": [{"$documents": []}]}}],
        [{"$lookup": {**LOOKUP, "from": {"db": "local", "coll": "oplog"}}}],
        [{"$lookup": {**LOOKUP, "from": 5}}],
        [{"$lookup": 5}],
        [{"$unionWith": 5}],
        [{"$unionWith": {"pipeline": []}}],
        [{"$facet": {"one": [{"$new": 1}]}}],
        [{"$facet": {"one": 5}}],
        [{"$facet": 5}],
        [{"$collStats": {}}], [{"$indexStats": {}}], [{"$currentOp": {}}], [{"$documents": []}],
        [{"$search": {}}], [{"$searchMeta": {}}], [{"$planCacheStats": {}}], [{"$changeStream": {}}],
        [{"$out": "b"}], [{"$merge": "b"}], [{"$new": 1}], [{}], [{"$match": {}, "$sort": {}}],
    ],
)  # fmt: skip
def test_not_portable(stages: list[dict[str, Any]]) -> None:
    assert not parse(*stages).portable


@pytest.mark.parametrize(
    ("stage", "written"),
    [
        ({"$out": "b"}, "db.b"),
        ({"$out": {"db": "other", "coll": "b"}}, "other.b"),
        ({"$merge": "b"}, "db.b"),
        ({"$merge": {"into": "b", "on": "_id"}}, "db.b"),
        ({"$merge": {"into": {"db": "other", "coll": "b"}}}, "other.b"),
        ({"$merge": {"into": {"coll": "b"}}}, "db.b"),
        ({"$merge": {}}, "db."),
        ({"$out": 5}, "db."),
        ({"$match": {"$out": "b"}}, None),
    ],
)
def test_written(stage: dict[str, Any], written: str | None) -> None:
    assert parse({"$match": {}}, stage).written == written


@pytest.mark.parametrize(
    ("stages", "query"),
    [
        ([], {}),
        ([{"$match": {"x": 1}}], {"x": 1}),
        ([{"$sort": {"y": 1}}, {"$match": {"x": 1}}], {"x": 1}),
        ([{"$match": {"x": 1}}, {"$match": {"y": 2}}], {"$and": [{"x": 1}, {"y": 2}]}),
        ([{"$match": {"x": 1}}, {"$limit": 1}, {"$match": {"y": 2}}], {"x": 1}),
        ([{"$skip": 1}, {"$match": {"y": 2}}], {}),
        ([{"$set": {"y": 2}}, {"$match": {"y": 2}}], {}),
        ([{"$match": 5}, {"$match": {"y": 2}}], {}),
    ],
)
def test_leading_filter(stages: list[dict[str, Any]], query: dict[str, Any]) -> None:
    assert bson.decode(parse(*stages).filter) == query


@pytest.mark.parametrize(
    ("stages", "limit"),
    [
        ([{"$sort": {"t": -1}}, {"$limit": 5}], 5),
        ([{"$match": {}}, {"$sort": {"t": -1}}, {"$limit": 5.0}], 5),
        ([{"$sort": {"t": -1}}, {"$match": {}}, {"$limit": 5}], None),
        ([{"$limit": 5}, {"$sort": {"t": -1}}], None),
        ([{"$sort": {"t": -1}}, {"$limit": 5}, {"$match": {}}], None),
        ([{"$sort": {"t": -1}}, {"$skip": 1}, {"$limit": 5}], None),
        ([{"$sort": {"t": -1}}, {"$limit": 5.5}], None),
        ([{"$unwind": "$x"}, {"$sort": {"t": -1}}, {"$limit": 5}], None),
        ([{"$limit": 5}], None),
    ],
)
def test_newest(stages: list[dict[str, Any]], limit: int | None) -> None:
    found = parse(*stages).newest
    assert (None if found is None else found[1]) == limit

"""Change streams: where one may begin, what the tiers get, and what becomes of their replies."""

import uuid
from dataclasses import replace
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State
from thermocline_common.errors import CommandError
from thermocline_common.ids import DocId
from thermocline_common.sessions import new_reserved_id
from thermocline_proxy.commands.change_streams import (
    Watch,
    ahead,
    check_on_archive,
    check_on_fast,
    for_archive,
    for_fast,
    met_the_feeder,
    scan_of_updates,
    watch_of,
)
from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.resume_tokens import NO_COLLECTION, marked
from thermocline_proxy.reads.stream_replies import not_found, stream_batch, with_mark

FAST = uuid.UUID("e2c91ef0-9e4b-445c-964f-51c044215f7d")
ARCHIVE = uuid.UUID("617f7e8c-232f-44e9-aa01-cbfbccc792bf")
SECOND = 0x6B0DA393
BEGIN = Timestamp(SECOND, 0x10)
PLAIN = "826B0DA393000000122B0229296E04"
EARLY = "826B0DA392000000122B0229296E04"
OWN = marked(PLAIN, FAST.bytes)
COVERAGE = Coverage(
    "shop.orders",
    State.ACTIVE,
    State.ACTIVE,
    fast_uuid=FAST,
    archive_uuid=ARCHIVE,
    activated_at=BEGIN,
)
NO_COLLECTION_YET = replace(COVERAGE, fast_uuid=None, archive_uuid=None)


def event_token(origin: uuid.UUID) -> str:
    return f"826B0DA393000000122B022C0100296E5A1004{origin.hex.upper()}461E5F6964002B020004"


def watch(options: Any, *stages: Any, **fields: Any) -> Command:
    return Command(
        bson.encode(
            {"aggregate": "orders", "pipeline": [{"$changeStream": options}, *stages], "cursor": {}, "$db": "shop", **fields}
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, Watch()),
        (5, Watch()),
        ({"resumeAfter": {"_data": PLAIN}}, Watch(token=PLAIN)),
        ({"startAfter": {"_data": OWN, "more": 1}}, Watch(token=OWN)),
        ({"resumeAfter": {"_data": 5}}, Watch()),
        ({"resumeAfter": 5}, Watch()),
        ({"resumeAfter": {}}, Watch()),
        ({"startAtOperationTime": BEGIN}, Watch(at=BEGIN)),
        ({"startAtOperationTime": 5}, Watch()),
        ({"fullDocument": "updateLookup"}, Watch(looks_up=True)),
        ({"fullDocument": "whenAvailable"}, Watch()),
        ({"allChangesForCluster": True}, Watch(cluster=True)),
        ({"allChangesForCluster": False}, Watch()),
    ],
)
def test_options(options: Any, found: Watch) -> None:
    assert watch_of(watch(options)) == found


@pytest.mark.parametrize(
    ("stages", "hides"),
    [
        ([], False),
        ([{"$match": {"operationType": "update"}}], False),
        ([{"$match": {"fullDocument.status": "open"}}], True),
        ([{"$match": {"$expr": {"$eq": ["$$ROOT.x", 1]}}}], True),
        ([{"$project": {"operationType": 1}}], True),
        ([{"$match": {}}, {"$addFields": {"x": 1}}], True),
    ],
)
def test_stages_that_may_hide_what_was_not_found(stages: list[Any], hides: bool) -> None:
    looks_up = watch_of(watch({"fullDocument": "updateLookup"}, *stages))
    assert looks_up == Watch(looks_up=True, hides=hides)
    assert watch_of(watch({}, *stages)) == Watch()


def test_the_scan_for_updates_begins_where_the_stream_stands() -> None:
    options = {
        "fullDocument": "updateLookup",
        "startAfter": {"_data": OWN},
        "fullDocumentBeforeChange": "off",
    }
    command = watch(
        options, {"$match": {"x": 1}}, lsid={"id": 1}, readConcern={"level": "majority"}
    )
    scan = scan_of_updates(command)
    first, own, updates, keys = pipeline_of(scan)
    assert first == {"$changeStream": {"startAfter": {"_data": PLAIN}}}
    assert "$nor" in own["$match"]
    assert updates == {"$match": {"operationType": "update"}}
    assert keys == {"$project": {"documentKey._id": 1}}
    assert bson.decode(scan.body)["lsid"] == {"id": 1}
    assert scan.namespace == "shop.orders"
    later = pipeline_of(scan_of_updates(command, OWN))[0]
    assert later == {"$changeStream": {"resumeAfter": {"_data": PLAIN}}}


def test_what_is_no_change_stream() -> None:
    assert watch_of(Command(bson.encode({"find": "orders", "$db": "shop"}))) is None
    pipelines: list[Any] = [[], [{}], [{"$match": {}}, {"$changeStream": {}}], 5, [5]]
    for pipeline in pipelines:
        fields = {"aggregate": "orders", "pipeline": pipeline, "$db": "shop"}
        assert watch_of(Command(bson.encode(fields))) is None


@pytest.mark.parametrize(
    ("asked", "coverage"),
    [
        (Watch(), COVERAGE),
        (Watch(), NO_COLLECTION_YET),
        (Watch(token=OWN), COVERAGE),
        (Watch(token=event_token(FAST)), COVERAGE),
        # Made before the first insert created the collection.
        (Watch(token=marked(PLAIN, NO_COLLECTION)), COVERAGE),
        (Watch(token=marked(PLAIN, NO_COLLECTION)), NO_COLLECTION_YET),
        (Watch(token="zz"), COVERAGE),
        (Watch(at=BEGIN), COVERAGE),
        (Watch(at=Timestamp(SECOND + 1, 0)), COVERAGE),
    ],
)
def test_may_begin_on_the_fast_tier(asked: Watch, coverage: Coverage) -> None:
    check_on_fast(asked, coverage)


@pytest.mark.parametrize(
    ("asked", "coverage"),
    [
        (Watch(token=PLAIN), COVERAGE),
        (Watch(token=event_token(ARCHIVE)), COVERAGE),
        (Watch(token=event_token(uuid.uuid4())), COVERAGE),
        (Watch(token=marked(PLAIN, uuid.uuid4().bytes)), COVERAGE),
        (Watch(token=marked(EARLY, NO_COLLECTION)), COVERAGE),
        (Watch(token=marked(PLAIN, NO_COLLECTION)), replace(COVERAGE, activated_at=None)),
        (Watch(token=OWN), NO_COLLECTION_YET),
        (Watch(token=event_token(uuid.UUID(bytes=NO_COLLECTION))), NO_COLLECTION_YET),
        (Watch(at=Timestamp(SECOND, 0xF)), COVERAGE),
        (Watch(at=BEGIN), replace(COVERAGE, activated_at=None)),
    ],
)
def test_may_not_begin_on_the_fast_tier(asked: Watch, coverage: Coverage) -> None:
    with pytest.raises(CommandError) as caught:
        check_on_fast(asked, coverage)
    assert caught.value.code == 286
    assert caught.value.labels == ("NonResumableChangeStreamError",)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (Watch(), None),
        (Watch(token=PLAIN), None),
        (Watch(token=event_token(ARCHIVE)), None),
        (Watch(token="zz"), None),
        (Watch(token=OWN), 286),
        (Watch(token=marked(PLAIN, NO_COLLECTION)), 286),
        (Watch(token=event_token(FAST)), 286),
        (Watch(at=BEGIN), 72),
    ],
)
def test_where_the_archive_begins(asked: Watch, code: int | None) -> None:
    if code is None:
        check_on_archive(asked, COVERAGE)
        return
    with pytest.raises(CommandError) as caught:
        check_on_archive(asked, COVERAGE)
    assert caught.value.code == code


def test_a_time_that_the_archive_has_not_reached() -> None:
    assert ahead(Watch(token=PLAIN), Timestamp(SECOND, 0x11))
    assert not ahead(Watch(token=PLAIN), Timestamp(SECOND, 0x12))
    assert not ahead(Watch(), Timestamp(1, 1))


def pipeline_of(command: Command) -> list[Any]:
    stages: list[Any] = bson.decode(command.body)["pipeline"]
    return stages


def test_the_fast_tier_leaves_out_thermoclines_own_and_gets_its_own_token_back() -> None:
    match = {"$match": {"operationType": "insert"}}
    command = for_fast(
        watch({"resumeAfter": {"_data": OWN}, "fullDocument": "updateLookup"}, match), BEGIN
    )
    first, second, third = pipeline_of(command)
    assert first == {
        "$changeStream": {"resumeAfter": {"_data": PLAIN}, "fullDocument": "updateLookup"}
    }
    (bounds,) = second["$match"]["$nor"]
    low, high = bounds["lsid.id"]["$gte"], bounds["lsid.id"]["$lte"]
    assert low <= new_reserved_id().bytes <= high
    assert third == match
    concern = bson.decode(command.body)["readConcern"]
    assert concern == {"level": "majority", "afterClusterTime": BEGIN}


def test_the_clients_own_time_stays_where_it_is_later() -> None:
    later = Timestamp(SECOND + 9, 0)
    command = for_fast(watch({}, readConcern={"afterClusterTime": later}), BEGIN)
    assert bson.decode(command.body)["readConcern"]["afterClusterTime"] == later
    local = for_fast(watch({}, readConcern={"level": "local"}), BEGIN)
    assert bson.decode(local.body)["readConcern"] == {"level": "local"}


def test_a_pipeline_in_a_section_of_its_own() -> None:
    stages = [bson.encode({"$changeStream": {}}), bson.encode({"$project": {"ns": 1}})]
    command = Command(bson.encode({"aggregate": "orders", "$db": "shop"}), {"pipeline": stages})
    assert watch_of(command) == Watch()
    sent = for_fast(command, None)
    assert [next(iter(stage)) for stage in pipeline_of(sent)] == [
        "$changeStream",
        "$match",
        "$project",
    ]
    assert not sent.sequences


def test_the_archive_shows_no_times_and_nothing_of_thermoclines_own() -> None:
    project = {"$project": {"clusterTime": 1}}
    first, own, *rest = pipeline_of(for_archive(watch({}, project), ("thermocline",)))
    assert (first, rest) == ({"$changeStream": {}}, [project, {"$unset": "clusterTime"}])
    (feeders, text, other) = own["$replaceWith"]["$cond"]
    assert [next(iter(bound)) for bound in feeders["$and"]] == ["$gte", "$lte"]
    assert (isinstance(text, str), other) == (True, "$$ROOT")
    assert met_the_feeder(bson.encode({"ok": 0.0, "code": 40228, "errmsg": f"no object: {text}"}))
    assert not met_the_feeder(bson.encode({"ok": 0.0, "code": 40228, "errmsg": "no object: 5"}))
    assert not met_the_feeder(bson.encode({"ok": 1.0, "cursor": {"nextBatch": [{"x": text}]}}))
    everything = {"allChangesForCluster": True}
    assert pipeline_of(for_archive(watch(everything), ("thermocline",))) == [
        {"$changeStream": everything},
        {"$match": {"ns.db": {"$nin": ["thermocline"]}}},
        {"$unset": "clusterTime"},
    ]


def reply(token: Any, *events: Any, batch: str = "nextBatch", **fields: Any) -> bytes:
    cursor = {
        batch: list(events),
        "postBatchResumeToken": token,
        "id": Int64(7),
        "ns": "shop.orders",
        **fields,
    }
    return bytes(bson.encode({"cursor": cursor, "ok": 1.0}))


def test_a_batch() -> None:
    found = stream_batch(reply({"_data": PLAIN}, {"_id": {"_data": "x"}}, invalidated=True))
    assert found is not None
    assert (found.cursor_id, found.namespace, found.invalidated) == (7, "shop.orders", True)
    for raw in (
        bson.encode(
            {"cursor": {"firstBatch": [{"postBatchResumeToken": 1}], "id": Int64(0)}, "ok": 1.0}
        ),
        bson.encode({"ok": 0.0, "errmsg": "postBatchResumeToken"}),
        bson.encode({"cursor": 5, "postBatchResumeToken": 1}),
        bson.encode({"ok": 1.0}),
    ):
        assert stream_batch(raw) is None


def test_only_the_token_changes() -> None:
    for batch in ("firstBatch", "nextBatch"):
        raw = reply({"_data": PLAIN}, {"_id": {"_data": event_token(FAST)}, "x": 1}, batch=batch)
        found = stream_batch(raw)
        assert found is not None
        before, after = bson.decode(raw), bson.decode(with_mark(raw, found, FAST.bytes))
        assert after["cursor"].pop("postBatchResumeToken") == {"_data": OWN}
        before["cursor"].pop("postBatchResumeToken")
        assert list(before["cursor"].items()) == list(after["cursor"].items())
    raw = reply({"_data": event_token(FAST)})
    found = stream_batch(raw)
    assert found is not None
    assert with_mark(raw, found, FAST.bytes) == raw


def test_looked_up_and_not_found() -> None:
    update = {"operationType": "update", "fullDocument": None, "documentKey": {"_id": 1}}
    events = [
        update,
        update,
        {**update, "documentKey": {"_id": 2}, "fullDocument": {"_id": 2}},
        {**update, "operationType": "replace", "documentKey": {"_id": 3}},
        {"operationType": "delete", "documentKey": {"_id": 4}},
        {"operationType": "update", "fullDocument": None},
        {"operationType": "update", "fullDocument": None, "documentKey": {}},
        {"documentKey": {"_id": "five"}, "fullDocument": None},
    ]
    batch = stream_batch(reply({"_data": PLAIN}, *events))
    assert batch is not None
    one, five = (DocId.of_document(bson.encode({"_id": i})) for i in (1, "five"))
    assert not_found(batch) == (one, five)
    none = stream_batch(reply({"_data": PLAIN}, {"_id": {"fullDocument": 1}}))
    assert none is not None
    assert not_found(none) == ()

"""The routing decision: a table in ``tests/cases/routes.json``, and what holds for every command."""

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import json_util
from bson.timestamp import Timestamp
from hypothesis import given, settings, strategies as st

from thermocline_common.coverage import Coverage, Doubt, State, Tier, UniqueIndex
from thermocline_common.errors import Code
from thermocline_proxy.commands.command import Command, build
from thermocline_proxy.routing.decide import decide
from thermocline_proxy.routing.routes import ArchiveRead, FastRead, Reason, Refused, tier_of
from thermocline_proxy.routing.snapshot import Snapshot, Tiering

CASES = json.loads((Path(__file__).parents[2] / "cases" / "routes.json").read_text())["cases"]
FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OPTIONS = json_util.JSONOptions(tz_aware=True)


def coverage(name: str, state: State = State.ACTIVE, **fields: Any) -> Coverage:
    given_fields: dict[str, Any] = {"target": state, **fields}
    return Coverage(
        namespace=f"shop.{name}", state=state, archive_time=Timestamp(50, 1), **given_fields
    )


AGED: dict[str, Any] = {"age_field": "t", "floor": FLOOR, "published_at": Timestamp(100, 1)}
WHOLE: dict[str, Any] = {"keep_all": True, "complete": True, "published_at": Timestamp(100, 1)}
COVERAGES = [
    coverage("orders", unique=(UniqueIndex("email", ("email",), plain=True),), **AGED),
    coverage("cold", age_field="t"),
    coverage("products", **WHOLE),
    coverage("prices", **WHOLE),
    coverage("joining", State.PAUSING, target=State.ACTIVE, age_field="t"),
    coverage("leaving", State.PAUSING, target=State.PASSTHROUGH, **AGED),
    coverage("passing", State.PASSTHROUGH, **AGED),
]
SNAPSHOT = Snapshot(
    expires=1.0,
    untiered_expires=1.0,
    tierings={one.namespace: Tiering(one) for one in COVERAGES},
    listed=frozenset({"shop.lost", *(one.namespace for one in COVERAGES)}),
    views={"shop.recent": frozenset({"shop.orders"})},
)


def command(fields: dict[str, Any]) -> Command:
    return Command(bson.encode({**fields, "$db": "shop"}))


def read(case: dict[str, Any]) -> Command:
    fields = json_util.loads(json.dumps(case), json_options=OPTIONS)
    return Command(bson.encode({**fields, "$db": fields.get("$db", "shop")}))


@pytest.mark.parametrize(
    ("_name", "fields", "route", "reason"), CASES, ids=[case[0] for case in CASES]
)
def test_route(_name: str, fields: dict[str, Any], route: str, reason: str) -> None:
    found = decide(read(fields), SNAPSHOT)
    assert (type(found).__name__, found.reason.value) == (route, reason)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_reads_of_tiered_data_from_the_archive_wait_for_the_barrier(case: list[Any]) -> None:
    found = decide(read(case[1]), SNAPSHOT)
    if isinstance(found, ArchiveRead):
        immediate = {Reason.UNTIERED, Reason.METADATA}
        # A time that the archive chose behind the barrier needs none.
        passed = "atClusterTime" in case[1].get("readConcern", {})
        assert found.barrier is (found.reason not in immediate and not passed)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_nothing_rests_on_a_floor_that_is_gone(case: list[Any]) -> None:
    tierings = {
        name: Tiering(replace(tiering.coverage, floor=None, complete=False))
        for name, tiering in SNAPSHOT.tierings.items()
    }
    found = decide(read(case[1]), replace(SNAPSHOT, tierings=tierings))
    assert not isinstance(found, FastRead) or found.reason is Reason.COMMAND


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_archive_alone(case: list[Any]) -> None:
    found = decide(read(case[1]), replace(SNAPSHOT, archive_only=True))
    assert tier_of(found) is not Tier.FAST or found.reason in (
        Reason.COMMAND,
        Reason.CHANGE_STREAM,  # of the writes, which go to F all the same
    )
    if isinstance(found, ArchiveRead) and found.reason is not Reason.COMMAND:
        assert not found.barrier


def doubted(*names: str) -> Snapshot:
    tierings = {
        name: Tiering(replace(tiering.coverage, doubt=Doubt()))
        for name, tiering in SNAPSHOT.tierings.items()
        if name in names or not names
    }
    return replace(SNAPSHOT, tierings={**SNAPSHOT.tierings, **tierings})


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_nothing_is_asked_of_the_fast_tier_in_doubt(case: list[Any]) -> None:
    found, before = decide(read(case[1]), doubted()), decide(read(case[1]), SNAPSHOT)
    assert tier_of(found) is not Tier.FAST or found.reason in (
        Reason.COMMAND,
        Reason.CHANGE_STREAM,
    )
    if isinstance(found, ArchiveRead) and tier_of(before) is Tier.FAST:
        assert found == ArchiveRead(Reason.IN_DOUBT, barrier=True)


def test_doubt_is_about_its_namespace_and_what_joins_it() -> None:
    query = {"find": "orders", "filter": {"t": {"$gte": FLOOR}}}
    assert decide(command(query), doubted("shop.products")).reason is Reason.COVERED
    stage = {"$lookup": {"from": "products", "localField": "p", "foreignField": "_id", "as": "p"}}
    joined = {
        "aggregate": "orders",
        "pipeline": [{"$match": {"t": {"$gte": FLOOR}}}, stage],
        "cursor": {},
    }
    assert decide(command(joined), SNAPSHOT).reason is Reason.COVERED
    assert decide(command(joined), doubted("shop.products")).reason is Reason.IN_DOUBT


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_passthrough_is_as_if_untiered(case: list[Any]) -> None:
    tierings = {
        name: Tiering(replace(tiering.coverage, state=State.PASSTHROUGH))
        for name, tiering in SNAPSHOT.tierings.items()
    }
    listed = SNAPSHOT.listed - {"shop.lost"}
    found = decide(read(case[1]), replace(SNAPSHOT, tierings=tierings, listed=listed))
    assert found == ArchiveRead(Reason.UNTIERED, barrier=False, tiered=False)


def quarantined(**options: Any) -> Snapshot:
    one = SNAPSHOT.tierings["shop.orders"]
    tiering = Tiering(one.coverage, quarantined=True, **options)
    return replace(SNAPSHOT, tierings={**SNAPSHOT.tierings, "shop.orders": tiering})


def test_quarantine_leaves_reads_of_the_fast_tier_alone() -> None:
    for case in CASES:
        found = decide(read(case[1]), quarantined())
        before = decide(read(case[1]), SNAPSHOT)
        if tier_of(before) is Tier.FAST:
            assert found == before
    refused = decide(command({"find": "orders", "filter": {"v": 1}}), quarantined())
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.code) == (Reason.QUARANTINED, Code.OperationFailed)
    assert "Degraded" in refused.message
    joined = command({"aggregate": "logs", "pipeline": [{"$unionWith": "orders"}], "cursor": {}})
    assert decide(joined, quarantined()).reason is Reason.QUARANTINED
    other = decide(command({"find": "cold", "filter": {"v": 1}}), quarantined())
    assert isinstance(other, ArchiveRead)


def test_relaxed_reads_skip_the_barrier_unless_a_session_asks_for_more() -> None:
    plain = {"find": "orders", "filter": {"v": 1}}
    found = decide(command(plain), quarantined(relaxed=True))
    assert found == ArchiveRead(Reason.NO_BOUND, barrier=False)
    causal = {**plain, "readConcern": {"afterClusterTime": Timestamp(5, 1)}}
    assert decide(command(causal), quarantined(relaxed=True)) == ArchiveRead(
        Reason.NO_BOUND, barrier=True
    )
    mixed = {"aggregate": "orders", "pipeline": [{"$unionWith": "cold"}], "cursor": {}}
    assert decide(command(mixed), quarantined(relaxed=True)) == ArchiveRead(
        Reason.JOIN, barrier=True
    )


def test_a_floor_without_a_publication_time_is_none() -> None:
    orders = replace(SNAPSHOT.tierings["shop.orders"].coverage, published_at=None)
    snapshot = replace(SNAPSHOT, tierings={"shop.orders": Tiering(orders)})
    query = {"find": "orders", "filter": {"t": {"$gte": FLOOR}}}
    assert decide(command(query), snapshot).reason is Reason.NOTHING_COVERED


# --- never raises, whatever a client sends

NAMES = st.sampled_from(
    ["find", "aggregate", "count", "distinct", "explain", "listIndexes", "mapReduce", "hologram"]
)
KEYS = st.sampled_from(
    [
        "filter", "query", "pipeline", "sort", "limit", "skip", "batchSize", "cursor", "collation",
        "readConcern", "$readPreference", "projection", "hint", "explain", "level", "_id", "t",
        "$and", "$or", "$in", "$gte", "$eq", "$match", "$lookup", "from", "$facet", "$sort",
        "$limit", "$merge", "into", "$changeStream", "email", "$elemMatch", "mode", "locale",
    ]
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["orders", "", 1.5, FLOOR])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=15,
)


@settings(max_examples=500, deadline=None)
@given(name=NAMES, target=SCALARS | VALUES, fields=st.dictionaries(KEYS, VALUES, max_size=5))
def test_it_is_total(name: str, target: Any, fields: dict[str, Any]) -> None:
    found = decide(Command(bson.encode({name: target, **fields, "$db": "shop"})), SNAPSHOT)
    assert isinstance(found.reason, Reason)


@pytest.mark.parametrize(("published", "route"), [(150, "Refused"), (100, "FastRead")])
def test_a_snapshot_from_before_a_joined_collection_was_complete_is_no_basis(
    published: int, route: str
) -> None:
    whole = SNAPSHOT.tierings["shop.products"]
    later = replace(whole, coverage=replace(whole.coverage, published_at=Timestamp(published, 1)))
    snapshot = replace(SNAPSHOT, tierings={**SNAPSHOT.tierings, "shop.products": later})
    join = {"from": "products", "localField": "p", "foreignField": "_id", "as": "p"}
    recent = {"t": {"$gte": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}}
    command = build(
        {
            "aggregate": "orders",
            "pipeline": [{"$match": recent}, {"$lookup": join}],
            "cursor": {},
            "readConcern": {"level": "snapshot", "atClusterTime": Timestamp(120, 1)},
            "$db": "shop",
        }
    )
    assert type(decide(command, snapshot)).__name__ == route

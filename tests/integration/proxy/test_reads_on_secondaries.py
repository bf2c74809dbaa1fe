"""Reads that prefer secondaries, while the secondary lags: they wait, and never answer with less."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import bson
import pytest
from pymongo import WriteConcern

from support.mongod import Mongod, ReplicaSet
from support.read_gateway import ReadBench
from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.tiers import Tiers
from thermocline_proxy.routing.snapshot import Tiering

pytestmark = pytest.mark.integration

FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OLD, NEW = FLOOR - dt.timedelta(days=5), FLOOR + dt.timedelta(days=5)
SECONDARY = {"$readPreference": {"mode": "secondary", "tags": [{"use": "reads"}]}}


def lag(member: Mongod, mode: str) -> None:
    """Stop (``alwaysOn``) or resume (``off``) a member's replication."""
    with member.direct_client() as client:
        client.admin.command({"configureFailPoint": "rsSyncApplyStop", "mode": mode})


@pytest.fixture
def lagging_set(make_replica_set: Callable[..., ReplicaSet]) -> ReplicaSet:
    """Two members make the majority; the third is the only one that reads may go to."""
    options = [{}, {"priority": 0}, {"priority": 0, "tags": {"use": "reads"}}]
    made = make_replica_set("lagging", members=3, test_commands=True, member_options=options)
    with made.client() as client:
        client.shop.orders.insert_one({"_id": "first"})
        database = client.get_database("shop", write_concern=WriteConcern(3))
        database.orders.delete_one({"_id": "first"})
    return made


async def bench_of(tiers: Tiers, **fields: Any) -> ReadBench:
    given: dict[str, Any] = {"age_field": "t", "floor": FLOOR, **fields}
    coverage = Coverage("shop.orders", State.ACTIVE, State.ACTIVE, **given)
    bench = ReadBench(tiers, coverage)
    bench.exchange.tags = [{"use": "reads"}]
    return bench


async def now(client: Any) -> Any:
    return (await client.admin.command("ping"))["operationTime"]


async def waits_for(member: Mongod, reading: "asyncio.Task[list[Any]]") -> list[Any]:
    """The answer, which mustn't come before the member has caught up."""
    await asyncio.sleep(0.7)
    early = reading.done()
    await asyncio.to_thread(lag, member, "off")
    found = await asyncio.wait_for(reading, 20)
    assert not early, found
    return found


@pytest.fixture
async def clients(
    lagging_set: ReplicaSet, archive: ReplicaSet
) -> AsyncIterator[tuple[ReplicaSet, Any, Any]]:
    async with lagging_set.async_client() as one, archive.async_client() as other:
        yield lagging_set, one, other
    lag(lagging_set.members[2], "off")


async def test_a_document_evicted_just_before_is_found_on_the_archives_secondary(
    clients: tuple[ReplicaSet, Any, Any],
) -> None:
    lagging, cold, hot = clients
    tiers = Tiers(hot, cold)
    await asyncio.to_thread(lag, lagging.members[2], "alwaysOn")
    await cold.shop.orders.insert_one({"_id": 1, "t": OLD})
    bench = await bench_of(tiers, archive_time=await now(cold))
    reading = asyncio.create_task(bench.find({"_id": 1}, **SECONDARY))
    assert await waits_for(lagging.members[2], reading) == [1]


async def test_a_covered_range_on_the_fast_tiers_secondary(
    clients: tuple[ReplicaSet, Any, Any],
) -> None:
    lagging, hot, cold = clients
    tiers = Tiers(hot, cold)
    await asyncio.to_thread(lag, lagging.members[2], "alwaysOn")
    await hot.shop.orders.insert_one({"_id": 1, "t": NEW})
    bench = await bench_of(tiers, published_at=await now(hot))
    reading = asyncio.create_task(bench.find({"t": {"$gte": FLOOR}}, **SECONDARY))
    assert await waits_for(lagging.members[2], reading) == [1]
    assert bench.asked() == ["fast"]


async def test_a_promoted_document_that_the_fast_tiers_secondary_lacks(
    clients: tuple[ReplicaSet, Any, Any],
) -> None:
    """A document of a year ago mustn't vanish because it was promoted a moment ago."""
    lagging, hot, cold = clients
    tiers = Tiers(hot, cold)
    bench = await bench_of(tiers)
    await bench.put(Tier.ARCHIVE, {"_id": 1, "t": OLD})
    await asyncio.to_thread(lag, lagging.members[2], "alwaysOn")
    await bench.promote(1)
    assert await bench.find({"_id": 1}, **SECONDARY) == [1]
    assert bench.steps.log == ["fast find", "in_fast", "fast find"]
    assert [to_primary for _, _, to_primary in bench.exchange.sent] == [False, True]


async def test_the_tiers_own_preferences_count_for_reads_that_state_none(
    clients: tuple[ReplicaSet, Any, Any],
) -> None:
    lagging, hot, cold = clients
    bench = await bench_of(Tiers(hot, cold), published_at=await now(hot))
    preferences = {Tier.FAST: bson.encode(SECONDARY["$readPreference"]), Tier.ARCHIVE: None}
    bench.gateway.preference = preferences.get
    await bench.put(Tier.FAST, {"_id": 1, "t": NEW})
    primary = {"$readPreference": {"mode": "primary"}}
    assert await bench.find({"t": {"$gte": FLOOR}}, **primary) == [1]
    await asyncio.to_thread(lag, lagging.members[2], "alwaysOn")
    await bench.put(Tier.FAST, {"_id": 2, "t": NEW})
    bench.leases.snapshot = replace(
        bench.leases.snapshot,
        tierings={
            "shop.orders": Tiering(
                replace(
                    bench.leases.snapshot.tierings["shop.orders"].coverage,
                    published_at=await now(hot),
                )
            )
        },
    )
    reading = asyncio.create_task(bench.find({"t": {"$gte": FLOOR}}))
    assert await waits_for(lagging.members[2], reading) == [1, 2]
    assert await bench.find({"x": 1}) == []
    sent = [(tier, "$readPreference" in command) for tier, command, _ in bench.exchange.sent]
    assert sent == [(Tier.FAST, True), (Tier.FAST, True), (Tier.ARCHIVE, False)]
    assert [to_primary for _, _, to_primary in bench.exchange.sent] == [True, False, True]

"""Case G5: how many ages are no dates is told, by the collection's name, for whatever the ages are."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.hand_feeder import activate, coverage
from support.mongod import ReplicaSet
from thermocline_common.tiers import Tiers
from thermocline_warmer.age_types import APART_SECONDS, LOOK_SECONDS, AgeLooks
from thermocline_warmer.plan.ages import SAMPLE

pytestmark = pytest.mark.integration
NS = "shop.orders"
DATE = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
AGES: list[Any] = [DATE, DATE, DATE, DATE, "2026-01-01", None, 1_700_000_000, [DATE]]


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        yield Tiers(f, a)


async def test_the_share_of_ages_that_are_no_dates(tiers: Tiers) -> None:
    await activate(tiers, NS)
    now = [0.0]
    looks = AgeLooks(tiers, lambda: now[0])
    orders = tiers.archive["shop"]["orders"]
    await orders.delete_many({})
    documents = [{"t": age} for age in AGES] + [{}, {"t": DATE}]
    await orders.insert_many([dict(d) for d in documents])
    active = {NS: await coverage(tiers, NS)}
    await looks.look(active)
    assert looks.reports[NS].status() == {
        "notDatePercent": 50.0,
        "byType": {"array": 10.0, "int": 10.0, "missing": 10.0, "null": 10.0, "string": 10.0},
        "sampled": 10,
    }
    await orders.delete_many({"t": {"$not": {"$type": "date"}}})
    await orders.delete_many({"t": [DATE]})
    await looks.look(active)
    assert looks.reports[NS].status()["notDatePercent"] == 50.0, "it isn't asked all the time"
    now[0] += LOOK_SECONDS + 1
    await looks.look(active)
    assert looks.reports[NS].status()["notDatePercent"] == 0.0
    await looks.look({})
    assert looks.reports == {}


async def test_a_large_collection_is_looked_at_one_document_at_a_time(tiers: Tiers) -> None:
    """All at once they held the archive's readers up for seconds."""
    await activate(tiers, NS)
    orders = tiers.archive["shop"]["orders"]
    await orders.delete_many({})
    await orders.insert_many([{"_id": i, "t": DATE if i < 1_500 else "old"} for i in range(1_600)])
    await orders.insert_many([{"_id": f"s{i:04}", "t": DATE} for i in range(1_600)])
    active = {NS: await coverage(tiers, NS)}
    rests: list[float] = []

    async def sleep(seconds: float) -> bool:
        rests.append(seconds)
        return len(rests) >= SAMPLE

    looks = AgeLooks(tiers, sleep=sleep)
    await looks.look(active)
    assert rests == [APART_SECONDS] * SAMPLE
    status = looks.reports[NS].status()
    # Between two strings there may be none that follows: not every try finds a document.
    assert 60 < status["sampled"] <= SAMPLE
    assert list(status["byType"]) == ["string"]
    assert 0 < status["notDatePercent"] < 30  # about one number in sixteen

    async def end(_: float) -> bool:
        return True

    looks = AgeLooks(tiers, sleep=end)
    await looks.look(active)
    assert looks.reports[NS].sampled <= 1

"""The shared barrier on two real tiers; a task of the test stands for the feeder."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect

from support.mongod import ReplicaSet
from thermocline_common import names
from thermocline_common.barrier import write_marker
from thermocline_common.errors import CommandError
from thermocline_common.tiers import Tiers
from thermocline_proxy import barrier as module
from thermocline_proxy.barrier import SharedBarrier

pytestmark = pytest.mark.integration


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as hot, archive.async_client() as cold:
        yield Tiers(hot, cold)


@pytest.fixture
async def barrier(tiers: Tiers) -> AsyncIterator[SharedBarrier]:
    made = SharedBarrier(tiers, uuid.uuid4(), time.monotonic, 5.0)
    yield made
    await made.close()


async def fast_now(tiers: Tiers) -> Timestamp:
    reply = await tiers.fast.admin.command("ping")
    found: Timestamp = reply["operationTime"]
    return found


async def check(tiers: Tiers, reached: Timestamp) -> None:
    """The checkpoint, as the feeder writes it."""
    await tiers.archive[names.DATABASE][names.CHECKPOINT].update_one(
        {"_id": names.CHECKPOINT_ID}, {"$set": {"time": reached}}, upsert=True
    )


async def markers(tiers: Tiers) -> int:
    found = await tiers.fast[names.DATABASE][names.MARKERS].find_one({})
    return 0 if found is None else int(found["n"])


async def test_it_waits_for_the_checkpoint(tiers: Tiers, barrier: SharedBarrier) -> None:
    await check(tiers, await fast_now(tiers))
    waiting = asyncio.create_task(barrier.passed(None))
    await asyncio.sleep(0.2)
    assert not waiting.done(), "the checkpoint is from before the marker"
    await check(tiers, await fast_now(tiers))
    reached = await asyncio.wait_for(waiting, 5)
    reply = await tiers.archive.shop.command(
        {"find": "orders", "readConcern": {"level": "majority", "afterClusterTime": reached}}
    )
    assert reply["ok"]


async def test_queries_share_markers_but_never_an_older_one(
    tiers: Tiers, barrier: SharedBarrier
) -> None:
    waiting = [asyncio.create_task(barrier.passed(None)) for _ in range(50)]
    await asyncio.sleep(0.3)
    assert await markers(tiers) == 2, "the first, and one for all that came behind it"
    covered = await fast_now(tiers)
    late = asyncio.create_task(barrier.passed(None))
    await asyncio.sleep(0.1)
    assert await markers(tiers) == 3
    await check(tiers, covered)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert not late.done(), "it came after the checkpoint's time"
    await check(tiers, await fast_now(tiers))
    await asyncio.wait_for(late, 5)


async def test_its_limits(tiers: Tiers, barrier: SharedBarrier) -> None:
    with pytest.raises(CommandError) as caught:
        await barrier.passed(time.monotonic() + 0.2)
    assert caught.value.code == 50
    with pytest.raises(CommandError) as caught:
        await barrier.passed(time.monotonic() - 1)
    assert caught.value.code == 50
    barrier.timeout = 0.2
    with pytest.raises(CommandError) as caught:
        await barrier.passed(None)
    assert caught.value.code == 262
    assert barrier.problem is not None
    await check(tiers, Timestamp(2**31 - 1, 1))
    barrier.timeout = 5.0
    await barrier.passed(None)
    assert barrier.problem is None


async def test_a_query_that_gives_up_does_not_disturb_the_others(
    tiers: Tiers, barrier: SharedBarrier
) -> None:
    patient = asyncio.create_task(barrier.passed(None))
    hasty = asyncio.create_task(barrier.passed(None))
    await asyncio.sleep(0)
    hasty.cancel()
    patient_too = asyncio.create_task(barrier.passed(None))
    await asyncio.sleep(0.1)
    await check(tiers, Timestamp(2**31 - 1, 1))
    await asyncio.wait_for(asyncio.gather(patient, patient_too), 5)
    assert hasty.cancelled()


async def test_what_no_driver_repeats_is_patient(
    tiers: Tiers, barrier: SharedBarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a read would wait, through a time in which a tier can't be reached, and to its deadline."""
    barrier.timeout = 0.2
    failures = [AutoReconnect("no primary"), TimeoutError()]
    real = write_marker

    async def write(*arguments: Any) -> Timestamp:
        if failures:
            raise failures.pop()
        return await real(*arguments)

    monkeypatch.setattr(module, "write_marker", write)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.1)
    waiting = asyncio.create_task(barrier.passed(None, patience=60.0))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    with pytest.raises(CommandError) as caught:
        await barrier.passed(None)
    assert caught.value.code == 262, "a read gives up, its driver repeats it"
    with pytest.raises(CommandError) as caught:
        await barrier.passed(time.monotonic() + 0.5, patience=60.0)
    assert caught.value.code == 50, "as long as the client has said"
    later = asyncio.create_task(barrier.passed(time.monotonic() + 60, patience=0.3))
    await asyncio.sleep(0.5)
    await check(tiers, Timestamp(2**31 - 1, 1))
    await asyncio.wait_for(asyncio.gather(waiting, later), 30)
    assert barrier.problem is None
    await check(tiers, Timestamp(1, 1))
    with pytest.raises(CommandError) as caught:
        await barrier.passed(None, patience=0.5)
    assert caught.value.code == 262, "but not for ever"


async def test_a_quarantine_that_no_lease_tells_of_yet_counts(
    tiers: Tiers, barrier: SharedBarrier
) -> None:
    waiting = [
        asyncio.create_task(barrier.passed(None, whole=whole))
        for whole in ([], ["shop.other"], ["shop.other", "shop.orders"])
    ]
    await asyncio.sleep(0.2)
    await tiers.archive[names.DATABASE][names.CHECKPOINT].update_one(
        {"_id": names.CHECKPOINT_ID},
        {"$set": {"quarantine": [{"ns": "shop.orders", "id": 7, "code": 11000, "reason": "x"}]}},
        upsert=True,
    )
    await check(tiers, await fast_now(tiers))
    no_matter, other, needed = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(no_matter, Timestamp)
    assert isinstance(other, Timestamp)
    assert isinstance(needed, CommandError)
    assert needed.code == 96
    assert "shop.orders" in needed.message

"""A lease is waited out as proxies use it, whatever the waiter's own manifest says."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.feeders import Feeder, following, write_manifest
from support.mongod import ReplicaSet
from support.services import Manifest
from thermocline_common.coverage import State, Tier
from thermocline_common.coverage_store import read_lease
from thermocline_common.health import Problems
from thermocline_common.leases import Lease
from thermocline_common.manifest import ManifestFollower
from thermocline_common.tiers import Tiers
from thermocline_feeder.checkpoint import Fenced
from thermocline_feeder.lease import LeasePublisher
from thermocline_proxy.settings import Settings
from thermocline_proxy.state import LeaseKeeper
from thermocline_proxy.times import TierClock

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        await a["shop"]["orders"].create_index("t")
        yield Tiers(f, a)


@pytest.fixture
def manifest(tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet) -> Manifest:
    return write_manifest(tmp_path, fast, archive, [POLICY])


@pytest.fixture
async def follower(manifest: Manifest) -> AsyncIterator[ManifestFollower]:
    async with following(manifest) as found:
        yield found


@contextlib.asynccontextmanager
async def proxy(tiers: Tiers, lease: float) -> AsyncIterator[LeaseKeeper]:
    """A proxy's lease, by a file of its own."""
    settings = Settings(
        lease=lease,
        barrier_timeout=5.0,
        drain_timeout=1.0,
        archive_only=False,
        relaxed=frozenset(),
        max_connections=10,
        owner=("tests", "shop"),
    )
    clocks = {tier: TierClock() for tier in Tier}
    keeper = LeaseKeeper(tiers, clocks, lambda: settings, Problems(), time.monotonic)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def published(feeder: Feeder, tiers: Tiers, lease: Lease) -> None:
    async def there() -> bool:
        return await read_lease(tiers.archive) == lease

    await feeder.until(there)


def remaining(keeper: LeaseKeeper) -> float:
    snapshot = keeper.snapshot
    return max(snapshot.expires, snapshot.untiered_expires) - time.monotonic()


async def test_a_proxy_uses_no_more_than_is_published(
    tiers: Tiers, manifest: Manifest, follower: ManifestFollower
) -> None:
    async with Feeder(tiers, follower) as feeder, proxy(tiers, 20.0) as keeper:
        await feeder.reaches(NS, State.ACTIVE)
        await published(feeder, tiers, Lease(200, 200))
        manifest.change(proxy={"lease": "3s"})
        await published(feeder, tiers, Lease(3_000, 3_000))
        await feeder.until(lambda: 1.0 < remaining(keeper) <= 3.0)
        manifest.change(proxy={"lease": "300ms"})
        await published(
            feeder, tiers, Lease(300, 3_000)
        )  # proxies shorten theirs, waiters don't yet
        lowered = time.monotonic()
        await feeder.until(lambda: remaining(keeper) <= 0.3)
        await published(feeder, tiers, Lease(300, 300))
        assert time.monotonic() - lowered > 2.8


async def test_a_restarted_feeder_waits_for_the_lease_that_proxies_still_use(
    tiers: Tiers, manifest: Manifest, follower: ManifestFollower
) -> None:
    """The lease is lowered and the collection withdrawn while the feeder is away and a proxy is frozen."""
    manifest.change(proxy={"lease": "2s"})
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await published(feeder, tiers, Lease(2_000, 2_000))
    manifest.change(proxy={"lease": "100ms"}, mode="Passthrough")
    await asyncio.sleep(0.5)  # the follower has it
    async with proxy(tiers, 2.0) as keeper:
        await keeper.current(time.monotonic() + 10)
        assert keeper.snapshot.tierings[NS].coverage.state is State.ACTIVE
    assert remaining(keeper) > 1.0  # and the proxy stands still from here on
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.PASSTHROUGH)
        assert remaining(keeper) < 0
        await published(feeder, tiers, Lease(100, 100))


async def test_only_the_owner_publishes(
    tiers: Tiers, manifest: Manifest, follower: ManifestFollower
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await published(feeder, tiers, Lease(200, 200))
        other = LeasePublisher(tiers.archive, type(feeder.service.me)(int=1))
        with pytest.raises(Fenced):
            await other.publish(30.0)
        assert await read_lease(tiers.archive) == Lease(200, 200)

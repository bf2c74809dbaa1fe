"""Case M30: a tier that is away when a namespace should pause, or goes away in the middle, holds nothing up."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import PyMongoError

from support.feeders import Feeder, following, write_manifest
from support.mongod import Mongod, ReplicaSet
from thermocline_common.coverage import State
from thermocline_common.coverage_store import read_one
from thermocline_common.tiers import Tiers

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}


async def test_m30_a_tier_that_is_down_when_a_namespace_should_pause(
    make_replica_set: Callable[..., ReplicaSet], tmp_path: Path
) -> None:
    sets = {name: make_replica_set(name) for name in ("fast", "archive")}
    manifest = write_manifest(tmp_path, sets["fast"], sets["archive"], [POLICY])
    doomed: list[Mongod] = []
    seen: list[State] = []

    async def pause(step: str) -> None:
        if step == "create" and doomed:
            doomed.pop().kill()

    # As the services' own clients: a tier that is away is noticed after seconds.
    patience: dict[str, Any] = {"serverSelectionTimeoutMS": 3_000}
    async with (
        sets["fast"].async_client(**patience) as fast,
        sets["archive"].async_client(**patience) as archive,
        following(manifest) as follower,
    ):
        tiers = Tiers(fast, archive)
        here, there = fast["shop"]["orders"], archive["shop"]["orders"]
        await there.create_index("t")
        await there.insert_many([{"_id": i} for i in range(50)])
        wanted: set[Any] = set(range(50))

        async def runs() -> bool:
            """Whether somebody is served: the namespace doesn't pause."""
            try:
                found = await read_one(tiers, NS)
            except PyMongoError:
                return False  # a connection from before the tier was away
            if found is not None:
                seen.append(found.state)
            return found is not None and found.state is not State.PAUSING

        async def reaches(state: State) -> None:
            async def there_now() -> bool:
                return await runs() and seen[-1] is state

            await feeder.until(there_now)

        async with Feeder(tiers, follower, pause=pause) as feeder:
            await reaches(State.ACTIVE)
            for down, replica_set in sets.items():
                await here.insert_one({"_id": f"{down} before"})
                await feeder.replayed()

                # Down when it should pause: then nothing pauses.
                replica_set.members[0].kill()
                manifest.change(mode="Passthrough")
                await asyncio.sleep(2)
                if down == "archive":
                    seen.clear()
                    await feeder.until(runs)
                    assert seen == [State.ACTIVE]
                replica_set.members[0].start()
                await reaches(State.PASSTHROUGH)
                assert await there.find_one({"_id": f"{down} before"}) is not None
                await there.insert_one({"_id": f"{down} between"})

                # Gone in the middle: the pause ends as soon as it can be ended, and the switch comes later.
                doomed.append(replica_set.members[0])
                manifest.change(mode="Active")
                await feeder.until(lambda: not doomed)
                if down == "archive":
                    await feeder.until(runs)
                    assert seen[-1] is State.PASSTHROUGH, "ending it needs the fast tier alone"
                replica_set.members[0].start()
                await reaches(State.ACTIVE)
                await here.insert_one({"_id": f"{down} after"})
                await feeder.replayed()
                wanted |= {f"{down} {moment}" for moment in ("before", "between", "after")}
                assert {d["_id"] async for d in there.find({}, {"_id": 1})} == wanted

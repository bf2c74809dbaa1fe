"""The real code of all components under orders that a scheduler picks: the protocol holds in each.

A sample of ``make schedules``, which goes on for as long as it is told to.
"""

import pytest

from support.mongod import ReplicaSet
from support.schedules.mixes import model_mixes, small_mixes, wider_mixes
from support.schedules.runner import run_enumerated, run_random, worlds

pytestmark = pytest.mark.integration
Sets = tuple[ReplicaSet, ReplicaSet]


@pytest.mark.parametrize("kind", ["model", "wider"])
async def test_mixes_in_random_orders(kind: str, quick_sets: Sets) -> None:
    mixes = list(model_mixes() if kind == "model" else wider_mixes())
    async with worlds(*quick_sets) as opened:
        ran = await run_random(opened, mixes, seed=1, seconds=25)
    print(ran)
    assert ran.schedules
    assert ran.unfinished <= max(1, ran.schedules / 10)


async def test_pairs_in_every_order_with_one_preemption(quick_sets: Sets) -> None:
    async with worlds(*quick_sets) as opened:
        ran = await run_enumerated(opened, small_mixes(), preemptions=1, seconds=25)
    print(ran)
    assert ran.schedules
    assert not ran.unfinished

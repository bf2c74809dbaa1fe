"""The throttle against a disk that does one read after the other: a model, in time of its own.

It shows what the rules lead to where reads queue; what real machines do, `bench/pace.py` measures.
"""

import random
import statistics

import pytest

from thermocline_common.pacing import Cost, Throttle

READ_SECONDS = 0.0025
"""400 reads a second."""


class Disk:
    """Serves reads in the order of their arrival."""

    def __init__(self) -> None:
        self.free = 0.0

    def read(self, now: float) -> float:
        """When a read that arrives now is done."""
        self.free = max(self.free, now) + READ_SECONDS
        return self.free


def play(
    seconds: float, per_second: float, *, work: bool, yielding: bool = True, probes: float = 0.2
) -> tuple[float, int]:
    """The 99th percentile of the application's reads (s), and how many documents were worked off."""
    chance = random.Random(5)
    disk, cost, throttle = Disk(), Cost(), Throttle()
    taken: list[float] = []
    arrival = chance.expovariate(per_second)
    documents, left = 0, throttle.piece(250)
    began, step = 0.0, 0.0 if work else float("inf")
    beside_due = alone_due = 0.0
    while min(arrival, step) < seconds:
        if arrival <= step:
            taken.append(disk.read(arrival) - arrival)
            arrival += chance.expovariate(per_second)
            continue
        now = step
        step = disk.read(now)
        if yielding and now >= beside_due:
            beside_due = now + probes
            cost = cost.saw_beside(disk.read(now) - now + READ_SECONDS * (chance.random() - 1))
            throttle = throttle.adjusted(cost.strain)
        documents += 1
        left -= 1
        if left > 0:
            continue
        if yielding:
            step += throttle.seconds(step - began)
            if step >= alone_due:
                # Asked for at the end of the rest; arrivals until then are served before it.
                alone_due = step + probes
                while arrival <= step:
                    taken.append(disk.read(arrival) - arrival)
                    arrival += chance.expovariate(per_second)
                cost = cost.saw_alone(disk.read(step) - step)
        left, began = throttle.piece(250) if yielding else 250, step
    return statistics.quantiles(taken, n=100)[98], documents


@pytest.mark.parametrize("per_second", [40.0, 120.0, 200.0])
def test_readers_hardly_notice_work_that_gives_way(per_second: float) -> None:
    paused, _ = play(600, per_second, work=False)
    working, documents = play(600, per_second, work=True)
    assert working <= 1.2 * paused
    assert documents > 600 * 4  # and yet it goes on


def test_readers_notice_work_that_does_not() -> None:
    paused, _ = play(600, 40.0, work=False)
    working, _ = play(600, 40.0, work=True, yielding=False)
    assert working > 1.2 * paused

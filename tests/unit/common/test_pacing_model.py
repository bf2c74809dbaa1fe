"""The throttle against models of disks, in time of their own.

They show what the rules lead to where reads queue, and where a disk allows so many in a piece of time;
what real machines do, `bench/pace.py` measures.
"""

import random
import statistics
from collections.abc import Callable
from typing import Protocol

import pytest

from thermocline_common.archive_probe import SETTLED_SECONDS, UNSETTLED_SECONDS
from thermocline_common.pacing import PROBE_SECONDS, Courtesy, Throttle

READ_SECONDS = 0.0025
"""400 reads a second."""


class Disk(Protocol):
    def read(self, now: float) -> float:
        """When a read that arrives now is done."""


class Queue:
    """Serves reads one after the other, in the order of their arrival."""

    def __init__(self) -> None:
        self.free = 0.0

    def read(self, now: float) -> float:
        self.free = max(self.free, now) + READ_SECONDS
        return self.free


class Rationed:
    """Serves reads at once, so many in each tenth of a second; what is more waits for the next."""

    RATION = 40

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}

    def read(self, now: float) -> float:
        piece = int(now * 10)
        while self.taken.get(piece, 0) >= self.RATION:
            piece += 1
        self.taken[piece] = self.taken.get(piece, 0) + 1
        return max(now, piece / 10) + READ_SECONDS / 5


class Uneven(Rationed):
    """By itself, one read in ten takes twice as long as usual, or thrice."""

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(3)

    def read(self, now: float) -> float:
        more = READ_SECONDS * self.chance.uniform(2.0, 3.0) if self.chance.random() < 0.1 else 0.0
        return super().read(now) + more


class World:
    """An application whose reads come by chance, so many a second; and probes that learn, if any."""

    def __init__(self, disk: Disk, per_second: float, probing: bool, seed: int = 5) -> None:
        self.disk = disk
        self.per_second = per_second
        self.chance = random.Random(seed)
        self.taken: list[tuple[float, float]] = []
        self.arrival = self.chance.expovariate(per_second)
        self.probe = 0.1 if probing else float("inf")
        self.courtesy = Courtesy.beginning()
        self.fixed = None if probing else Throttle()
        self.worked = 0.0
        self.alone = 0.0

    @property
    def throttle(self) -> Throttle:
        return self.courtesy.throttle if self.fixed is None else self.fixed

    def until(self, now: float) -> None:
        """Everything that others do until now."""
        while min(self.arrival, self.probe) <= now:
            if self.arrival <= self.probe:
                self.taken.append((self.arrival, self.disk.read(self.arrival) - self.arrival))
                self.arrival += self.chance.expovariate(self.per_second)
                continue
            seconds = self.disk.read(self.probe) - self.probe
            if self.probe - self.worked > SETTLED_SECONDS:
                self.courtesy = self.courtesy.saw_alone(seconds)
                self.alone = self.probe
            else:
                self.courtesy = self.courtesy.saw_beside(seconds)
            self.probe += PROBE_SECONDS * 2 * self.chance.random()

    def work(self, end: float) -> int:
        """Pieces of work, and rests between them; how many documents."""
        documents, now = 0, 0.0
        while now < end:
            began = now
            piece = self.throttle.piece(250)
            for _ in range(piece):
                self.until(now)
                self.worked = now = self.disk.read(now)
            documents += piece
            self.courtesy = self.courtesy.saw_piece(piece, now - began, now)
            rest = self.throttle.seconds(now - began)
            if now - self.alone > UNSETTLED_SECONDS:
                rest = max(rest, SETTLED_SECONDS + 2 * PROBE_SECONDS)
            now += rest
            self.until(now)
        return documents

    def p99(self) -> float:
        return statistics.quantiles([took for at, took in self.taken if at >= BEGIN], n=100)[98]


BEGIN, END = 60.0, 900.0


def play(
    make: Callable[[], Disk], per_second: float, *, work: bool, yielding: bool = True
) -> tuple[float, int]:
    """The 99th percentile of the application's reads (s), and the documents worked off."""
    world = World(make(), per_second, work and yielding)
    documents = world.work(END) if work else 0
    world.until(END)
    return world.p99(), documents


@pytest.mark.parametrize("per_second", [40.0, 120.0, 200.0])
@pytest.mark.parametrize("disk", [Queue, Rationed, Uneven])
def test_readers_hardly_notice_work_that_gives_way(
    disk: Callable[[], Disk], per_second: float
) -> None:
    paused, _ = play(disk, per_second, work=False)
    working, documents = play(disk, per_second, work=True)
    assert working <= 1.2 * paused
    assert documents > 900 * 4  # and yet it goes on


@pytest.mark.parametrize("disk", [Queue, Rationed, Uneven])
def test_readers_notice_work_that_does_not(disk: Callable[[], Disk]) -> None:
    paused, _ = play(disk, 40.0, work=False)
    working, _ = play(disk, 40.0, work=True, yielding=False)
    assert working > 1.2 * paused


@pytest.mark.parametrize("per_second", [40.0, 120.0, 200.0])
def test_readers_hardly_notice_the_start(per_second: float) -> None:
    held_up = total = 0
    for seed in range(10):
        world = World(Rationed(), per_second, True, seed)
        world.work(30)
        world.until(30)
        held_up += sum(took > 2 * READ_SECONDS for _, took in world.taken)
        total += len(world.taken)
    assert held_up / total < 0.02


def test_an_archive_in_memory_is_worked_with_at_full_speed() -> None:
    class Memory:
        def read(self, now: float) -> float:
            return now + 0.0001

    _, documents = play(Memory, 40.0, work=True)
    assert documents > 900 * 5_000

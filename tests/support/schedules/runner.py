"""Runs many schedules on one pair of tiers."""

import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from support.mongod import ReplicaSet
from support.schedules.actors import Mix
from support.schedules.exploration import Bounded, Random, run_schedule
from support.schedules.scheduler import Stuck, Violation
from support.schedules.world import World, open_world


@dataclass
class Ran:
    """How much was done. ``whole``: mixes of which every order within the bound was tried."""

    schedules: int = 0
    unfinished: int = 0
    whole: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.schedules} schedules"
        if self.unfinished:
            text += f" ({self.unfinished} with too many steps)"
        if self.whole:
            text += f"; all orders of {len(self.whole)} mixes: {'; '.join(self.whole)}"
        return text

    def count(self, *, finished: bool) -> None:
        self.schedules += 1
        self.unfinished += not finished


@contextlib.asynccontextmanager
async def worlds(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[dict[bool, World]]:
    """A world without, and one with, a unique index."""
    with pytest.MonkeyPatch.context() as patch:
        opened: dict[bool, World] = {}
        try:
            for unique in (False, True):
                opened[unique] = await open_world(fast, archive, patch, unique=unique)
            yield opened
        finally:
            for world in opened.values():
                await world.close()


async def run_random(
    opened: dict[bool, World], mixes: Sequence[Mix], *, seed: int, seconds: float
) -> Ran:
    """Mixes and orders at random. Raises :class:`Violation` with what reproduces it."""
    chooser = random.Random(seed)
    end = time.monotonic() + seconds
    ran = Ran()
    while time.monotonic() < end:
        mix, own = chooser.choice(mixes), chooser.randrange(1_000_000)
        try:
            finished = await run_schedule(opened[mix.unique], mix, Random(own))
        except (Violation, Stuck) as violation:
            raise Violation(f"{mix}, order {own}: {violation}") from violation
        ran.count(finished=finished)
    return ran


async def run_enumerated(
    opened: dict[bool, World],
    mixes: Sequence[Mix],
    *,
    preemptions: int,
    seconds: float,
    seed: int = 1,
) -> Ran:
    """Every order of each mix with at most so many preemptions, one after the other at random, until
    the mix's share of the time is up.

    Raises :class:`Violation` with the decisions that reproduce it.
    """
    chooser = random.Random(seed)
    end = time.monotonic() + seconds
    ran = Ran()
    for number, mix in enumerate(mixes):
        now = time.monotonic()
        share = now + (end - now) / (len(mixes) - number)
        left: list[dict[int, int]] = [{}]
        while left and time.monotonic() < share:
            index = chooser.randrange(len(left))
            left[index], left[-1] = left[-1], left[index]
            policy = Bounded(left.pop(), preemptions)
            try:
                finished = await run_schedule(opened[mix.unique], mix, policy)
            except (Violation, Stuck) as violation:
                raise Violation(f"{mix}, decisions {policy.deviations}: {violation}") from violation
            ran.count(finished=finished)
            left += policy.further()
        if not left:
            ran.whole.append(str(mix))
    return ran

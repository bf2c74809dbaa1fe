"""Orders: scripted, bounded and enumerated, or random with few changes of mind."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.schedules.actors import Mix, work_of
from support.schedules.scheduler import (
    TIME,
    Choice,
    Policy,
    Unfinished,
    Violation,
)
from support.schedules.world import World

FEEDER = "feeder"
POLL_SECONDS = 0.1
"""Who sleeps for less waits for the feeder."""


def default(choices: Sequence[Choice], last: Choice | None) -> int:
    """Go on with the actor that was last; else the first that can; time passes if nobody can."""
    if last is not None:
        for index, choice in enumerate(choices):
            if choice.name == last.name and choice.name != TIME:
                return index
    for index, choice in enumerate(choices):
        if choice.name != TIME:
            return index
    return 0


@dataclass
class Scripted:
    """Follows ``script``: (actor, label) lets the actor go on until it stands before that label (None:
    until it ends; a number: so many steps). While it waits, time passes, or the feeder works if it
    waits for that. Afterwards: the default."""

    script: Sequence[tuple[str, str | int | None]]
    crashes: bool = False
    feeder_crashes: int = 0
    ended: Callable[[str], bool] = lambda name: False
    _at: int = 0
    _steps: int = 0

    def pick(self, choices: list[Choice], last: Choice | None) -> int:
        while self._at < len(self.script):
            name, until = self.script[self._at]
            found = next((i for i, c in enumerate(choices) if c.name == name), None)
            enough = isinstance(until, int) and self._steps >= until
            if enough or (found is None and self.ended(name)):
                self._next()
            elif found is None:
                return self._meanwhile(choices, last)
            elif self._steps and until is not None and choices[found].label == until:
                self._next()
            else:
                self._steps += 1
                return found
        return default(choices, last)

    def _next(self) -> None:
        self._at += 1
        self._steps = 0

    def _meanwhile(self, choices: list[Choice], last: Choice | None) -> int:
        by_name = {c.name: i for i, c in enumerate(choices)}
        if TIME in by_name and choices[by_name[TIME]].seconds > POLL_SECONDS:
            return by_name[TIME]
        for name in (FEEDER, TIME):
            if name in by_name:
                return by_name[name]
        return default(choices, last)


@dataclass
class Point:
    """A decision: the options in the order in which they are tried, and the one taken."""

    options: tuple[int, ...]
    taken: int = 0


@dataclass
class Bounded:
    """The ``prefix`` of decisions, then the default; switching away from an actor that could go on
    costs one of ``preemptions``."""

    prefix: Sequence[int]
    preemptions: int
    crashes: bool = False
    feeder_crashes: int = 0
    points: list[Point] = field(default_factory=list)

    def pick(self, choices: list[Choice], last: Choice | None) -> int:
        first = default(choices, last)
        forced = last is None or choices[first].name != last.name
        others = [i for i, c in enumerate(choices) if i != first and c.name != TIME]
        later = [i for i, c in enumerate(choices) if i != first and c.name == TIME]
        options = [first]
        if forced or self.preemptions > 0:
            options += others
        if self.preemptions > 0:
            options += later
        position = len(self.points)
        taken = self.prefix[position] if position < len(self.prefix) else 0
        chosen = options[min(taken, len(options) - 1)]
        if chosen != first and (not forced or chosen in later):
            self.preemptions -= 1
        self.points.append(Point(tuple(options), taken))
        return chosen


@dataclass
class Random:
    """Priorities and a few changes of them at random steps (as in probabilistic concurrency testing)."""

    seed: int
    changes: int = 3
    length: int = 60
    crashes: bool = False
    feeder_crashes: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._priority: dict[str, float] = {}
        self._at = {self._random.randrange(self.length) for _ in range(self.changes)}
        self._step = 0
        self._lowest = 0.0
        self.crashes = self._random.random() < 0.15
        self.feeder_crashes = self._random.choice((0, 0, 0, 1, 2))

    def pick(self, choices: list[Choice], last: Choice | None) -> int:
        self._step += 1
        for choice in choices:
            if choice.name not in self._priority:
                high = 1.0 + self._random.random()
                self._priority[choice.name] = high / 4 if choice.crash else high
        if last is not None and (
            self._step in self._at or last.label == "sleep" or last.name == TIME
        ):
            self._lowest -= 1.0
            self._priority[last.name] = self._lowest
        usable = [
            i for i, c in enumerate(choices) if not c.crash or self._random.random() < 0.02
        ] or list(range(len(choices)))
        best = max(usable, key=lambda i: self._priority[choices[i].name])
        # Which of an actor's own concurrent tasks goes first is anybody's guess.
        same = [i for i in usable if choices[i].name == choices[best].name]
        return self._random.choice(same)


async def run_schedule(world: World, mix: Mix, policy: Policy) -> bool:
    """One schedule with all its checks. False: it took too many steps. Raises :class:`Violation`."""
    await world.begin(
        mix.starts,
        policy,
        floor=mix.floor,
        age=mix.age,
        covered=mix.covered,
        feeder_crashes=policy.feeder_crashes,
    )
    scheduler = world.scheduler
    if isinstance(policy, Scripted):
        policy.ended = scheduler.ended
    seen: dict[str, int] = {}
    for name in mix.actors:
        seen[name] = seen.get(name, 0) + 1
        shown = name if seen[name] == 1 else f"{name} #{seen[name]}"
        work = work_of(name)
        client = name.split()[0] not in ("evict", "warm", "cover", "collect")
        scheduler.add(shown, work(world, mix.times), may_crash=client)
    feeder = scheduler.add(FEEDER, world.feed(), background=True)
    try:
        await scheduler.run()
        await scheduler.drain(world.drained)
        await world.judge_rest()
    except Unfinished:
        return False
    except Violation as violation:
        if "\n" not in str(violation):
            raise Violation(f"{violation}\n{scheduler.story()}") from violation
        raise
    finally:
        world.hooks.scheduler = None
        await scheduler.end()
        assert feeder.task is not None
        feeder.task.cancel()
        for close in world.closing:
            await close()
    return True


def following(policy: Bounded) -> list[int] | None:
    """The next decisions to try after those of ``policy``; None: all were."""
    points = list(policy.points)
    while points and points[-1].taken + 1 >= len(points[-1].options):
        points.pop()
    if not points:
        return None
    return [p.taken for p in points[:-1]] + [points[-1].taken + 1]

"""Orders: scripted, bounded and enumerated, or random with few changes of mind."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from support.schedules.actors import SERVICES, Mix, work_of
from support.schedules.scheduler import (
    TIME,
    Choice,
    Policy,
    Unfinished,
    Violation,
)
from support.schedules.world import World

FEEDER = "feeder"
TAKE = "take "
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
    until it ends; a number: so many steps; "take ..." takes the step of that label, where the actor
    stands before several at once). While it waits, time passes, or the feeder works if it
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
            if isinstance(until, str) and until.startswith(TAKE):
                label = until.removeprefix(TAKE)
                self._next()
                return next(i for i, c in enumerate(choices) if c.name == name and c.label == label)
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
class Bounded:
    """The default, but for ``deviations``: decision -> which of its options. Switching away from an actor
    that could go on costs one of ``preemptions``. ``options``: how many each decision had."""

    deviations: Mapping[int, int]
    preemptions: int
    crashes: bool = False
    feeder_crashes: int = 0
    options: list[int] = field(default_factory=list)

    def pick(self, choices: list[Choice], last: Choice | None) -> int:
        first = default(choices, last)
        forced = last is None or choices[first].name != last.name
        others = [i for i, c in enumerate(choices) if i != first and c.name != TIME]
        later = [i for i, c in enumerate(choices) if i != first and c.name == TIME]
        found = [first]
        if forced or self.preemptions > 0:
            found += others
        if self.preemptions > 0:
            found += later
        chosen = found[self.deviations.get(len(self.options), 0)]
        if chosen != first and (not forced or chosen in later):
            self.preemptions -= 1
        self.options.append(len(found))
        return chosen

    def further(self) -> list[dict[int, int]]:
        """The deviations of the schedules that differ from this one in one later decision."""
        first = max(self.deviations, default=-1) + 1
        return [
            {**self.deviations, decision: option}
            for decision in range(first, len(self.options))
            for option in range(1, self.options[decision])
        ]


@dataclass
class Random:
    """Whoever has the highest of random priorities goes on; a few times somebody falls behind all others
    at a random step of its own (as in probabilistic concurrency testing).

    Most races need few such changes, so this meets them sooner than picking at random all the time.
    """

    seed: int
    feeder_crashes: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._priority: dict[str, float] = {}
        self._falls: dict[str, set[int]] = {}
        self._steps: dict[str, int] = {}
        self._left = self._random.choice((1, 1, 2, 2, 3, 4))
        self._feeder_waits = self._random.random() < 0.5
        self.crashes = self._random.random() < 0.1
        self.feeder_crashes = self._random.choice((0, 0, 0, 1, 2))

    def begin(self, actors: Sequence[str]) -> None:
        """Learn who takes part."""
        for name in actors:
            self._priority[name] = self._random.random()
        self._priority[FEEDER] = -100.0 if self._feeder_waits else self._random.random()
        for _ in range(self._left):
            name = self._random.choice([*actors, FEEDER])
            kind = name.split()[0]
            step = self._random.randrange(1, LENGTHS.get(kind, 6) + 1)
            self._falls.setdefault(name, set()).add(step)

    def pick(self, choices: list[Choice], last: Choice | None) -> int:
        usable = [i for i, c in enumerate(choices) if not c.crash]
        crashing = [i for i, c in enumerate(choices) if c.crash]
        if crashing and self._random.random() < 0.03:
            return self._random.choice(crashing)
        best = max(usable, key=lambda i: self._of(choices[i]))
        chosen = choices[best]
        if chosen.name == TIME and chosen.seconds < POLL_SECONDS:
            # Who polls waits for the feeder.
            feeder = [i for i in usable if choices[i].name == FEEDER]
            return feeder[0] if feeder else best
        if chosen.name == TIME:
            return best
        step = self._steps[chosen.name] = self._steps.get(chosen.name, 0) + 1
        if step in self._falls.get(chosen.name, ()):
            self._falls[chosen.name].discard(step)
            self._steps[chosen.name] -= 1
            self._priority[chosen.name] = -1.0 - self._random.random()
            return self.pick(choices, last)
        # Which of an actor's own concurrent tasks goes first is anybody's guess.
        return self._random.choice([i for i in usable if choices[i].name == chosen.name])

    def _of(self, choice: Choice) -> float:
        if choice.name == TIME:
            return max(self._priority[name] for name in choice.sleepers)
        return self._priority[choice.name]


LENGTHS = {
    "read": 4, "ids": 6, "scan": 5, "cscan": 5, "update": 8, "set": 8, "fam": 8, "upsert": 10,
    "delete": 9, "famrm": 9, "insert": 9, "insertkey": 10, "takekey": 12, "any": 10, "many": 12,
    "dmany": 12, "warm": 8, "cover": 14, "evict": 16, "collect": 12, FEEDER: 8,
}  # fmt: skip
"""About how many steps each kind of actor takes."""


async def run_schedule(world: World, mix: Mix, policy: Policy) -> bool:
    """One schedule with all its checks. False: it took too many steps. Raises :class:`Violation`."""
    await world.begin(
        mix.starts,
        policy,
        floor=mix.floor,
        age=mix.age,
        covered=mix.covered,
        lease=mix.times.lease,
        feeder_crashes=policy.feeder_crashes,
    )
    scheduler = world.scheduler
    if isinstance(policy, Random):
        policy.begin(mix.names())
    if isinstance(policy, Scripted):
        policy.ended = scheduler.ended
    for shown, name in zip(mix.names(), mix.actors, strict=True):
        client = name.split()[0] not in SERVICES
        scheduler.add(shown, work_of(name)(world, mix.times), may_crash=client)
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

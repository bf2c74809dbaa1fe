"""Lets one step of one actor happen at a time, in the order that a policy picks, on a clock of its own.

A *step* is what an actor does from one pause point to the next: one command to one tier, and what
follows from its reply. All actors live in one event loop; what they wait for besides their turn
(a reply, another task of theirs) is awaited for real before the next step is picked.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

FROZEN_SECONDS: Final = 45.0
"""The protocol's stated assumption: nobody is frozen for longer exactly between its last check and
its send. Time doesn't pass by more than this while somebody stands at such a step."""
SETTLING_TURNS: Final = 15
"""Turns of the event loop after which everything that could go on without I/O has done so."""
STUCK_SECONDS: Final = 10.0
TIME: Final = "time"
CRASH: Final = "crash "

current: contextvars.ContextVar["Actor | None"] = contextvars.ContextVar("actor", default=None)
"""The actor whose code runs; None: the test's own."""


class Stuck(RuntimeError):
    """No actor can go on, although some haven't finished: the harness is wrong, or the code waits for ever."""


class Unfinished(Exception):
    """The schedule took more steps than it may."""


class Violation(AssertionError):
    """The protocol is broken."""


@dataclass(eq=False)
class Actor:
    """One participant. ``index``: its place in the mix; ``background``: nobody waits for its end."""

    name: str
    index: int
    background: bool = False
    may_crash: bool = False
    task: "asyncio.Task[Any] | None" = None

    @property
    def done(self) -> bool:
        return self.task is not None and self.task.done()


@dataclass(eq=False)
class Waiter:
    """A place where an actor stands. ``wake``: it sleeps until then. ``strict``: see FROZEN_SECONDS."""

    actor: Actor
    label: str
    future: "asyncio.Future[None]"
    since: float
    strict: bool = False
    wake: float | None = None
    enabled: Callable[[], bool] | None = None
    hopeless: bool = False
    """Nothing is lost if what it waits for never comes."""

    def ready(self, now: float) -> bool:
        if self.future.done():
            return False
        if self.wake is not None:
            return self.wake <= now
        return self.enabled is None or self.enabled()


@dataclass(frozen=True)
class Choice:
    """Something that can happen next. ``waiter`` None: time passes up to ``until``."""

    name: str
    label: str
    waiter: Waiter | None = None
    until: float = 0.0
    seconds: float = 0.0
    sleepers: tuple[str, ...] = ()
    """Who would have time pass."""
    crash: bool = False


class Policy(Protocol):
    """Picks what happens next."""

    crashes: bool
    feeder_crashes: int

    def pick(self, choices: list[Choice], last: Choice | None) -> int:
        """The index of the choice taken."""
        ...


@dataclass
class Scheduler:
    """One schedule. ``after_step`` is awaited after each step, with nothing in flight."""

    policy: Policy
    after_step: Callable[[], Awaitable[None]]
    most_steps: int = 400
    now: float = 1_000.0
    actors: list[Actor] = field(default_factory=list)
    trace: list[Choice] = field(default_factory=list)
    _waiters: list[Waiter] = field(default_factory=list)
    _busy: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def clock(self) -> float:
        """Monotonic seconds of this schedule."""
        return self.now

    def add(
        self,
        name: str,
        work: Coroutine[Any, Any, Any],
        *,
        background: bool = False,
        may_crash: bool = False,
    ) -> Actor:
        """A new actor; it begins with its first step."""
        actor = Actor(name, len(self.actors), background, may_crash)
        self.actors.append(actor)

        async def run() -> Any:
            current.set(actor)
            await self.step("begin")
            return await work

        actor.task = asyncio.create_task(run())
        actor.task.add_done_callback(lambda _: work.close())
        return actor

    # What actors do

    async def step(
        self,
        label: str,
        *,
        strict: bool = False,
        enabled: Callable[[], bool] | None = None,
        hopeless: bool = False,
    ) -> None:
        """Wait for this actor's turn; ``label``: what comes next."""
        await self._wait(label, strict=strict, enabled=enabled, hopeless=hopeless)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await self._wait("sleep", wake=self.now + seconds)

    async def _wait(
        self,
        label: str,
        *,
        strict: bool = False,
        wake: float | None = None,
        enabled: Callable[[], bool] | None = None,
        hopeless: bool = False,
    ) -> None:
        actor = current.get()
        assert actor is not None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = Waiter(actor, label, future, self.now, strict, wake, enabled, hopeless)
        self._waiters.append(waiter)
        try:
            await future
        finally:
            self._waiters.remove(waiter)

    def enter(self) -> None:
        """A command is on its way."""
        self._busy += 1
        self._idle.clear()

    def leave(self) -> None:
        """Its reply is here."""
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    # What the test does

    async def run(self) -> None:
        """Until every actor but those in the background has ended. Raises :class:`Violation` and others."""
        self._idle.set()
        try:
            await self._settle()
            while not self.over():
                await self._one()
            await self.after_step()
        except Violation as violation:
            raise Violation(f"{violation}\n{self.story()}") from violation
        finally:
            await self.end()

    def over(self) -> bool:
        """Whether everybody has ended, or waits for what never came."""
        left = {a for a in self.actors if not a.background and not a.done}
        waiting = {w.actor for w in self._waiters if w.hopeless and not w.ready(self.now)}
        return left <= waiting

    def ended(self, name: str) -> bool:
        """Whether the actor of this name has."""
        return all(a.done for a in self.actors if a.name == name)

    async def drain(self, idle: Callable[[], bool]) -> None:
        """Let those in the background go on until ``idle()``."""
        while not idle():
            await self._one()

    async def end(self) -> None:
        """Cancel whoever is left."""
        tasks = [a.task for a in self.actors if a.task is not None and not a.background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self) -> None:
        if len(self.trace) >= self.most_steps:
            raise Unfinished
        choices = self.choices()
        if not choices:
            choices = await self._wait_for_choices()
        last = self.trace[-1] if self.trace else None
        choice = choices[self.policy.pick(choices, last)]
        self.trace.append(choice)
        if choice.waiter is None:
            self.now = choice.until
            return
        if choice.crash:
            assert choice.waiter.actor.task is not None
            choice.waiter.actor.task.cancel()
        else:
            choice.waiter.future.set_result(None)
        await self._settle()
        self._raise_errors()
        await self.after_step()

    def choices(self) -> list[Choice]:
        """What can happen now: actors in their order, then time, then crashes."""
        ready = [w for w in self._waiters if w.ready(self.now)]
        ready.sort(key=lambda w: w.actor.index)
        found = [Choice(w.actor.name, w.label, w) for w in ready]
        asleep = {w.actor.name: w.wake for w in self._waiters if w.wake and w.wake > self.now}
        if asleep:
            limit = min(
                (w.since + FROZEN_SECONDS for w in self._waiters if w.strict), default=float("inf")
            )
            until = min(min(asleep.values()), limit)
            passing = until - self.now
            if passing > 0:
                found.append(Choice(TIME, f"+{passing:.3f} s", None, until, passing, tuple(asleep)))
        if self.policy.crashes:
            found += [
                Choice(CRASH + w.actor.name, w.label, w, crash=True)
                for w in ready
                if w.actor.may_crash
            ]
        return found

    async def _wait_for_choices(self) -> list[Choice]:
        for _ in range(int(STUCK_SECONDS / 0.01)):
            await _sleep(0.01)
            self._raise_errors()
            choices = self.choices()
            if choices:
                return choices
        left = [a.name for a in self.actors if not a.done]
        raise Stuck(f"{left} can't go on\n{self.story()}")

    async def _settle(self) -> None:
        """Wait until every actor stands at a pause point, sleeps, has ended, or waits for another."""
        quiet = 0
        while quiet < SETTLING_TURNS:
            if self._busy:
                await self._idle.wait()
                quiet = 0
            await _sleep(0)
            quiet += 1

    def _raise_errors(self) -> None:
        for actor in self.actors:
            if actor.done and actor.task is not None and not actor.task.cancelled():
                error = actor.task.exception()
                if error is not None:
                    raise error

    def story(self) -> str:
        """What happened, a line for each run of steps of one actor."""
        lines: list[tuple[str, list[str]]] = []
        for choice in self.trace:
            if lines and lines[-1][0] == choice.name:
                lines[-1][1].append(choice.label)
            else:
                lines.append((choice.name, [choice.label]))
        return "\n".join(f"   {name}: {', '.join(labels)}" for name, labels in lines)


_sleep = asyncio.sleep

"""Keeps every namespace on its way to the state that the manifest wants."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field

from pymongo.errors import PyMongoError

from thermocline_common import names
from thermocline_common.clock import Clock
from thermocline_common.coverage import Coverage, State
from thermocline_common.coverage_store import read_all, read_linearizable
from thermocline_common.errors import ThermoclineError
from thermocline_common.health import Problems
from thermocline_common.spec.models import Manifest, WorkMode
from thermocline_common.tiers import Tiers
from thermocline_feeder.moves import Moves
from thermocline_feeder.plan.states import Step, Wanted, next_step, waits_for_resume
from thermocline_feeder.settings import Settings
from thermocline_feeder.switch import Blocked, Overtaken

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Switches at one time: each needs looks at every operation that runs on a tier."""

Admission = Callable[[str], Awaitable[list[str]]]
"""Why a namespace may not become active; empty: nothing speaks against it."""


def wanted(manifest: Manifest, *, drain: bool = False) -> dict[str, Wanted]:
    """What the manifest asks for, by namespace. ``drain``: nothing is to be active."""
    active = manifest.spec.mode.value == "Active" and not drain
    return {
        policy.namespace: Wanted(active, policy.age_field, policy.keep is not None)
        for policy in manifest.spec.collections
    }


def held_still(manifest: Manifest, *, drain: bool = False) -> str | None:
    """Why no switch begins now, or None. ``drain``: the order to drain comes after any pause."""
    if drain:
        return None
    if manifest.spec.paused:
        return "spec.paused is true"
    if manifest.spec.feeder.mode is WorkMode.PAUSED:
        return "spec.feeder.mode is Paused"
    return None


def _never() -> None:
    return None


def _no_generation() -> int:
    return 0


@dataclass(slots=True)
class States:
    """``coverages``: the documents as last read. ``blocked``: what each namespace waits for."""

    tiers: Tiers
    moves: Moves
    settings: Settings
    problems: Problems
    clock: Clock
    wanted: Callable[[], Mapping[str, Wanted]]
    admission: Admission
    held: Callable[[], str | None] = _never
    """Why no step begins now but those that applications wait for."""
    coverages: dict[str, Coverage] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    blocked: dict[str, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    known: bool = False
    generation: Callable[[], int] = _no_generation
    """The generation of the manifest in force."""
    settled: int | None = None
    """The generation by which the last look found nothing to begin or to end; None: it found something."""
    _busy: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _not_before: dict[tuple[str, Step], float] = field(default_factory=dict)
    _looking_back: dict[str, tuple[Hashable, float]] = field(default_factory=dict)
    """The switch that each namespace looks back over, and when it was first seen."""
    _requests: dict[tuple[str, uuid.UUID], tuple[int, float]] = field(default_factory=dict)
    """Beats of each request, and when they last moved, on this clock."""
    _requested_at: dict[str, float] = field(default_factory=dict)
    """When a request last stood."""
    _reported: set[str] = field(default_factory=set)
    """Namespaces that a problem is shown for."""

    async def run(self) -> None:
        """Until cancelled; every step that was begun is cancelled too."""
        slots = asyncio.Semaphore(AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self.changed.clear()  # what changes during the look is looked at again
                    try:
                        await self._look(group, slots)
                    except PyMongoError as error:
                        log.info("states can't be read now", extra={"error": str(error)[:200]})
                    try:
                        # Not wait_for: in Python 3.11 it swallows a cancellation that comes with the event.
                        async with asyncio.timeout(self.settings.state_poll):
                            await self.changed.wait()
                    except TimeoutError:
                        continue
        finally:
            self._busy.clear()

    async def _look(self, group: asyncio.TaskGroup, slots: asyncio.Semaphore) -> None:
        # A step that ends meanwhile may not show in what is read: its namespace waits for the next look.
        busy = set(self._busy)
        generation = self.generation()
        self.coverages = await read_all(self.tiers)
        listed, _ = await read_linearizable(self.tiers.archive, names.TIERED, {})
        for document in listed:
            self.moves.switch.owner.require(
                document.get("owner"), f"the archive's list entry of {document['_id']}"
            )
        self.listed = {d["_id"] for d in listed}
        self.known = True
        targets = self.wanted()
        now = self.clock()
        self._forget_requests()
        held = self.held()
        namespaces = self.coverages.keys() | self.listed | targets.keys()
        for namespace in self._reported - namespaces - self._busy.keys():
            self._clear(namespace)
        for namespace in sorted(namespaces):
            if namespace in busy or namespace in self._busy:
                continue
            coverage = self.coverages.get(namespace)
            target = targets.get(namespace)
            stale = self._stale(namespace, coverage, now)
            step = next_step(
                coverage,
                listed=namespace in self.listed,
                wanted=target,
                look_back_over=self._look_back_over(namespace, coverage, now),
                stale_requests=bool(stale),
            )
            if held is not None and waits_for_resume(step, coverage):
                self._report(namespace, f"{step.value}: {held}")
                continue
            if now < self._not_before.get((namespace, step), 0.0):
                continue
            if step is Step.ACTIVATE and now < self._rests_until(namespace):
                continue
            if step is Step.NONE:
                self._settled(namespace, coverage, target)
                continue
            task = group.create_task(self._take(namespace, step, coverage, target, slots, stale))
            self._busy[namespace] = task
        self.settled = None if busy or self._busy else generation

    @property
    def emptied(self) -> bool:
        """Whether nothing is tiered, and the fast tier holds nothing of what was."""
        return self.known and all(
            c.state is State.PASSTHROUGH and c.fast_uuid is None for c in self.coverages.values()
        )

    def _settled(self, namespace: str, coverage: Coverage | None, target: Wanted | None) -> None:
        reached = State.PASSTHROUGH if coverage is None else coverage.state
        if (target is not None and target.active) == (reached is State.ACTIVE):
            self._clear(namespace)

    def _clear(self, namespace: str) -> None:
        self.blocked.pop(namespace, None)
        self._reported.discard(namespace)
        self.problems.clear(f"state {namespace}")

    def _report(self, namespace: str, text: str) -> None:
        self.blocked[namespace] = text
        self._reported.add(namespace)
        self.problems.set(f"state {namespace}", f"{namespace} can't be switched yet: {text}")

    def _look_back_over(self, namespace: str, coverage: Coverage | None, now: float) -> bool:
        if coverage is None or coverage.look_back is None:
            self._looking_back.pop(namespace, None)
            return False
        switch = (coverage.look_back, coverage.state, coverage.activated_at)
        known, since = self._looking_back.get(namespace, (None, now))
        if known != switch:
            # Another switch: what was executed right before it may be sent again for as long.
            since = now
            self._looking_back[namespace] = (switch, now)
        return now - since >= self.settings.look_back

    def _stale(
        self, namespace: str, coverage: Coverage | None, now: float
    ) -> tuple[uuid.UUID, ...]:
        """Requests whose beats haven't moved for too long."""
        found = []
        for request in () if coverage is None else coverage.requests:
            self._requested_at[namespace] = now
            key = (namespace, request.token)
            beats, since = self._requests.get(key, (-1, now))
            if beats != request.beats:
                self._requests[key] = (request.beats, now)
            elif now - since >= self.settings.request_age:
                found.append(request.token)
        return tuple(found)

    def _forget_requests(self) -> None:
        standing = {
            (namespace, request.token)
            for namespace, coverage in self.coverages.items()
            for request in coverage.requests
        }
        self._requests = {k: seen for k, seen in self._requests.items() if k in standing}

    def _rests_until(self, namespace: str) -> float:
        return self._requested_at.get(namespace, float("-inf")) + self.settings.request_rest

    async def _take(
        self,
        namespace: str,
        step: Step,
        coverage: Coverage | None,
        target: Wanted | None,
        slots: asyncio.Semaphore,
        stale: tuple[uuid.UUID, ...],
    ) -> None:
        waited_for = coverage is not None and bool(coverage.requests)
        pause = self.settings.request_retry if waited_for else self.settings.move_retry
        try:
            async with slots:
                if step is Step.EXPIRE and coverage is not None:
                    await self.moves.expire(coverage, stale)
                else:
                    await self._do(namespace, step, coverage, target)
            self.blocked.pop(namespace, None)
            self._not_before.pop((namespace, step), None)
        except Overtaken as overtaken:
            log.info("%s", overtaken)
        except Blocked as blocked:
            self._hold_back(namespace, step, str(blocked), pause)
        except (PyMongoError, ThermoclineError, TimeoutError) as error:
            text = f"{step.value}: {type(error).__name__} {str(error)[:300]}"
            self._hold_back(namespace, step, text, pause)
        finally:
            self._busy.pop(namespace, None)
            self.changed.set()

    def _hold_back(self, namespace: str, step: Step, text: str, pause: float) -> None:
        pause = min(pause, self.settings.move_retry)
        self._not_before[namespace, step] = self.clock() + pause
        self._report(namespace, text)

    async def _do(
        self, namespace: str, step: Step, coverage: Coverage | None, target: Wanted | None
    ) -> None:
        moves = self.moves
        if (
            step in (Step.LIST, Step.ACTIVATE, Step.CHANGE_POLICY)
            and target is not None
            and target.active
        ):
            refusals = await self.admission(namespace)
            if refusals:
                raise Blocked("; ".join(refusals))
        if step is Step.LIST:
            await moves.list_in_archive(namespace)
        elif step is Step.CREATE and target is not None:
            await moves.create(namespace, target)
        elif step is Step.UNLIST:
            await moves.unlist(namespace)
        elif coverage is None:
            return
        elif step is Step.ACTIVATE:
            await moves.activate(coverage)
        elif step is Step.WITHDRAW:
            await moves.withdraw(coverage)
        elif step is Step.REVERT:
            await moves.revert(coverage)
        elif step is Step.CLEAN:
            await moves.clean(coverage)
        elif step is Step.GRANT:
            await moves.grant(coverage)
        elif step is Step.END_LOOK_BACK:
            await moves.end_look_back(coverage)
        elif step is Step.FORGET:
            await moves.forget(coverage)
        elif step is Step.SET_POLICY and target is not None:
            await moves.set_policy(coverage, target)
        elif step is Step.CHANGE_POLICY and target is not None:
            await moves.change_policy(coverage, target)

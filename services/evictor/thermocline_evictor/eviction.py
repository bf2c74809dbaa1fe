"""One namespace's eviction: raise the floor, wait for readers, announce, evict; a turn at a time."""

import collections
import datetime as dt
import itertools
import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pymongo.errors import PyMongoError

from thermocline_common import barrier, coverage_store
from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.pacing import lag_rest, rest_seconds
from thermocline_common.portions import first_portion
from thermocline_common.raw_reads import find_by_ids, read_records
from thermocline_common.spec.models import EvictorMode
from thermocline_evictor import confirm, records
from thermocline_evictor.announcing import Announcing, Pending
from thermocline_evictor.deleter import Attempt, Deleter, same_footing
from thermocline_evictor.members import Membership
from thermocline_evictor.plan import cutoff, pacing, steps
from thermocline_evictor.plan.cutoff import Policy
from thermocline_evictor.tools import Report, Tools

WRITE_LOOKS = 3
WRITE_LOOK_SECONDS = 0.05


class Next(StrEnum):
    """When the namespace's next turn should be."""

    AT_ONCE = "at once"
    SOON = "soon"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Orders:
    """What the manifest asks for now. ``lease``: what to wait out, in seconds, as
    published in the archive; read after the coverage where :attr:`Eviction.waits_for_leases`."""

    policy: Policy
    mode: EvictorMode
    pace: str | int
    lease: float


class Eviction:
    """See the module's docstring. :meth:`turn` raises PyMongo's errors, ``BarrierTimeout``,
    ``NoCheckpoint`` and ``NoAgeIndex``; the next turn goes on where this one stopped."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.report = Report()
        self.announcing = Announcing(tools, self.report)
        self._deleter = Deleter(tools.tiers, tools.clock, tools.pause)
        self._wait: steps.Wait | None = None
        self._waited: Coverage | None = None
        self.waits_for_leases = False
        """Whether the next turn needs the lease as published after the coverage that this one saw."""
        self._pending: dict[DocId, Pending] = {}
        self._group: collections.deque[DocId] = collections.deque()
        self._cleared = False
        self._running: frozenset[int] | None = None
        self._doubtful: dict[DocId, uuid.UUID] = {}
        self._batch = pacing.LARGEST_BATCH
        self._conflicts = 0
        self._rate = 0.0
        self._raise_due = True
        self._last: tuple[EvictorMode, Policy] | None = None

    async def turn(self, coverage: Coverage | None, orders: Orders, members: Membership) -> Next:
        """Do what is next. ``coverage``: read just now, linearizable."""
        tools, policy = self.tools, orders.policy
        if (orders.mode, policy) != self._last:
            self._last = (orders.mode, policy)
            self.announcing.begin_anew()
        reason = cutoff.off(coverage, policy)
        self._show(coverage, policy)
        if coverage is None or reason is not None or policy.max_age is None:
            await self._stand_down(policy.namespace, str(reason))
            return Next.LATER
        horizon = cutoff.horizon_of(policy.max_age, tools.now())
        await self.announcing.look_for_oldest(coverage)
        if orders.mode is EvictorMode.PAUSED:
            await self._stand_down(policy.namespace, "paused")
            return Next.LATER
        if orders.mode is EvictorMode.DRY_RUN:
            await self._stand_down(policy.namespace, "dry run", keep_counting=True)
            return await self._count(coverage, horizon, orders.pace)
        self.report.would_evict = None
        await self.announcing.look_at_suspects(coverage, horizon)
        if self.announcing.mismatches.confirmed:
            await self._stand_down(
                policy.namespace, "stopped: the tiers differ", keep_counting=True
            )
            return Next.SOON
        if self._raise_due and await self._raise(coverage, horizon, policy.max_age):
            return Next.AT_ONCE
        if not await self._readers_gone(coverage, orders.lease, members):
            return Next.SOON
        self.report.state = steps.Phase.READY.value
        await self._resolve_doubt(coverage)
        busy = await self._work(coverage, horizon, orders.pace)
        # Raised only after a turn of work: otherwise short ages would wait for readers all the time.
        self._raise_due = True
        return Next.AT_ONCE if busy else Next.SOON if self._pending else Next.LATER

    async def _count(self, coverage: Coverage, horizon: dt.datetime, pace: str | int) -> Next:
        tools = self.tools
        end = tools.clock() + tools.settings.turn_seconds
        while tools.clock() < end and not tools.stopping():
            tools.beat()
            started = tools.clock()
            looked = await self.announcing.count_page(coverage, horizon)
            if not looked:
                await self.announcing.look_at_suspects(coverage, horizon)
                return Next.LATER
            took = tools.clock() - started
            tools.latency = tools.latency.observe(took)
            await tools.rest(rest_seconds(pace, looked, took, tools.latency))
            await tools.give_way(pace, took)
        return Next.SOON

    async def _raise(self, coverage: Coverage, horizon: dt.datetime, max_age: dt.timedelta) -> bool:
        wanted = cutoff.raise_needed(coverage, horizon, max_age)
        if wanted is None:
            return False
        await self.tools.paused("raise")
        if await coverage_store.raise_floor(self.tools.tiers, coverage, wanted.floor):
            self.report.ledger.raised += 1
        self._wait = None
        self._raise_due = False
        return True

    async def _readers_gone(self, coverage: Coverage, lease: float, members: Membership) -> bool:
        """Whether nobody reads any more who trusts a lower floor than the one just read."""
        tools, now = self.tools, self.tools.clock()
        if self._wait is None or self._waited is None or not same_footing(coverage, self._waited):
            span = tools.settings.cursor_span
            self._wait = steps.start(coverage.epoch, coverage.raised, now, span)
            self._waited = coverage
            self._raise_due = False
            # The lease at hand may have been read before the raise was.
            self.waits_for_leases = True
            self.report.state = steps.Phase.LEASE.value
            return False
        wait = self._wait
        phase = wait.phase(now, lease, members.up)
        self.report.state = phase.value
        self.waits_for_leases = self.waits_for_leases and phase is steps.Phase.LEASE
        if phase is not steps.Phase.CURSORS:
            return phase is steps.Phase.READY
        found: dict[str, frozenset[int]] = {}
        for member in sorted(members.up):
            cursors = await tools.members.cursors(member, coverage.namespace)
            if cursors is None:
                self.report.state = f"waiting for {member}, which doesn't answer"
                continue
            if wait.returned(member) and cursors:
                await self._kill(coverage, [steps.Cursor(member, c) for c in cursors])
            found[member] = cursors
        self._wait = wait.look(tools.clock(), found, members.down)
        await self._kill(coverage, self._wait.overdue(tools.clock(), tools.settings.cursor_limit))
        return False

    async def _kill(self, coverage: Coverage, cursors: Iterable[steps.Cursor]) -> None:
        doomed = list(cursors)
        if doomed:
            await self.tools.members.kill(coverage.namespace, doomed)
            self.report.ledger.killed_cursors += len(doomed)

    async def _work(self, coverage: Coverage, horizon: dt.datetime, pace: str | int) -> bool:
        """Evict what is due, announce more; whether there is more to do at once."""
        tools = self.tools
        end = tools.clock() + tools.settings.turn_seconds
        busy = False
        while tools.clock() < end and not tools.stopping():
            tools.beat()
            if await self._writes_over(coverage.namespace):
                busy = await self._evict_batch(coverage, horizon, pace)
                if not busy:
                    break
            elif len(self._pending) < pacing.ahead(self._rate):
                started = tools.clock()
                found = await self.announcing.announce_page(coverage, horizon, self._pending)
                await tools.give_way(pace, tools.clock() - started)
                if found is None:
                    busy = False
                    break
                busy = True
                self._pending |= found
                self.report.pending = len(self._pending)
            else:
                busy = False
                break
        return busy

    async def _writes_over(self, namespace: str) -> bool:
        """Whether there is a group of due documents, and every write is over that ran when it was due.

        Such a write may have chosen its documents before they were announced.
        """
        tools = self.tools
        if not self._group:
            now = tools.clock()
            self._group.extend(i for i, p in self._pending.items() if p.due <= now)
            self._cleared, self._running = False, None
        if not self._group or self._cleared:
            return bool(self._group)
        seen: set[int] = set()
        for look in range(WRITE_LOOKS):
            if look:
                await tools.sleep(WRITE_LOOK_SECONDS)
            seen |= await tools.members.running_writes(namespace)
        before = self._running
        self._running = frozenset(seen if before is None else before & seen)
        self._cleared = not self._running
        return self._cleared

    async def _evict_batch(self, coverage: Coverage, horizon: dt.datetime, pace: str | int) -> bool:
        """One transaction; False: not now."""
        tools, started = self.tools, self.tools.clock()
        due = list(itertools.islice(self._group, tools.piece(self._batch)))
        ids = [self._group.popleft() for _ in first_portion(due)]
        ids = [i for i in ids if i in self._pending]
        if not ids or self._waited is None:
            return True
        try:
            marker = await barrier.write_marker(tools.tiers, tools.marker_id)
            deadline = started + tools.settings.catch_up_seconds
            await barrier.wait_for_checkpoint(
                tools.tiers, marker, deadline=deadline, clock=tools.clock
            )
            self.report.lag = round(tools.clock() - started, 3)
            began = tools.clock()
            looking = confirm.look_archive(tools.tiers, coverage, ids)
            view = await tools.beside(coverage.namespace, looking, len(ids))
            looked = tools.clock() - began
            await tools.paused("confirmed")
            announced = {i: (self._pending[i].token, self._pending[i].content) for i in ids}
            decide = self.announcing.judge_with(view, ids, horizon)
            attempt = await self._deleter.evict(self._waited, view, announced, decide)
        except BaseException:
            # Nothing was done: they are due still.
            self._group.extendleft(reversed(ids))
            raise
        await self._settle(coverage, ids, attempt)
        took = tools.clock() - started
        if attempt.conflict:
            rest = pacing.conflict_rest(self._conflicts, took, random.random())  # noqa: S311
            await tools.sleep(rest)
            return True
        self._rate += 0.2 * (len(attempt.deleted) / max(took, 1e-3) - self._rate)
        await self._measure(coverage, ids[:1])
        rest = max(rest_seconds(pace, len(ids), took, tools.latency), lag_rest(self.report.lag))
        await tools.rest(rest)
        await tools.give_way(pace, looked)
        return not attempt.stale

    async def _settle(self, coverage: Coverage, ids: list[DocId], attempt: Attempt) -> None:
        """Bring pending and ledger up to date with a transaction's outcome."""
        ledger = self.report.ledger
        if attempt.conflict or attempt.stale:
            # Looked at again with the next group: what changed is told by its content then.
            ledger.skip(["written meanwhile" if attempt.conflict else "floor raised meanwhile"])
            if attempt.conflict:
                self._conflicts += 1
                self._batch = pacing.after_conflict(self._batch, self._conflicts)
            return
        self._conflicts = 0
        self._batch = pacing.next_batch(self._batch, attempt.open_seconds)
        left = {i: self._pending.pop(i) for i in ids if i in self._pending}
        self.report.pending = len(self._pending)
        if attempt.doubtful:
            self._doubtful |= attempt.deleted
            return
        ledger.confirmed += len(attempt.deleted)
        ledger.deleted += attempt.removed
        ledger.skip(verdict.value for verdict in attempt.others.values())
        stay = {i: left[i].token for i in attempt.others if i in left}
        if stay:
            await records.withdraw(self.tools.tiers, coverage.namespace, stay)

    async def _resolve_doubt(self, coverage: Coverage) -> None:
        """Learn from the records which transactions of unknown outcome committed."""
        if not self._doubtful:
            return
        doubtful = self._doubtful
        found = await read_records(self.tools.tiers.fast, coverage.namespace, doubtful)
        done = [i for i, token in doubtful.items() if i in found and found[i].token == token]
        self.report.ledger.confirmed += len(done)
        self.report.ledger.deleted += len(done)
        self._doubtful = {}

    async def _measure(self, coverage: Coverage, ids: list[DocId]) -> None:
        started = self.tools.clock()
        await find_by_ids(
            self.tools.tiers.fast, coverage.namespace, ids, fields={"projection": {"_id": 1}}
        )
        self.tools.latency = self.tools.latency.observe(self.tools.clock() - started)

    async def _stand_down(self, namespace: str, state: str, *, keep_counting: bool = False) -> None:
        """Nothing is to be evicted now: announcements are withdrawn, waits start anew."""
        self.report.state = state
        self._wait = self._waited = None
        self._raise_due = True
        self._group.clear()
        pending, self._pending = self._pending, {}
        self.report.pending = 0
        if not keep_counting:
            self.announcing.reset()
            self.report.would_evict = None
        if pending:
            await records.withdraw(
                self.tools.tiers, namespace, {i: p.token for i, p in pending.items()}
            )

    async def stop(self, namespace: str) -> None:
        """The service ends: withdraw what was announced, if F can be reached."""
        try:
            await self._stand_down(namespace, "stopped")
        except PyMongoError:
            # The feeder removes announcements that nobody follows up.
            return

    def _show(self, coverage: Coverage | None, policy: Policy) -> None:
        report = self.report
        report.floor = coverage.floor if coverage else None
        report.claim = coverage.claim if coverage else None
        if policy.max_age is not None:
            report.horizon = cutoff.horizon_of(policy.max_age, self.tools.now())

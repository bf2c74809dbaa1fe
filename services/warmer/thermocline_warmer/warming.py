"""Warms one namespace: claim, barrier, copy, verify, publish; a step at a time."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bson.timestamp import Timestamp

from thermocline_common import barrier, coverage_store
from thermocline_common.archive_probe import ArchiveProbe
from thermocline_common.clock import Clock, monotonic
from thermocline_common.copy_in import Pause
from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.pacing import AUTO, Latency, lag_rest, rest_seconds
from thermocline_common.tiers import Tiers
from thermocline_warmer import reader
from thermocline_warmer.copier import copy_ids, reading_after
from thermocline_warmer.plan import windows
from thermocline_warmer.plan.progress import Progress, progress, share_by_age, share_by_count
from thermocline_warmer.plan.windows import Idle, Policy, WarmAll, WarmSlice
from thermocline_warmer.settings import Settings

Now = Callable[[], dt.datetime]
T = TypeVar("T")

BEAT_SECONDS = 5.0
SCAN_IDS = 50
"""Ids looked for in one go: each means a document that the archive reads."""


class Stopped(Exception):
    """The service is to end: the batch in hand is done, the slice isn't."""


@dataclass(slots=True)
class Tools:
    """What warming works with. ``marker_id``: this process's own document in ``markers``."""

    tiers: Tiers
    settings: Settings = field(default_factory=Settings)
    clock: Clock = monotonic
    now: Now = lambda: dt.datetime.now(dt.UTC)
    marker_id: str = field(default_factory=lambda: f"barrier:{uuid.uuid4()}")
    stopping: Callable[[], bool] = lambda: False
    beat: Callable[[], None] = lambda: None
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    pause: Pause | None = None
    """A test's pause point."""
    probe: ArchiveProbe | None = None
    """What work costs the archive's readers; None: nobody asks, and it never rests for them."""

    async def watched(self, work: Awaitable[T]) -> T:
        """``work``'s result. The loop counts as alive meanwhile: the archive may look through very many
        documents before it finds a batch. Raises :class:`Stopped` if the service is to end."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                self.beat()
                if self.stopping():
                    raise Stopped
                done, _ = await asyncio.wait({task}, timeout=BEAT_SECONDS)
                if done:
                    return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def rest(self, seconds: float) -> None:
        """Rest, alive; at most until the service is to end."""
        left = seconds
        while left > 0 and not self.stopping():
            self.beat()
            await self.sleep(min(left, BEAT_SECONDS))
            left -= BEAT_SECONDS


@dataclass(slots=True)
class Report:
    """What the status shows of one namespace."""

    state: str = "waiting"
    floor: dt.datetime | None = None
    claim: dt.datetime | None = None
    complete: bool = False
    copied: int = 0
    checked: int = 0
    lost: int = 0
    progress: Progress = field(default_factory=lambda: Progress(0.0))


class Warming:
    """One namespace's warming. :meth:`step` does one slice (or all of a ``keep: All``)."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.report = Report()
        self._size = windows.FIRST_SLICE
        self._began: tuple[float, float] | None = None

    async def step(self, coverage: Coverage | None, policy: Policy, pace: str | int) -> bool:
        """Do the next slice; False: there is nothing to do now.

        Raises :class:`Stopped`, :class:`reader.NoAgeIndex`, :class:`BarrierTimeout`,
        :class:`CollectionChanged`, :class:`CannotCopy`, :class:`NotHeld`, and PyMongo's errors where
        a tier can't be reached. After any of them the next call starts where the floor is.
        """
        work = windows.next_work(coverage, policy, self.tools.now())
        if isinstance(work, Idle) or coverage is None:
            self._show(coverage, policy, str(work))
            self._began = None
            return False
        if self._began is None:
            self._began = (self.tools.clock(), self._share(coverage, policy))
        if isinstance(work, WarmAll):
            await self._whole(coverage, policy, pace)
        else:
            await self._slice(coverage, policy, work, pace)
        return True

    def show_paused(self, coverage: Coverage | None, policy: Policy) -> None:
        """Bring the report up to date while nothing is done."""
        self._began = None
        self._show(coverage, policy, "paused")

    async def _whole(self, coverage: Coverage, policy: Policy, pace: str | int) -> None:
        estimated = await reader.estimate_count(self.tools.tiers, policy.namespace)
        after = await self._pass_barrier()
        done = 0

        def show(checked: int) -> None:
            nonlocal done
            done += checked
            self._show(coverage, policy, "copying", share_by_count(done, estimated))

        show(0)
        await self._copy(coverage, after, pace, show)
        await self._paused("publish")
        published = await self._fast_time()
        kept = await coverage_store.compare_and_set(
            self.tools.tiers, coverage, set_fields={"complete": True, "publishedAt": published}
        )
        if kept:
            self._show(dataclasses.replace(coverage, complete=True), policy, str(Idle.WARM))
        else:
            self.report.lost += 1

    async def _slice(
        self, coverage: Coverage, policy: Policy, work: WarmSlice, pace: str | int
    ) -> None:
        tools, started = self.tools, self.tools.clock()
        index = await reader.find_age_index(tools.tiers, coverage)
        found = await reader.find_nth_newest(tools.tiers, coverage, index, work, self._size)
        lower = windows.choose_lower(work, found)
        claimed = await self._claim(coverage, lower)
        if claimed is None:
            return
        self._show(claimed, policy, "copying")
        after = await self._pass_barrier()
        # Whether the index holds arrays counts only after the barrier.
        index = await reader.find_age_index(tools.tiers, claimed)

        def show(_: int) -> None:
            self._show(claimed, policy, "copying")

        if work.upper is None:
            await self._copy(claimed, after, pace, show, reader.odd_filter(index), index.name)
        query = reader.slice_filter(index.path, lower, work.upper)
        await self._copy(claimed, after, pace, show, query, index.name)
        await self._paused("publish")
        kept = await self._publish(claimed, lower)
        self._size = windows.next_slice_size(self._size, tools.clock() - started, not kept)
        if kept:
            self._show(dataclasses.replace(coverage, floor=lower, claim=None), policy, "copying")

    async def _claim(self, coverage: Coverage, lower: dt.datetime) -> Coverage | None:
        bound = windows.claim_for(coverage.claim, lower)
        if bound is None:
            return coverage
        if not await coverage_store.claim(self.tools.tiers, coverage, bound):
            self.report.lost += 1
            return None
        return dataclasses.replace(coverage, claim=bound)

    async def _publish(self, claimed: Coverage, floor: dt.datetime) -> bool:
        published = await self._fast_time()
        kept = await coverage_store.compare_and_set(
            self.tools.tiers,
            claimed,
            set_fields={"floor": floor, "publishedAt": published},
            unset=("claim",) if windows.ends_claim(claimed.claim, floor) else (),
        )
        if not kept:
            self.report.lost += 1
        return kept

    async def _copy(
        self,
        coverage: Coverage,
        after: Timestamp,
        pace: str | int,
        show: Callable[[int], None],
        query: dict[str, Any] | None = None,
        hint: str = "_id_",
    ) -> None:
        tools = self.tools
        held = reading_after(coverage, after)
        batch = tools.settings.batch

        def piece() -> int:
            return batch if tools.probe is None else tools.probe.throttle.piece(batch)

        batches = reader.scan_ids(
            tools.tiers, held, after, lambda: min(piece(), SCAN_IDS), query, hint
        )
        ids: list[DocId] = []
        async with contextlib.aclosing(batches):
            while True:
                # The look for ids reads the documents, too: it is work like the copying.
                found = await self._working(held, anext(batches, None), pace)
                ids += found or []
                if ids and (found is None or len(ids) >= piece()):
                    show(await self._copy_batch(held, ids, pace))
                    ids = []
                if found is None:
                    return

    async def _copy_batch(self, coverage: Coverage, ids: list[DocId], pace: str | int) -> int:
        """Copy one batch, rest as the pace asks; how many ids it had."""
        tools = self.tools
        copying = copy_ids(
            tools.tiers,
            coverage,
            ids,
            rounds=tools.settings.verify_rounds,
            pause=tools.pause,
            clock=tools.clock,
        )
        done = await self._working(coverage, copying, pace, len(ids))
        self.report.copied += done.copied
        self.report.checked += done.asked
        return done.asked

    async def _working(
        self, coverage: Coverage, work: Awaitable[T], pace: str | int, documents: int = 0
    ) -> T:
        """``work``'s result, and a rest behind it."""
        tools, probe, started = self.tools, self.tools.probe, self.tools.clock()
        watched = tools.watched(work)
        if probe is None or pace != AUTO:
            result = await watched
            took = tools.clock() - started
            await tools.rest(rest_seconds(pace, documents, took, Latency()))
            return result
        result = await probe.beside(coverage.namespace, watched, documents)
        await tools.rest(probe.throttle.seconds(tools.clock() - started))
        await probe.settle()
        return result

    async def _pass_barrier(self) -> Timestamp:
        tools = self.tools
        await self._paused("barrier")
        started = tools.clock()
        time = await barrier.pass_barrier(
            tools.tiers,
            tools.marker_id,
            seconds=tools.settings.barrier_seconds,
            clock=tools.clock,
        )
        if tools.probe is not None:
            await tools.rest(lag_rest(tools.clock() - started))
        return time

    async def _fast_time(self) -> Timestamp:
        """F's time now: everything that was verified was committed before."""
        reply = await self.tools.tiers.fast.admin.command("ping")
        time: Timestamp = reply["operationTime"]
        return time

    async def _paused(self, step: str) -> None:
        if self.tools.pause is not None:
            await self.tools.pause(step)

    def _share(self, coverage: Coverage, policy: Policy) -> float:
        if policy.max_age is None:
            return 1.0 if coverage.complete else 0.0
        now = self.tools.now()
        return share_by_age(coverage.floor, windows.horizon_of(policy.max_age, now), now)

    def _show(
        self, coverage: Coverage | None, policy: Policy, state: str, share: float | None = None
    ) -> None:
        report = self.report
        report.state = state
        if coverage is None:
            return
        report.floor, report.claim, report.complete = (
            coverage.floor,
            coverage.claim,
            coverage.complete,
        )
        share = self._share(coverage, policy) if share is None else share
        began = self._began or (self.tools.clock(), share)
        report.progress = progress(share, began[1], self.tools.clock() - began[0])
        if state == str(Idle.WARM):
            report.progress = Progress(100.0)

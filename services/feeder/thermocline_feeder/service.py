"""The feeder's process: owns replay or stands by, and keeps every part at work."""

import argparse
import asyncio
import logging
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from thermocline_common.barrier import write_marker
from thermocline_common.clock import Clock, monotonic
from thermocline_common.coverage import State
from thermocline_common.errors import Code, ThermoclineError
from thermocline_common.runtime import Context
from thermocline_common.spec.models import WorkMode
from thermocline_common.tiers import Tiers
from thermocline_feeder import catalog
from thermocline_feeder.abandoned import keep_ending
from thermocline_feeder.adoption import adopt, may_succeed
from thermocline_feeder.assembly import Parts, Pause, assemble, real_admission
from thermocline_feeder.checkpoint import (
    Checkpoint,
    Fenced,
    Owner,
    acquire,
    beat,
    place_of,
    release,
)
from thermocline_feeder.lease import LeasePublisher
from thermocline_feeder.measures import Measures
from thermocline_feeder.metrics import Metrics
from thermocline_feeder.opening import refuse_swapped
from thermocline_feeder.report import report
from thermocline_feeder.settings import Settings
from thermocline_feeder.states import Admission, wanted

log = logging.getLogger(__name__)

END_SECONDS = 10.0
"""For a clean end, which reverts a switch and gives replay up, before it is asked for again."""
DRAINED, NOT_DRAINED = 0, 3
"""Exit codes of ``--drain-and-exit``."""


@dataclass(slots=True)
class FeederService:
    """See :class:`thermocline_common.runtime.Service`."""

    arguments: argparse.Namespace
    settings: Settings = field(default_factory=Settings.load)
    clock: Clock = monotonic
    admission: Admission | None = None
    """Why a namespace may not become active; None: the real checks."""
    pause: Pause | None = None
    """A test's pause point."""
    releases: bool = True
    """Give replay up at the end; a test's crash doesn't."""
    me: uuid.UUID = field(default_factory=uuid.uuid4)
    name: str = "feeder"
    parts: Parts | None = None
    owning: bool = False
    standing_by_for: uuid.UUID | None = None
    _context: Context | None = None
    _owned: bool = False
    place: str | None = None

    def __post_init__(self) -> None:
        self.place = place_of(socket.gethostname(), getattr(self.arguments, "admin", None))

    measures: Measures | None = None
    _foreign_seen: dict[str, int] = field(default_factory=dict)

    @property
    def window_used(self) -> float:
        """The share of F's oplog that is still to be replayed; 0 where it isn't known."""
        window = None if self.measures is None else self.measures.window
        return 0.0 if window is None else window.used

    @property
    def draining(self) -> bool:
        """Whether the command line asks for a drain."""
        return bool(getattr(self.arguments, "drain_and_exit", False))

    async def run(self, context: Context) -> None:
        """Until told to stop, or drained."""
        self._context = context
        metrics = Metrics(context.registry, self)
        del metrics
        stop = asyncio.create_task(context.stop.wait())
        try:
            while not context.stop.is_set():
                work = asyncio.create_task(self._own(context))
                try:
                    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # Nothing may go on in the background, whoever ends this.
                    await _end(work)
                result = (await asyncio.gather(work, return_exceptions=True))[0]
                if isinstance(result, (Fenced, asyncio.CancelledError)):
                    if isinstance(result, Fenced):
                        log.warning("another feeder has taken over; standing by")
                    continue
                if isinstance(result, PyMongoError):
                    context.problems.set("feeder", f"can't take over replay yet: {_short(result)}")
                    await context.stopping(1.0)
                    continue
                if isinstance(result, BaseException):
                    context.problems.clear("feeder")  # it is another one now
                    raise result
                if self.draining:
                    return
        finally:
            stop.cancel()

    @staticmethod
    async def _adopt(tiers: Tiers, owner: Owner, found: Checkpoint) -> bool:
        return may_succeed(owner, found.owner) and await adopt(tiers, owner, found)

    async def _own(self, context: Context) -> None:
        """One term of ownership; ends cancelled, fenced, or drained."""
        tiers = context.tiers
        metadata = context.manifest.current.metadata
        owner = Owner(
            metadata.namespace,
            metadata.name,
            metadata.uid,
            await catalog.replica_set_id(tiers.fast),
            await catalog.replica_set_id(tiers.archive),
        )
        beating = asyncio.create_task(self._beat_process(context))
        try:
            await refuse_swapped(tiers)  # before anything is written on either
            checkpoint = await acquire(
                tiers.archive,
                self.me,
                owner,
                takeover_after=self.settings.takeover_after,
                poll=self.settings.standby_poll,
                clock=self.clock,
                place=self.place,
                # Once it has owned replay, who took over meanwhile is alive, wherever it says that it runs.
                succeeds=not self._owned,
                standing_by=self._stand_by,
                adopt=partial(self._adopt, tiers, owner),
            )
            self._owned = True
            context.problems.clear("feeder")
            log.info("this process owns replay", extra={"feeder": str(self.me)})
            admission = self.admission or real_admission(context)
            parts = assemble(
                context,
                owner,
                self.me,
                self.settings,
                self.clock,
                admission,
                self.pause,
                drain=self.draining,
            )
            parts.moves.switch.retains = lambda: context.manifest.current.metadata.retain
            parts.states.generation = lambda: context.manifest.applied_generation
            parts.applier.reset(checkpoint.quarantine)
            measures = Measures(context, parts, self.clock, draining=self.draining)
            parts.replay.give_way = measures.give_way
            self.measures = measures
            self.parts = parts
            self.owning, self.standing_by_for = True, None
            try:
                await self._work(context, parts, measures)
            finally:
                self.parts = None
                await self._let_go(tiers)
        except ExceptionGroup as group:
            cause: BaseException = group
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            if isinstance(cause, (PyMongoError, ThermoclineError)):
                raise cause from group
            raise
        finally:
            self.owning = False
            self.measures = None
            context.problems.clear("window")
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _let_go(self, tiers: Tiers) -> None:
        self.owning = False
        if not self.releases:
            return
        try:
            async with asyncio.timeout(5):
                await asyncio.shield(release(tiers.archive, self.me))
        except (PyMongoError, Fenced, TimeoutError) as error:
            log.info("replay couldn't be given up by name", extra={"error": str(error)[:200]})

    def _stand_by(self, other: uuid.UUID) -> None:
        self.standing_by_for = other

    # At work ---------------------------------------------------------------------------------

    async def _work(self, context: Context, parts: Parts, measures: Measures) -> None:
        async with asyncio.TaskGroup() as group:
            over = asyncio.Event()
            replay = group.create_task(parts.replay.run())
            replay.add_done_callback(lambda _: over.set())
            tasks = [
                replay,
                group.create_task(_must_not_end(over)),
                group.create_task(self._beat(context, parts)),
                group.create_task(self._publish_lease(context)),
                group.create_task(self._after_opening(parts, parts.states.run)),
                group.create_task(self._after_opening(parts, lambda: self._mark(context, parts))),
                group.create_task(
                    self._after_opening(parts, lambda: self._collect(context, parts))
                ),
                group.create_task(
                    self._after_opening(parts, lambda: self._watch_archive(context, parts))
                ),
                group.create_task(self._retry_quarantined(context, parts)),
                group.create_task(self._follow_manifest(context, parts)),
                group.create_task(measures.run()),
                group.create_task(measures.probe()),
                group.create_task(keep_ending(context.tiers.fast)),
            ]
            if self.draining:
                await self._drained(context, parts)
                for task in tasks:
                    task.cancel()

    @staticmethod
    async def _after_opening(parts: Parts, work: Callable[[], Awaitable[None]]) -> None:
        """Work that needs the epoch: begins when the stream was opened once."""
        await parts.replay.begun.wait()
        await work()

    async def _beat_process(self, context: Context) -> None:
        while True:
            context.heartbeat.beat()
            await asyncio.sleep(1.0)

    async def _beat(self, context: Context, parts: Parts) -> None:
        """The owner's heartbeat in A, where no batch moves it."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_interval)
            if self.clock() - parts.replay.committed_at < self.settings.heartbeat_interval:
                continue
            try:
                await beat(context.tiers.archive, self.me)
            except PyMongoError as error:
                log.info("the heartbeat couldn't be written", extra={"error": _short(error)})

    async def _mark(self, context: Context, parts: Parts) -> None:
        """Raise F's counter, then let the next batch name it."""
        while True:
            try:
                counter = await parts.opening.count_up()
            except PyMongoError as error:
                log.info("the epoch's counter couldn't be raised", extra={"error": _short(error)})
            else:
                if counter is None:
                    parts.registry.changed.set()  # open anew, which finds out what happened to F
                else:
                    parts.replay.counted = counter
            await asyncio.sleep(self.settings.marker_interval)

    async def _collect(self, context: Context, parts: Parts) -> None:
        while True:
            await asyncio.sleep(self.settings.record_scan)
            try:
                await parts.collector.scan()
                await parts.collector.collect_markers()
            except PyMongoError as error:
                log.info("removal records couldn't be collected", extra={"error": _short(error)})

    async def _retry_quarantined(self, context: Context, parts: Parts) -> None:
        while True:
            await asyncio.sleep(self.settings.quarantine_retry)
            if parts.applier.quarantine:
                parts.replay.again(set(parts.applier.quarantine))
                try:
                    await write_marker(context.tiers, f"barrier:{self.me}")
                except PyMongoError as error:
                    log.info(
                        "refused documents wait for the next event", extra={"error": _short(error)}
                    )

    async def _follow_manifest(self, context: Context, parts: Parts) -> None:
        async for manifest in context.manifest.changes():
            parts.states.changed.set()
            if manifest.spec.feeder.mode is WorkMode.PAUSED:
                parts.registry.changed.set()  # ends the stream; replay waits before it opens another

    async def _publish_lease(self, context: Context) -> None:
        publisher = LeasePublisher(context.tiers.archive, self.me)
        async for manifest in context.manifest.changes():
            wanted = manifest.spec.proxy.lease.total_seconds()
            while True:
                try:
                    await publisher.publish(wanted)
                    break
                except (PyMongoError, ValueError) as error:
                    log.info("the lease couldn't be published", extra={"error": _short(error)})
                await asyncio.sleep(1.0)

    async def _watch_archive(self, context: Context, parts: Parts) -> None:
        """Restart the watch on A whenever other namespaces are active, or one is anew."""

        def since() -> dict[str, Timestamp | None]:
            return {ns: pair.since for ns, pair in parts.registry.pairs.items()}

        while True:
            active = since()
            if not active:
                await asyncio.sleep(1.0)
                continue
            watch = asyncio.create_task(parts.foreign.run(active))
            try:
                while not watch.done() and since() == active:
                    self._report_foreign(context, parts)
                    await asyncio.wait({watch}, timeout=1.0)
            finally:
                watch.cancel()
                result = (await asyncio.gather(watch, return_exceptions=True))[0]
            if isinstance(result, OperationFailure) and result.code in (
                Code.ChangeStreamHistoryLost,
                Code.CappedPositionLost,
            ):
                parts.foreign.forget_times()
            elif isinstance(result, BaseException) and not isinstance(
                result, (PyMongoError, asyncio.CancelledError)
            ):
                raise result
            await asyncio.sleep(0.2)

    def _report_foreign(self, context: Context, parts: Parts) -> None:
        for namespace, count in parts.foreign.counts.items():
            context.problems.set(
                f"foreign {namespace}",
                f"{count} writes to {namespace} reached the archive directly. They are kept unless the same "
                "document is written through the proxy; let every writer use the proxy",
            )

    async def _drained(self, context: Context, parts: Parts) -> None:
        """Wait until nothing is tiered any more, or can't be replayed."""
        states = parts.states
        while True:
            await asyncio.sleep(0.2)
            if states.known and parts.replay.time is not None:
                left = {
                    ns: c for ns, c in states.coverages.items() if c.state is not State.PASSTHROUGH
                }
                kept = [ns for ns, c in states.coverages.items() if c.fast_uuid is not None]
                if not left and not kept:
                    context.exit_code = DRAINED
                    return
                refused = len(parts.applier.quarantine)
                if refused and set(states.blocked) >= set(left):
                    log.error("not everything could be replayed", extra={"documents": refused})
                    context.exit_code = NOT_DRAINED
                    return

    # What it shows ---------------------------------------------------------------------------

    def ready(self) -> bool:
        """Owning and replaying, or standing by for a living owner."""
        if self.parts is not None and self.owning:
            return self.parts.replay.caught_up or bool(self.parts.replay.committed_at)
        return self.standing_by_for is not None

    def status(self) -> Mapping[str, Any]:
        """See docs/protocol.md."""
        manifest = None if self._context is None else self._context.manifest.current
        targets = {} if manifest is None else wanted(manifest, drain=self.draining)
        other = self.standing_by_for
        role = "owner" if self.owning else "starting" if other is None else "standby"
        own = {
            "feeder": str(self.me),
            "role": role,
            "owner": str(self.me) if self.owning else None if other is None else str(other),
        }
        if self.parts is None or self.measures is None:
            return own
        return own | report(self.parts, targets, self.measures)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended; a single cancellation can get lost in what it awaits."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=END_SECONDS)


def _short(error: Exception) -> str:
    return str(error).split(", Timeout:")[0].split(", full error:")[0][:300]


async def _must_not_end(over: asyncio.Event) -> None:
    """Ends the process where replay ended by itself: a task that ends cancelled is no error to its group."""
    await over.wait()
    raise RuntimeError("replay has ended by itself")

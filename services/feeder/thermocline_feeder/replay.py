"""Replay: stream -> backlog -> F's state -> archive, three stages at work at once, in order."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from thermocline_common.barrier import write_marker
from thermocline_common.clock import Clock
from thermocline_common.errors import ThermoclineError
from thermocline_common.health import Problems
from thermocline_common.ids import DocId
from thermocline_common.tiers import Tiers
from thermocline_feeder.ahead import ReadAhead
from thermocline_feeder.applier import Applier, CollectionReplaced, Prepared, TooManyRefused
from thermocline_feeder.fetch import State, TooMuch, fetch_state
from thermocline_feeder.plan.batches import MAX_BATCH_BYTES, Pace, total_bytes
from thermocline_feeder.plan.dirty import Backlog, Batch
from thermocline_feeder.plan.failures import Reading, after_reading
from thermocline_feeder.plan.known import plain_ids
from thermocline_feeder.plan.origin import Position
from thermocline_feeder.plan.verdicts import Verdict, judge, unexplained
from thermocline_feeder.registry import Pair, Registry
from thermocline_feeder.settings import Settings
from thermocline_feeder.stream import REPLY_EVENTS, Stream

log = logging.getLogger(__name__)

Resolve = Callable[[str], Awaitable[Pair | None]]
"""Looks at a namespace whose collection in F isn't the known one; its pair now (None: not replayed)."""
Pause = Callable[[str], Awaitable[None]]


class Restart(Exception):
    """Open the stream anew from the checkpoint."""


@dataclass(slots=True)
class Figures:
    """Counted since this process started."""

    events: int = 0
    documents: int = 0
    bytes: int = 0
    batches: int = 0
    read_later: int = 0
    unexplained: int = 0
    resyncs: int = 0
    lags: list[float] = field(default_factory=list)
    """Seconds from reading a batch's events to its commit in A, the last thousand."""


@dataclass(slots=True)
class Replay:
    """Replays as long as this process owns the checkpoint. ``time``: the checkpoint's, as committed."""

    tiers: Tiers
    me: uuid.UUID
    settings: Settings
    registry: Registry
    applier: Applier
    problems: Problems
    clock: Clock
    resolve: Resolve
    open_from: Callable[[], Awaitable[Timestamp]]
    """Where to open the stream; settles first whether F went back, or its oplog is too short."""
    adopt: Callable[[str], Awaitable[bool]]
    """The archive's collection was replaced: whether there is one to go on with."""
    position: Callable[[], Position | None]
    """The epoch in force."""
    paused: Callable[[], bool]
    """Whether the manifest wants replay to hold still."""
    pause: Pause | None = None
    give_way: Callable[[int, float], Awaitable[None]] | None = None
    """Awaited after each batch with its documents and the seconds that it took: rests for readers of A."""
    ahead: ReadAhead | None = None
    figures: Figures = field(default_factory=Figures)
    time: Timestamp | None = None
    counted: Position | None = None
    """F's counter, once raised there: the next batch names it."""
    committed_at: float = 0.0
    caught_up: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the stream was opened for the first time."""
    _backlog: Backlog = field(default_factory=Backlog)
    _pace: Pace | None = None
    _oldest: float | None = None
    _in_flight: deque[float] = field(default_factory=deque)
    """When the changes of each batch that is being applied, or waits for it, were read."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    _extra: set[tuple[str, DocId]] = field(default_factory=set)
    _stream: Stream | None = None
    _reply_events: int = REPLY_EVENTS

    async def run(self) -> None:
        """Until cancelled. Raises :class:`checkpoint.Fenced`, or what only a person can mend."""
        pause = self.settings.back_off_first
        while True:
            began = self.clock()
            while self.paused():
                self.problems.set("paused", "spec.feeder.mode is Paused: nothing is replayed")
                await asyncio.sleep(0.2)
            self.problems.clear("paused")
            try:
                await self._session()
            except (ExceptionGroup, PyMongoError, ThermoclineError, Restart) as error:
                cause = _cause(error)
                self.caught_up = False
                if isinstance(cause, Restart):
                    pause = self.settings.back_off_first / 10
                elif isinstance(cause, CollectionReplaced) and await self._adopted(cause.namespace):
                    pause = self.settings.back_off_first
                elif isinstance(cause, (TooManyRefused, CollectionReplaced)):
                    self.problems.set("replay", str(cause))
                    pause = self.settings.back_off_most
                elif isinstance(cause, PyMongoError):
                    self.problems.set(
                        "replay", f"replay is interrupted and tried again: {_text(cause)}"
                    )
                else:
                    raise cause from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, self.settings.back_off_most)
            if self.clock() - began > 10:
                pause = self.settings.back_off_first

    async def _adopted(self, namespace: str) -> bool:
        try:
            return await self.adopt(namespace)
        except (PyMongoError, ThermoclineError) as error:
            log.info(
                "the archive's collection couldn't be looked at", extra={"error": str(error)[:200]}
            )
            return False

    async def _session(self) -> None:
        """One opening of the stream, until something goes wrong."""
        self._backlog.clear()
        self._oldest = None
        self._in_flight.clear()
        self.registry.changed.clear()
        start = await self.open_from()
        self.time = start
        self.applier.known.clear()
        watched = frozenset(self.registry.watched)
        stream = Stream(self.tiers.fast, self.settings.await_data, self._reply_events)
        self._stream = stream
        self._pace = Pace(self.settings.batch_changes)
        queue: asyncio.Queue[Prepared] = asyncio.Queue(1)
        try:
            await stream.open(start, watched)
            await self.registry.stream_opened(watched)
            self.begun.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(stream))
                group.create_task(self._prepare_all(queue))
                group.create_task(self._apply_all(queue))
                group.create_task(self._reopen())
        finally:
            self.caught_up = False
            self._reply_events = stream.most_events
            await asyncio.shield(stream.close())

    async def _reopen(self) -> None:
        await self.registry.changed.wait()
        raise Restart

    async def _read(self, stream: Stream) -> None:
        while True:
            while self._backlog.ready >= self.settings.backlog_changes:
                self._room.clear()
                await self._room.wait()
            try:
                events = await stream.read()
            except OperationFailure as error:
                what = after_reading(error.code, (error.details or {}).get("errorLabels", ()))
                log.info("the change stream ended", extra={"code": error.code, "what": what.value})
                if what in (Reading.RESYNC, Reading.REOPEN):
                    raise Restart from error  # the opening finds out whether a resync is due
                raise
            if events.changes:
                self.figures.events += len(events.changes)
                if self._oldest is None:
                    self._oldest = events.read_at
            self._backlog.add(events.changes, caught_up=events.caught_up)
            self.caught_up = events.caught_up
            if not events.changes and not len(self._backlog):
                self.problems.clear("replay")
            if self._backlog.ready:
                self._news.set()

    async def _prepare_all(self, queue: "asyncio.Queue[Prepared]") -> None:
        assert self._pace is not None
        while True:
            # One batch ahead of the one that is being applied keeps both stages at work; another would
            # only have been cut too early, and what it lacks would wait for it.
            await queue.join()
            batch = self._backlog.take(self._pace.limit)
            if batch is None:
                self._oldest = None
                self._news.clear()
                await self._news.wait()
                continue
            self._room.set()
            read_at = self._oldest or self.clock()
            self._oldest = self.clock() if len(self._backlog) else None
            await self._prepare_part(batch, read_at, queue)

    async def _prepare_part(
        self, batch: Batch, read_at: float, queue: "asyncio.Queue[Prepared]"
    ) -> None:
        pending = [batch]
        while pending:
            part = pending.pop()
            halves = part.split()
            try:
                prepared = await self.prepare(part, most_bytes=MAX_BATCH_BYTES if halves else None)
            except TooMuch:
                assert halves is not None
                pending += [halves[1], halves[0]]
                continue
            prepared.read_at = read_at
            assert self._pace is not None
            self._pace.saw(len(prepared.verdicts), total_bytes(prepared.verdicts))
            self._in_flight.append(read_at)
            if self.ahead is not None:
                prepared.reading = await self.ahead.read(prepared.verdicts)
            await queue.put(prepared)

    async def prepare(self, batch: Batch, *, most_bytes: int | None = None) -> Prepared:
        """F's state of the batch's ids at its last event's time. Raises :class:`TooMuch` and PyMongo's errors."""
        dirty = batch.dirty()
        extra, self._extra = self._extra, set()
        for namespace, doc_id in extra:
            dirty.setdefault(namespace, set()).add(doc_id)
        await self._know_collections(batch)
        time, later, rounds = batch.time, False, 0
        while True:
            try:
                states = await self._fetch(dirty, time, most_bytes)
            except OperationFailure as error:
                what = after_reading(error.code, (error.details or {}).get("errorLabels", ()))
                if what is Reading.CHANGED:
                    rounds += 1
                    if rounds > 5:
                        raise
                    for namespace in dirty:
                        if namespace in self.registry.pairs:
                            await self.resolve(namespace)
                    continue
                if what is not Reading.READ_LATER:
                    raise
                time, later = await write_marker(self.tiers, f"barrier:{self.me}"), True
                self.figures.read_later += 1
                continue
            break
        verdicts: list[Verdict] = []
        touched = {namespace: dirty[namespace] for namespace in states}
        for namespace, state in states.items():
            ids = dirty[namespace]
            pair = self.registry.pairs[namespace]
            verdicts += judge(namespace, ids, state.documents, state.records, pair.archive)
            self.figures.unexplained += unexplained(ids, state.documents, state.records)

        async def judge_more(namespace: str, ids: list[DocId]) -> list[Verdict]:
            pair = self.registry.pairs[namespace]
            state = await fetch_state(self.tiers.fast, namespace, pair.fast, ids, time)
            return judge(namespace, ids, state.documents, state.records, pair.archive)

        return Prepared(
            verdicts,
            touched,
            self._fields(batch),
            judge_more,
            len(batch.changes),
            later=later,
            fresh=batch.inserted(),
            pairs={namespace: self.registry.pairs[namespace] for namespace in states},
            plain=plain_ids(verdicts),
        )

    def _fields(self, batch: Batch) -> Mapping[str, Any]:
        fields: dict[str, Any] = {"time": batch.time}
        if self._stream is not None and self._stream.cluster_time is not None:
            fields["clusterTime"] = self._stream.cluster_time
        counted, current = self.counted, self.position()
        # A count of an epoch that was given up since would make F look as if it had gone back.
        if counted is not None and current is not None and counted.epoch == current.epoch:
            fields["counter"] = Int64(counted.counter)
        return fields

    async def _know_collections(self, batch: Batch) -> None:
        """Meet new collections: one that an insert created gets its counterpart in A before it is replayed."""
        for namespace, uuids in batch.collections().items():
            pair = self.registry.pairs.get(namespace)
            if pair is None:
                continue
            if uuids - {pair.fast}:
                await self.resolve(namespace)

    async def _fetch(
        self, dirty: Mapping[str, set[DocId]], time: Timestamp, most_bytes: int | None
    ) -> dict[str, State]:
        wanted = {ns: ids for ns, ids in dirty.items() if ns in self.registry.pairs}
        fetched = await asyncio.gather(
            *(
                fetch_state(
                    self.tiers.fast,
                    ns,
                    self.registry.pairs[ns].fast,
                    ids,
                    time,
                    most_bytes=most_bytes,
                )
                for ns, ids in wanted.items()
            )
        )
        return dict(zip(wanted, fetched, strict=True))

    async def _apply_all(self, queue: "asyncio.Queue[Prepared]") -> None:
        while True:
            prepared = await queue.get()
            queue.task_done()  # taken, that is
            if self.pause is not None:
                await self.pause("apply")
            began = self.clock()
            await self.applier.apply(prepared)
            now = self.clock()
            took = now - began + prepared.reading
            if self.ahead is not None:
                self.ahead.saw(len(prepared.verdicts), prepared.reading, now - began)
            if self._pace is not None:
                self._pace.took(took)
            self._in_flight.popleft()
            figures = self.figures
            figures.batches += 1
            figures.documents += len(prepared.verdicts)
            figures.bytes += total_bytes(prepared.verdicts)
            figures.lags.append(now - prepared.read_at)
            del figures.lags[:-1000]
            self.committed_at = now
            self.problems.clear("replay")
            async with self._moved:
                self.time = prepared.fields["time"]
                self._moved.notify_all()
            if self.give_way is not None:
                await self.give_way(len(prepared.verdicts), took)

    async def passed(self, target: Timestamp) -> None:
        """Wait until the committed checkpoint is at or past ``target``."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.time is not None and self.time >= target)

    async def past_now(self) -> Timestamp:
        """Write a marker to F and wait until replay has passed it; its time."""
        time = await write_marker(self.tiers, f"barrier:{self.me}")
        await self.passed(time)
        return time

    def again(self, keys: set[tuple[str, DocId]]) -> None:
        """Take these ids into the next batch."""
        self._extra |= keys

    @property
    def backlog(self) -> int:
        """Changes read and not yet applied, without those in hand."""
        return len(self._backlog)

    @property
    def lag(self) -> float:
        """Seconds that the archive is behind; 0 where nothing is known to be missing there."""
        oldest = self._in_flight[0] if self._in_flight else self._oldest
        if oldest is None:
            return 0.0
        behind = 0.0
        seen = None if self._stream is None else self._stream.cluster_time
        if seen is not None and self.time is not None:
            behind = float(seen["clusterTime"].time - self.time.time - 1)  # whole seconds
        return max(0.0, self.clock() - oldest, behind)


def _cause(error: BaseException) -> BaseException:
    """The first exception inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(error: BaseException) -> str:
    text = str(error).split(", Timeout:")[0].split(", full error:")[0]
    return f"{type(error).__name__}: {text}"

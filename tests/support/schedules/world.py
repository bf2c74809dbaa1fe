"""Two real tiers with one tiered namespace, the truth about its documents, and the checks of it."""

import asyncio
import dataclasses
import datetime as dt
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Final

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from support.hand_feeder import activate
from support.mongod import ReplicaSet
from support.schedules.hooks import Hooks, no_pause
from support.schedules.scheduler import Actor, Policy, Scheduler, Violation
from thermocline_common import names
from thermocline_common.barrier import write_marker
from thermocline_common.coverage import Coverage
from thermocline_common.health import Problems
from thermocline_common.leases import Lease
from thermocline_common.raw_reads import find_raw
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_evictor import eviction
from thermocline_evictor.plan import steps
from thermocline_feeder.applier import Applier
from thermocline_feeder.plan.dirty import Batch, Change
from thermocline_feeder.registry import Pair, Registry
from thermocline_feeder.replay import Replay
from thermocline_feeder.settings import Settings as FeederSettings
from thermocline_feeder.stream import Stream

NOW: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
AGE: Final = dt.timedelta(days=60)
"""Of every document: more than the evictor's policy (30 days), less than the warmer's."""
COVERED: Final = dt.timedelta(days=90)
"""The warmer's policy, and how far a floor reaches where there is one at the start."""

JOURNAL_AT_ONCE: Final = ("--journalCommitInterval", "1")
"""Options of a mongod: a linearizable read waits for the journal, 100 ms otherwise."""

Document = dict[str, Any]
Truth = Document | None
STARTS: Final = ("cold", "hot", "fresh", "none")
"""Where a document is at the start: in A; in both tiers; in F only, not yet replayed; nowhere."""


@dataclass(frozen=True)
class Answer:
    """What an operation's client got: the documents or counts, or an error's code."""

    reply: Mapping[str, Any]

    @property
    def code(self) -> int:
        errors = self.reply.get("writeErrors")
        return int(errors[0]["code"]) if errors else int(self.reply.get("code", 0))


@dataclass(eq=False)
class Operation:
    """One client command on its way. ``window``: each document's truths since it began; ``effects``:
    how often this operation changed it."""

    name: str
    judge: Callable[["Operation", Answer], str | None]
    window: dict[str, list[Truth]] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)
    before: dict[str, Truth] = field(default_factory=dict)
    """What its changes replaced."""
    answer: Answer | None = None
    judged: bool = False

    def always(self, doc_id: str) -> bool:
        """Whether the document existed all the time."""
        return None not in self.window[doc_id]


class World:
    """Used for one schedule after another; :meth:`begin` starts one."""

    def __init__(
        self, fast: ReplicaSet, archive: ReplicaSet, hooks: Hooks, *, unique: bool = False
    ) -> None:
        self.hooks = hooks
        self.unique = unique
        self.database, self.collection = "schedules", "unique" if unique else "plain"
        self.namespace = f"{self.database}.{self.collection}"
        self.tiers = Tiers(fast.async_client(), archive.async_client())
        self.eyes = Tiers(fast.async_client(), archive.async_client())
        """Clients of the test's own."""
        self.me = uuid.uuid4()
        self.number = 0
        hooks.is_fast = lambda client: client is self.tiers.fast or client is self.eyes.fast
        hooks.wrote = self._noticed

    async def open(self) -> None:
        """Make the namespace, once."""
        keys = [{"key": {"t": 1}, "name": "t_1"}]
        unique: dict[str, Any] = {}
        if self.unique:
            keys.append({"key": {"k": 1}, "name": "k_1", "unique": True})  # type: ignore[dict-item]
            unique = {"unique": [{"name": "k_1", "paths": ["k"], "plain": True}]}
        await self.eyes.archive[self.database].command(
            {"createIndexes": self.collection, "indexes": keys}
        )
        found = await activate(self.tiers, self.namespace, **unique)
        base = await self.eyes.fast[names.DATABASE][names.COVERAGE].find_one(
            {"_id": self.namespace}
        )
        assert base is not None
        self.base: dict[str, Any] = base
        await self.eyes.archive[names.DATABASE][names.TIERED].insert_one({"_id": self.namespace})
        await self._open_feeder(found)

    async def _open_feeder(self, coverage: Coverage) -> None:
        self.registry = Registry()
        pair = Pair(coverage.fast_uuid, coverage.archive_uuid, coverage.archive_time)
        self.registry.reset({self.namespace}, {self.namespace: pair})
        self.applier = Applier(self.tiers.archive, self.me, 1_000)
        await self.eyes.archive[names.DATABASE][names.CHECKPOINT].replace_one(
            {"_id": names.CHECKPOINT_ID},
            {
                "feeder": Binary.from_uuid(self.me),
                "heartbeat": Int64(1),
                "quarantine": [],
                "lease": {"longest": Int64(5_000), "wait": Int64(5_000)},
            },
            upsert=True,
        )
        start = self.published = await write_marker(self.tiers, "barrier:start")
        self.stream = Stream(self.tiers.fast, 1.0)
        await self.stream.open(start, [self.namespace])
        with no_pause():
            await self.tiers.archive.admin.command("ping")

    async def close(self) -> None:
        """Close the clients."""
        await self.stream.close()
        for tiers in (self.tiers, self.eyes):
            await tiers.fast.close()
            await tiers.archive.close()

    # One schedule

    async def begin(
        self,
        starts: Mapping[str, str],
        policy: Policy,
        *,
        floor: bool = False,
        age: dt.timedelta = AGE,
        covered: dt.timedelta = COVERED,
        lease: float = 5.0,
        feeder_crashes: int = 0,
    ) -> None:
        """A clean slate. ``starts``: names of documents -> where they are (one of STARTS).

        ``floor``: F's coverage reaches as far as ``covered`` already.
        """
        self.hooks.scheduler = None
        self.number += 1
        self.age, self.covered = age, covered
        self.ids = {name: f"{self.number}{name}" for name in starts}
        await self._empty()
        document: dict[str, Any] = {**self.base, "epoch": Binary.from_uuid(uuid.uuid4())}
        if floor:
            document |= {"floor": NOW - covered, "publishedAt": self.published}
        eyes = self.eyes
        await eyes.fast[names.DATABASE][names.COVERAGE].replace_one(
            {"_id": self.namespace}, document
        )
        made = {name: self.document(name) for name in starts}
        cold = [made[n] for n, where in starts.items() if where in ("cold", "hot")]
        hot = [made[n] for n, where in starts.items() if where == "hot"]
        fresh = [made[n] for n, where in starts.items() if where == "fresh"]
        if cold:
            await eyes.archive[self.database][self.collection].insert_many(cold)
        if hot:
            await eyes.fast[self.database][self.collection].insert_many(hot)
        time = await write_marker(self.eyes, "barrier:start")
        await self._events_until(time)
        length = round(lease * 1_000)
        mine = {
            "time": time,
            "quarantine": [],
            "feeder": Binary.from_uuid(self.me),
            "lease": Lease(length, length).document(),
        }
        await eyes.archive[names.DATABASE][names.CHECKPOINT].update_one(
            {"_id": names.CHECKPOINT_ID}, {"$set": mine}
        )
        if fresh:
            await eyes.fast[self.database][self.collection].insert_many(fresh)
        self.truth: dict[str, Truth] = {
            self.ids[n]: made[n] if where != "none" else None for n, where in starts.items()
        }
        self.version = 1
        self.operations: list[Operation] = []
        self.closing: list[Callable[[], Awaitable[None]]] = []
        self.changes: list[Change] = []
        self.written = 1 if fresh else 0
        self.replayed = 0
        self.feeder_crashes = feeder_crashes
        self._touched = False
        self._writer: Operation | None = None
        self.applier.reset(())
        self.scheduler = Scheduler(policy, self.after_step)
        self.replay = self._new_replay(time)
        self.fast_now = await self._documents(eyes.fast)
        self.hooks.scheduler = self.scheduler

    def document(self, name: str) -> Document:
        """The document of this name at the start; ``k``: its unique key."""
        found: Document = {"_id": self.ids[name], "t": NOW - self.age, "g": 1, "v": 1, "w": 0}
        if self.unique:
            found["k"] = name
        return found

    def next_version(self) -> int:
        """A value that no document had before."""
        self.version += 1
        return self.version

    async def _empty(self) -> None:
        for client in (self.eyes.fast, self.eyes.archive):
            await client[self.database][self.collection].delete_many({})
        await self.eyes.fast[names.DATABASE][names.REMOVED].delete_many({})

    def _new_replay(self, time: Timestamp) -> Replay:
        async def resolve(namespace: str) -> Pair | None:
            return self.registry.pairs.get(namespace)

        given: dict[str, Any] = {
            "tiers": self.tiers,
            "me": self.me,
            "settings": FeederSettings(),
            "registry": self.registry,
            "applier": self.applier,
            "problems": Problems(),
            "clock": self.scheduler.clock,
            "resolve": resolve,
            "position": lambda: None,
        }
        # The rest is for its own loop, which doesn't run here: the scheduler says when it works.
        for field_ in dataclasses.fields(Replay):
            required = field_.default is MISSING and field_.default_factory is MISSING
            if required and field_.name not in given:
                given[field_.name] = None
        replay = Replay(**given)
        replay.time = time
        replay._stream = self.stream
        return replay

    # The feeder

    async def _events_until(self, time: Timestamp) -> list[Change]:
        changes: list[Change] = []
        while not changes or changes[-1].time < time:
            changes += (await self.stream.read()).changes
        return changes

    async def feed(self) -> None:
        """The feeder, a batch at a time: whatever was written so far, F's state at that time, A.

        A crash before the commit comes to the same as taking the batch's changes again.
        """
        while True:
            await self.scheduler.step("fetch", enabled=lambda: self.replayed < self.written)
            upto = self.written
            with no_pause():
                target = await write_marker(self.tiers, "barrier:feeder")
            self.written -= 1  # this marker is nobody's
            self.changes += await self._events_until(target)
            prepared = await self.replay.prepare(Batch(list(self.changes)))
            await self.scheduler.step("apply")
            if self.feeder_crashes:
                self.feeder_crashes -= 1
                continue
            with no_pause():
                await self.applier.apply(prepared)
            self.changes.clear()
            self.replayed = upto
            async with self.replay._moved:
                self.replay.time = prepared.fields["time"]
                self.replay._moved.notify_all()

    def drained(self) -> bool:
        """Whether A has everything."""
        return self.replayed >= self.written

    # Truth

    def begun(self, operation: Operation) -> None:
        """A client's command arrives."""
        operation.window = {doc_id: [truth] for doc_id, truth in self.truth.items()}
        self.operations.append(operation)

    def client_wrote(self, operation: Operation) -> None:
        """A client's write was carried out on F in this step."""
        self._writer = operation

    def _noticed(self, tier: str, collection: str) -> None:
        self._touched = True
        if tier == "F":
            self.written += 1

    async def after_step(self) -> None:
        """Judge what the step did. Raises :class:`Violation`."""
        if self._touched:
            self._touched = False
            fast, records, archive = await asyncio.gather(
                self._documents(self.eyes.fast), self._records(), self._documents(self.eyes.archive)
            )
            if self._writer is not None:
                self._follow(self._writer, fast)
                self._writer = None
            self.fast_now = fast
            self._judge_authority(fast, records, archive)
        for operation in self.operations:
            if operation.answer is not None and not operation.judged:
                operation.judged = True
                wrong = operation.judge(operation, operation.answer)
                if wrong is not None:
                    raise Violation(
                        f"{operation.name}: {wrong}; answer {operation.answer.reply}, truths "
                        f"meanwhile {operation.window}"
                    )

    def _follow(self, writer: Operation, fast: Mapping[str, Document]) -> None:
        for doc_id in self.fast_now.keys() | fast.keys():
            was, now = self.fast_now.get(doc_id), fast.get(doc_id)
            if was == now:
                continue
            truth = self.truth.get(doc_id)
            if was is None and truth is not None:
                raise Violation(f"{writer.name}: {doc_id} was inserted although it exists: {truth}")
            writer.effects[doc_id] += 1
            writer.before[doc_id] = truth
            self.truth[doc_id] = now
            for operation in self.operations:
                if not operation.judged:
                    operation.window.setdefault(doc_id, [None]).append(now)
        if self.unique:
            keys = Counter(d["k"] for d in self.truth.values() if d is not None)
            twice = [key for key, count in keys.items() if count > 1]
            if twice:
                raise Violation(
                    f"{writer.name}: two documents have the unique key {twice}: {self.truth}"
                )

    def _judge_authority(
        self,
        fast: Mapping[str, Document],
        records: Mapping[str, str],
        archive: Mapping[str, Document],
    ) -> None:
        for doc_id, truth in self.truth.items():
            authority = fast.get(doc_id)
            if authority is None and records.get(doc_id) not in ("deleted", "expired"):
                authority = archive.get(doc_id)
            if authority != truth:
                raise Violation(
                    f"the authority rule gives {authority} for {doc_id}, the truth is {truth}; F "
                    f"{fast.get(doc_id)}, record {records.get(doc_id)}, A {archive.get(doc_id)}"
                )

    async def judge_rest(self) -> None:
        """Once everything was replayed, A is the truth."""
        await self.after_step()
        archive = await self._documents(self.eyes.archive)
        truth = {i: d for i, d in self.truth.items() if d is not None}
        if archive != truth:
            raise Violation(
                f"at rest the archive holds {archive}, the truth is {truth}\n{self.scheduler.story()}"
            )
        if self.applier.quarantine:
            raise Violation(f"quarantined: {self.applier.quarantine}\n{self.scheduler.story()}")

    async def _documents(self, client: Any) -> dict[str, Document]:
        command = {"find": self.collection, "batchSize": 1_000}
        found: Iterable[RawBSONDocument] = [
            d async for d in find_raw(client, self.database, command)
        ]
        decoded = [bson.decode(d.raw, codec_options=PLAIN) for d in found]
        return {d["_id"]: d for d in decoded}

    async def _records(self) -> dict[str, str]:
        command = {"find": names.REMOVED, "batchSize": 1_000}
        return {
            str(d["_id"]["id"]): str(d["kind"])
            async for d in find_raw(self.eyes.fast, names.DATABASE, command)
        }


async def open_world(
    fast: ReplicaSet, archive: ReplicaSet, patch: pytest.MonkeyPatch, *, unique: bool = False
) -> World:
    """A world with its pause points installed. Close it, and undo the patch, afterwards."""
    world = World(fast, archive, Hooks(patch), unique=unique)
    # Between two steps no cursor is open and no write runs: one look tells.
    patch.setattr(steps, "LOOKS", 1)
    patch.setattr(eviction, "WRITE_LOOKS", 1)
    await world.open()
    return world


def actor_of(scheduler: Scheduler, name: str) -> Actor:
    """The first actor of this name."""
    return next(a for a in scheduler.actors if a.name == name)

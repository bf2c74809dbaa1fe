"""The actors: the proxy's own handlers, the warmer, the evictor, record collection; and what each must answer."""

import asyncio
import datetime as dt
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from support.schedules.hooks import WRITES, no_pause
from support.schedules.world import AGE, COVERED, NOW, Answer, Document, Operation, Truth, World
from thermocline_common import coverage_store
from thermocline_common.barrier import BarrierTimeout
from thermocline_common.coverage import Coverage, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_common.spec.models import EvictorMode
from thermocline_common.tiers import PLAIN, RAW, raw_database
from thermocline_evictor.eviction import Eviction, Next, Orders
from thermocline_evictor.members import Membership
from thermocline_evictor.plan.cutoff import Policy as EvictorPolicy
from thermocline_evictor.plan.steps import Phase
from thermocline_evictor.settings import Settings as EvictorSettings
from thermocline_evictor.tools import Tools as EvictorTools
from thermocline_feeder.collector import Collector
from thermocline_feeder.settings import Settings as FeederSettings
from thermocline_proxy import reads, writes
from thermocline_proxy.barrier import SharedBarrier
from thermocline_proxy.commands.command import Command
from thermocline_proxy.exchange import LeaseLapsed
from thermocline_proxy.leased import leased
from thermocline_proxy.ports import Gateway, Identity, Reply, Request
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_warmer.copier import copy_ids
from thermocline_warmer.plan.windows import Policy as WarmerPolicy
from thermocline_warmer.settings import Settings as WarmerSettings
from thermocline_warmer.warming import Tools as WarmerTools, Warming

DECODED: Final[CodecOptions[Mapping[str, Any]]] = CodecOptions(tz_aware=True)
LEASE: Final = 5.0
PASSING: Final = frozenset({Code.ExceededTimeLimit, Code.MaxTimeMSExpired, Code.HostUnreachable})
"""Errors that say nothing about documents: the client tries again."""
EVICTED: Final = dt.timedelta(days=30)
"""The evictor's policy."""


@dataclass(frozen=True)
class Times:
    """Waits that a test may shorten, in seconds."""

    announce: float = 60.0
    lease: float = LEASE


class ScheduledExchange:
    """Sends one operation's commands with PyMongo, each as a step."""

    def __init__(self, world: World, operation: Operation) -> None:
        self._world = world
        self._operation = operation

    async def run(
        self,
        tier: Tier,
        identity: Identity | None,
        command: Command,
        *,
        to_primary: bool = True,
        member: str | None = None,
        after: Timestamp | None = None,
        deadline: float | None = None,
        may_send: Callable[[], bool] | None = None,
    ) -> Reply:
        """See ``ports.Exchange``."""
        if may_send is not None and not may_send():
            raise LeaseLapsed(())
        label = f"send {'F' if tier is Tier.FAST else 'A'} {command.name}"
        await self._world.scheduler.step(label, strict=True)
        fields = dict(RawBSONDocument(command.body, RAW))
        database = fields.pop("$db")
        for name, documents in command.sequences.items():
            fields[name] = [RawBSONDocument(d, RAW) for d in documents]
        tiers = self._world.tiers
        client = tiers.fast if tier is Tier.FAST else tiers.archive
        with no_pause():
            reply: RawBSONDocument = await raw_database(client, database).command(
                fields, check=False, codec_options=RAW
            )
        if command.name in WRITES:
            self._world.client_wrote(self._operation)
        return Reply(bytes(reply.raw), tier, "member:27017", reply.get("operationTime"))


class VirtualLeases:
    """A proxy's lease on the scheduler's clock, over the coverage document as it is stored."""

    def __init__(self, world: World, lease: float) -> None:
        self._world = world
        self._lease = lease
        self.snapshot: Snapshot | None = None

    async def current(self, deadline: float | None = None) -> Snapshot:
        if self.snapshot is None or not self.alive(self.snapshot):
            until = self._world.scheduler.now + self._lease
            found = await coverage_store.read_one(self._world.tiers, self._world.namespace)
            assert found is not None
            namespace = self._world.namespace
            self.snapshot = Snapshot(
                until, until, {namespace: Tiering(found)}, frozenset({namespace})
            )
        return self.snapshot

    async def untiered(self, deadline: float | None = None) -> Snapshot:
        return await self.current(deadline)

    def alive(self, snapshot: Snapshot) -> bool:
        return self._world.scheduler.now < snapshot.expires

    async def wait_for_change(self, snapshot: Snapshot, deadline: float | None) -> Snapshot:
        self.snapshot = None
        return await self.current(deadline)


@dataclass(frozen=True)
class Client:
    """One command of one client. ``begin_leased``: its proxy got its lease some time before."""

    name: str
    command: Callable[[World], dict[str, Any]]
    judge: Callable[[Operation, Answer], str | None]
    covered: bool = False

    async def __call__(self, world: World, times: Times) -> None:
        operation = Operation(self.name, self.judge)
        leases = VirtualLeases(world, times.lease)
        scheduler = world.scheduler
        if self.covered:
            await self._wait_for_coverage(world, leases)
        world.begun(operation)
        identity = uuid.uuid4()
        barrier = SharedBarrier(world.tiers, identity, scheduler.clock, 3_600.0)
        world.closing.append(barrier.close)
        gateway = Gateway(
            exchange=ScheduledExchange(world, operation),
            leases=leases,
            barrier=barrier,
            tiers=world.tiers,
            clock=scheduler.clock,
            proxy_id=identity,
            count=lambda reason, tier: None,
        )
        body = bson.encode({**self.command(world), "$db": world.database}, codec_options=PLAIN)
        command = Command(body)
        request = Request(command, None, 1)
        writing = command.name in WRITES
        for _ in range(5):
            snapshot = await leases.current()
            try:
                package: Any = writes if writing else reads
                reply = await package.handle(request, leased(gateway, snapshot, None), snapshot)
                operation.answer = Answer(bson.decode(reply.raw, codec_options=DECODED))
                return
            except LeaseLapsed as error:
                if writing:
                    operation.answer = _error(error)
                    return
            except CommandError as error:
                operation.answer = _error(error)
                return

    async def _wait_for_coverage(self, world: World, leases: VirtualLeases) -> None:
        scheduler = world.scheduler
        while True:
            snapshot = await leases.current()
            tiering = snapshot.tierings[world.namespace]
            if tiering.coverage.floor is not None:
                await scheduler.step("call")
                return
            leases.snapshot = None
            before = world.written
            await scheduler.step(
                "uncovered",
                enabled=lambda: world.written > before,  # noqa: B023
                hopeless=True,
            )


def _error(error: CommandError) -> Answer:
    return Answer({"ok": 0.0, "code": error.code, "errmsg": error.message})


# Judges: None, or what is wrong with an answer


def _unexpected(answer: Answer, *expected: int) -> str | None:
    if answer.code and answer.code not in PASSING | set(expected):
        return "an error that nothing explains"
    return None


def _found(answer: Answer) -> list[Document]:
    return [dict(d) for d in answer.reply["cursor"]["firstBatch"]]


def _judge_read(operation: Operation, answer: Answer) -> str | None:
    """Each document as it was at some time in the window, and each that was there all the time."""
    if answer.code:
        return _unexpected(answer)
    found = {d["_id"]: d for d in _found(answer)}
    for doc_id, truths in operation.window.items():
        if not _asked(operation, doc_id):
            continue
        if found.get(doc_id) not in truths:
            return f"{doc_id} was never {found.get(doc_id)}"
    return None


def _asked(operation: Operation, doc_id: str) -> bool:
    _, _, name = operation.name.partition(" ")
    return not name or doc_id.lstrip("0123456789") == name


def _ids(operation: Operation) -> list[str]:
    return [i for i in operation.window if _asked(operation, i)]


def _judge_write(operation: Operation, answer: Answer) -> str | None:
    """Update or delete: as many as it says, and none only if there was none at some time."""
    total = sum(operation.effects.values())
    if answer.code:
        return _unexpected(answer)
    n = int(answer.reply["n"])
    if int(answer.reply.get("nModified", n)) != total:
        return f"it says {n} and changed {dict(operation.effects)}"
    if any(count > 1 for count in operation.effects.values()):
        return f"a document was changed more than once: {dict(operation.effects)}"
    if n == 0:
        for doc_id in _ids(operation):
            if operation.always(doc_id):
                return f"n = 0, although {doc_id} was there all the time"
    return None


def _judge_many(operation: Operation, answer: Answer) -> str | None:
    """updateMany, deleteMany: each document that was there all the time exactly once."""
    if answer.code:
        return _unexpected(answer)
    n = int(answer.reply["n"])
    if n != sum(operation.effects.values()):
        return f"it says n = {n} and changed {dict(operation.effects)}"
    for doc_id, truths in operation.window.items():
        count = operation.effects[doc_id]
        existed = all(t is not None for t in truths[: -1 if count and truths[-1] is None else None])
        if count > 1 or (existed and count != 1):
            return f"{doc_id} was changed {count} times"
    return None


def _judge_insert(operation: Operation, answer: Answer) -> str | None:
    if answer.code == Code.DuplicateKey:
        if sum(operation.effects.values()):
            return "refused, and inserted"
        pattern = answer.reply["writeErrors"][0].get("keyPattern", {})
        if list(pattern) == ["_id"] and not any(
            t is not None for i in _ids(operation) for t in operation.window[i]
        ):
            return "refused, although no such document ever existed"
        return None
    if answer.code:
        return _unexpected(answer)
    if sum(operation.effects.values()) != 1:
        return f"it changed {dict(operation.effects)}"
    return None


def _judge_upsert(operation: Operation, answer: Answer) -> str | None:
    if answer.code:
        return _unexpected(answer, Code.DuplicateKey)
    if sum(operation.effects.values()) != 1:
        return f"it changed {dict(operation.effects)}"
    return None


def _judge_find_and_modify(operation: Operation, answer: Answer) -> str | None:
    if answer.code:
        return _unexpected(answer)
    value: Truth = answer.reply.get("value")
    doc_id = _ids(operation)[0]
    if value is None:
        return None if not operation.always(doc_id) else "found nothing, and it was there"
    if operation.effects[doc_id] != 1 or operation.before[doc_id] != value:
        return f"it replaced {operation.before}, {dict(operation.effects)}"
    return None


def _judge_keyed(operation: Operation, answer: Answer) -> str | None:
    """An update of a unique key: refused, or carried out."""
    if answer.code == Code.DuplicateKey:
        return "refused, and done" if operation.effects else None
    return _judge_write(operation, answer)


# Clients


def _find(**query: Any) -> dict[str, Any]:
    return {"filter": query}


def read(name: str = "x") -> Client:
    """A point read."""
    return Client(
        f"read {name}",
        lambda w: {"find": w.collection, "filter": {"_id": w.ids[name]}},
        _judge_read,
    )


def read_list() -> Client:
    """A read of a list of ids."""
    return Client(
        "ids",
        lambda w: {"find": w.collection, "filter": {"_id": {"$in": list(w.ids.values())}}},
        _judge_read,
    )


def scan() -> Client:
    """A read that nothing proves: A, behind the barrier."""
    return Client("scan", lambda w: {"find": w.collection, "filter": {"g": 1}}, _judge_read)


def covered_scan() -> Client:
    """A read that the floor proves, once there is one."""
    return Client(
        "cscan",
        lambda w: {"find": w.collection, "filter": {"t": {"$gte": NOW - w.covered}}},
        _judge_read,
        covered=True,
    )


def _update(world: World, query: Mapping[str, Any], change: Mapping[str, Any], **more: Any) -> Any:
    statement = {"q": dict(query), "u": dict(change), **more}
    return {"update": world.collection, "updates": [statement]}


def update(name: str = "x") -> Client:
    """An update by ``_id`` to a value that was never there."""
    return Client(
        f"update {name}",
        lambda w: _update(w, {"_id": w.ids[name]}, {"$set": {"v": w.next_version()}}),
        _judge_write,
    )


def set_value(name: str, value: int) -> Client:
    """An update by ``_id`` to a given value."""
    return Client(
        f"set {name}",
        lambda w: _update(w, {"_id": w.ids[name]}, {"$set": {"v": value}}),
        _judge_write,
    )


def update_any() -> Client:
    """An update of one document by another filter."""
    return Client(
        "any",
        lambda w: _update(w, {"g": 1}, {"$set": {"v": w.next_version()}}),
        _judge_any,
    )


def _judge_any(operation: Operation, answer: Answer) -> str | None:
    total = sum(operation.effects.values())
    if answer.code:
        return _unexpected(answer)
    if total > 1 or int(answer.reply["n"]) != total:
        return f"it changed {dict(operation.effects)}"
    if total == 0 and any(operation.always(i) for i in operation.window):
        return "n = 0, although a document was there all the time"
    return None


def update_many() -> Client:
    """updateMany of everything."""
    return Client(
        "many",
        lambda w: _update(
            w, {"g": 1}, {"$inc": {"w": 1}, "$set": {"v": w.next_version()}}, multi=True
        ),
        _judge_many,
    )


def upsert(name: str = "x") -> Client:
    """An upsert by ``_id``."""
    return Client(
        f"upsert {name}",
        lambda w: _update(
            w,
            {"_id": w.ids[name]},
            {"$set": {"v": w.next_version()}, "$setOnInsert": _rest(w, name)},
            upsert=True,
        ),
        _judge_upsert,
    )


def _rest(world: World, name: str) -> Document:
    document = world.document(name)
    return {k: v for k, v in document.items() if k not in ("_id", "v")}


def delete(name: str = "x") -> Client:
    """A delete by ``_id``."""
    return Client(
        f"delete {name}",
        lambda w: {"delete": w.collection, "deletes": [{"q": {"_id": w.ids[name]}, "limit": 1}]},
        _judge_write,
    )


def delete_many() -> Client:
    """deleteMany of everything."""
    return Client(
        "dmany",
        lambda w: {"delete": w.collection, "deletes": [{"q": {"g": 1}, "limit": 0}]},
        _judge_many,
    )


def insert(name: str = "x") -> Client:
    """An insert of a document under this name's ``_id``."""

    def command(world: World) -> dict[str, Any]:
        document = {**world.document(name), "v": world.next_version()}
        return {"insert": world.collection, "documents": [document]}

    return Client(f"insert {name}", command, _judge_insert)


def insert_key(key: str) -> Client:
    """An insert of another document with the unique key of document ``key``."""

    def command(world: World) -> dict[str, Any]:
        document = {**world.document(key), "_id": f"{world.number}new{world.next_version()}"}
        return {"insert": world.collection, "documents": [{**document, "v": world.version}]}

    return Client(f"insertkey {key}", command, _judge_insert)


def take_key(name: str, key: str) -> Client:
    """An update of ``name`` to the unique key of document ``key``."""
    return Client(
        f"takekey {name}",
        lambda w: _update(w, {"_id": w.ids[name]}, {"$set": {"k": key, "v": w.next_version()}}),
        _judge_keyed,
    )


def find_and_update(name: str = "x") -> Client:
    """A findAndModify by ``_id``."""
    return Client(
        f"fam {name}",
        lambda w: {
            "findAndModify": w.collection,
            "query": {"_id": w.ids[name]},
            "update": {"$set": {"v": w.next_version()}},
        },
        _judge_find_and_modify,
    )


def find_and_remove(name: str = "x") -> Client:
    """A findAndModify that deletes."""
    return Client(
        f"famrm {name}",
        lambda w: {
            "findAndModify": w.collection,
            "query": {"_id": w.ids[name]},
            "remove": True,
        },
        _judge_find_and_modify,
    )


# Services


@dataclass
class QuietMembers:
    """F's members as ``$currentOp`` shows them between two steps: nothing runs, no cursor is open."""

    up: frozenset[str] = frozenset({"member:27017"})

    async def membership(self) -> Membership:
        return Membership(self.up, frozenset())

    async def cursors(self, member: str, namespace: str) -> frozenset[int]:
        return frozenset()

    async def running_writes(self, namespace: str) -> frozenset[int]:
        return frozenset()

    async def kill(self, namespace: str, cursors: Iterable[object]) -> None:
        return None


async def _no_measurement(coverage: Coverage, ids: list[DocId]) -> None:
    return None


async def evict(world: World, times: Times) -> None:
    """The evictor's turns, until it has evicted or there is nothing (more) to do."""
    scheduler = world.scheduler
    members = QuietMembers()
    tools = EvictorTools(
        world.tiers,
        members,  # type: ignore[arg-type]
        EvictorSettings(announce_seconds=times.announce, cursor_span=0.0, scan_pause=1e9),
        clock=scheduler.clock,
        now=lambda: NOW,
        sleep=asyncio.sleep,
    )
    eviction = Eviction(tools)
    eviction.announcing._next_oldest = float("inf")
    eviction._measure = _no_measurement  # type: ignore[method-assign]
    policy = EvictorPolicy(world.namespace, "t", EVICTED)
    lease, waited = times.lease, 0
    for _ in range(40):
        coverage = await coverage_store.read_one(world.tiers, world.namespace)
        if eviction.waits_for_leases:
            with no_pause():  # nobody publishes another one here
                lease = (await coverage_store.read_lease(world.tiers.archive)).wait_seconds
        orders = Orders(policy, EvictorMode.RUNNING, "Unlimited", lease)
        try:
            following = await eviction.turn(coverage, orders, await members.membership())
        except BarrierTimeout:
            following = Next.LATER
        ledger = eviction.report.ledger
        if ledger.deleted or (following is Next.LATER and not eviction._pending):
            return
        # The service looks five times a second; what can't end before then needn't be looked at.
        pause = 0.2
        waited = waited + 1 if eviction.report.state == Phase.LEASE.value else 0
        if eviction._pending:
            pause = min(p.due for p in eviction._pending.values()) - scheduler.now
        elif following is Next.AT_ONCE:
            continue
        elif waited > 1 and eviction._wait is not None:
            pause = eviction._wait.read_at + lease * 1.1 - scheduler.now
        await asyncio.sleep(max(pause, 0.2))


async def warm(world: World, times: Times) -> None:
    """A copy of every document into F, without a claim to coverage: what a promotion is, too."""
    coverage = await coverage_store.read_one(world.tiers, world.namespace)
    assert coverage is not None
    wanted = [DocId.of_document(bson.encode({"_id": i})) for i in world.ids.values()]
    await copy_ids(world.tiers, coverage, wanted, clock=world.scheduler.clock)


async def cover(world: World, times: Times) -> None:
    """The warmer under another policy than the evictor's: claim, barrier, copy, verify, publish."""
    scheduler = world.scheduler
    tools = WarmerTools(
        world.tiers,
        WarmerSettings(barrier_seconds=3_600.0),
        clock=scheduler.clock,
        now=lambda: NOW,
        sleep=asyncio.sleep,
    )
    warming = Warming(tools)
    policy = WarmerPolicy(world.namespace, "t", world.covered)
    for _ in range(3):
        coverage = await coverage_store.read_one(world.tiers, world.namespace)
        if not await warming.step(coverage, policy, "Unlimited") or not warming.report.lost:
            return


async def collect(world: World, times: Times) -> None:
    """Two scans of the removal records, five minutes apart, twice."""
    collector = Collector(
        tiers=world.tiers,
        settings=FeederSettings(),
        registry=world.registry,
        replay=world.replay,
        clock=world.scheduler.clock,
    )
    for _ in range(3):
        await collector.scan()
        await asyncio.sleep(301.0)


Work = Callable[[World, Times], Coroutine[Any, Any, None]]
SERVICES: Final[Mapping[str, Work]] = {
    "evict": evict,
    "warm": warm,
    "cover": cover,
    "collect": collect,
}
_ONE: Final[Mapping[str, Callable[[str], Client]]] = {
    "read": read,
    "update": update,
    "upsert": upsert,
    "delete": delete,
    "insert": insert,
    "fam": find_and_update,
    "famrm": find_and_remove,
    "insertkey": insert_key,
}
_ALL: Final[Mapping[str, Callable[[], Client]]] = {
    "ids": read_list,
    "scan": scan,
    "cscan": covered_scan,
    "any": update_any,
    "many": update_many,
    "dmany": delete_many,
}


def work_of(name: str) -> Work:
    """An actor by name: ``read``, ``update y``, ``set x 1``, ``takekey x y``, ``evict`` ..."""
    kind, *arguments = name.split()
    if kind in SERVICES:
        return SERVICES[kind]
    if kind in _ALL:
        return _ALL[kind]()
    if kind == "set":
        return set_value(arguments[0], int(arguments[1]))
    if kind == "takekey":
        return take_key(arguments[0], arguments[1])
    return _ONE[kind](arguments[0] if arguments else "x")


@dataclass(frozen=True)
class Mix:
    """Actors that run together, and where the documents are at the start."""

    actors: tuple[str, ...]
    starts: Mapping[str, str]
    floor: bool = False
    unique: bool = False
    age: dt.timedelta = AGE
    covered: dt.timedelta = COVERED
    times: Times = field(default_factory=Times)

    def names(self) -> list[str]:
        """The actors' names, each once."""
        seen: Counter[str] = Counter()
        shown = []
        for name in self.actors:
            seen[name] += 1
            shown.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
        return shown

    def __str__(self) -> str:
        starts = " ".join(f"{name}:{where}" for name, where in self.starts.items())
        return f"{', '.join(self.actors)} [{starts}{' floor' if self.floor else ''}]"

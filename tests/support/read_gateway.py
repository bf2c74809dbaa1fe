"""A gateway for handlers without the proxy's server: PyMongo carries the commands, tests hold the lease.

Everything that was sent is recorded, and a test can act right before or after any step.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.read_preferences import SecondaryPreferred

from thermocline_common import names
from thermocline_common.coverage import Coverage, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_common.removals import Kind
from thermocline_common.tiers import RAW, Tiers, raw_database
from thermocline_proxy.commands.command import Command
from thermocline_proxy.leased import leased
from thermocline_proxy.ports import Gateway, Identity, Reply, Request
from thermocline_proxy.reads.handler import answer
from thermocline_proxy.reads.lookups import Lookups
from thermocline_proxy.routing.snapshot import Snapshot, Tiering

Step = Callable[[], Awaitable[None]]


@dataclass
class Steps:
    """What a test does around steps, by name: ``fast find``, ``archive find``, ``in_fast``, ``records``...

    Each action runs once. ``log``: the steps in the order in which they began.
    """

    before: dict[str, Step] = field(default_factory=dict)
    after: dict[str, Step] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    async def enter(self, name: str) -> None:
        self.log.append(name)
        action = self.before.pop(name, None)
        if action is not None:
            await action()

    async def leave(self, name: str) -> None:
        action = self.after.pop(name, None)
        if action is not None:
            await action()


@dataclass
class PyMongoExchange:
    """An Exchange over two PyMongo clients. ``sent``: (tier, decoded command, to_primary).

    ``tags``: of the secondaries that reads go to, where they needn't go to the primary.
    """

    tiers: Tiers
    steps: Steps
    sent: list[tuple[Tier, Mapping[str, Any], bool]] = field(default_factory=list)
    tags: list[dict[str, str]] | None = None

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
        name = f"{tier.value} {command.name}"
        await self.steps.enter(name)
        if may_send is not None and not may_send():
            raise CommandError(Code.ExceededTimeLimit, "sent without a lease")
        fields = dict(RawBSONDocument(command.body, RAW))
        self.sent.append((tier, bson.decode(command.body), to_primary))
        database = fields.pop("$db")
        fields.pop("$readPreference", None)
        client = self.tiers.fast if tier is Tier.FAST else self.tiers.archive
        reply: RawBSONDocument = await raw_database(client, database).command(
            fields,
            check=False,
            codec_options=RAW,
            read_preference=ReadPreference.PRIMARY if to_primary else SecondaryPreferred(self.tags),
        )
        await self.steps.leave(name)
        return Reply(bytes(reply.raw), tier, "somewhere:27017", reply.get("operationTime"))


class SteppedLookups(Lookups):
    """Look-ups with a test's actions around them."""

    def __init__(self, tiers: Tiers, steps: Steps) -> None:
        super().__init__(tiers, time.monotonic)
        self._steps = steps

    async def in_fast(
        self, namespace: str, ids: Iterable[DocId], deadline: float | None
    ) -> frozenset[DocId]:
        await self._steps.enter("in_fast")
        found = await super().in_fast(namespace, ids, deadline)
        await self._steps.leave("in_fast")
        return found

    async def fast_has_key(self, namespace: str, key: bytes, deadline: float | None) -> bool:
        await self._steps.enter("fast_has_key")
        found = await super().fast_has_key(namespace, key, deadline)
        await self._steps.leave("fast_has_key")
        return found

    async def records(self, namespace: str, ids: Iterable[DocId], deadline: float | None) -> Any:
        await self._steps.enter("records")
        found = await super().records(namespace, ids, deadline)
        await self._steps.leave("records")
        return found

    async def archive_ids(
        self, coverage: Coverage, key: bytes, deadline: float | None
    ) -> list[DocId]:
        await self._steps.enter("archive_ids")
        found = await super().archive_ids(coverage, key, deadline)
        await self._steps.leave("archive_ids")
        return found


@dataclass
class HeldLeases:
    """Leases that a test ends: ``end()`` makes the present snapshot's lease over."""

    snapshot: Snapshot
    ended: set[int] = field(default_factory=set)
    waited: int = 0

    def end(self) -> None:
        self.ended.add(id(self.snapshot))
        self.snapshot = replace(self.snapshot)

    async def current(self, deadline: float | None = None) -> Snapshot:
        return self.snapshot

    async def untiered(self, deadline: float | None = None) -> Snapshot:
        return self.snapshot

    def alive(self, snapshot: Snapshot) -> bool:
        return id(snapshot) not in self.ended

    async def wait_for_change(self, snapshot: Snapshot, deadline: float | None) -> Snapshot:
        self.waited += 1
        if self.snapshot is snapshot:
            raise CommandError(Code.ExceededTimeLimit, "nothing changed")
        return self.snapshot


@dataclass
class CountedBarrier:
    """A barrier that a test opens by hand: ``replay`` stands for the feeder. ``passes`` counts."""

    tiers: Tiers
    replay: Step | None = None
    passes: int = 0

    async def passed(
        self,
        deadline: float | None,
        *,
        patience: float | None = None,
        whole: Collection[str] = (),
    ) -> Timestamp:
        self.passes += 1
        if self.replay is not None:
            await self.replay()
        reply = await self.tiers.archive.admin.command("ping")
        time: Timestamp = reply["operationTime"]
        return time


class ReadBench:
    """One tiered namespace on two real tiers, and the read handler on top."""

    def __init__(self, tiers: Tiers, coverage: Coverage, **options: Any) -> None:
        self.tiers = tiers
        self.namespace = coverage.namespace
        self.steps = Steps()
        self.exchange = PyMongoExchange(tiers, self.steps)
        self.leases = HeldLeases(
            Snapshot(
                expires=1e18,
                untiered_expires=1e18,
                tierings={coverage.namespace: Tiering(coverage, **options)},
                listed=frozenset({coverage.namespace}),
            )
        )
        self.barrier = CountedBarrier(tiers)
        self.reasons: list[str] = []
        self.deadline: float | None = None
        self.started_with: Snapshot | None = None
        self.gateway = Gateway(
            exchange=self.exchange,
            leases=self.leases,
            barrier=self.barrier,
            tiers=tiers,
            clock=time.monotonic,
            proxy_id=uuid.uuid4(),
            count=lambda reason, _: self.reasons.append(reason),
        )

    async def run(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The decoded reply to a command, an error as ``{"ok": 0, "code": ..}``."""
        database = self.namespace.split(".")[0]
        command = Command(bson.encode({**fields, "$db": database}))
        request = Request(command, None, 1, self.deadline)
        lookups = SteppedLookups(self.tiers, self.steps)
        try:
            snapshot = self.started_with or self.leases.snapshot
            gateway = leased(self.gateway, snapshot, self.deadline)
            reply = await answer(request, gateway, snapshot, lookups)
        except CommandError as error:
            return {"ok": 0, "code": error.code, "errmsg": error.message}
        return bson.decode(reply.raw)

    async def find(self, query: Mapping[str, Any], **fields: Any) -> list[Any]:
        """The ids in the first batch of a find."""
        reply = await self.run({"find": self.namespace.split(".")[1], "filter": query, **fields})
        assert reply["ok"], reply
        return [document["_id"] for document in reply["cursor"]["firstBatch"]]

    def asked(self) -> list[str]:
        """The tiers that client commands were sent to, in order."""
        return [tier.value for tier, _, _ in self.exchange.sent]

    async def put(self, tier: Tier, *documents: Mapping[str, Any]) -> None:
        """Documents into one tier, over what is there."""
        database, name = self.namespace.split(".")
        client = self.tiers.fast if tier is Tier.FAST else self.tiers.archive
        for document in documents:
            await client[database][name].replace_one(
                {"_id": document["_id"]}, document, upsert=True
            )

    async def both(self, *documents: Mapping[str, Any]) -> None:
        """Documents into both tiers."""
        await self.put(Tier.FAST, *documents)
        await self.put(Tier.ARCHIVE, *documents)

    async def record(self, doc_id: Any, kind: Kind) -> None:
        """A removal record."""
        key = {"ns": self.namespace, "id": doc_id}
        await self.tiers.fast[names.DATABASE][names.REMOVED].replace_one(
            {"_id": key}, {"kind": kind.value, "token": uuid.uuid4()}, upsert=True
        )

    async def evict(self, doc_id: Any) -> None:
        """As the evictor does in the end: gone from F, with an ``evicted`` record."""
        await self.record(doc_id, Kind.EVICTED)
        await self._remove(doc_id)

    async def delete(self, doc_id: Any) -> None:
        """As a client's delete: the record, then F's copy. A isn't told."""
        await self.record(doc_id, Kind.DELETED)
        await self._remove(doc_id)

    async def promote(self, doc_id: Any) -> None:
        """A's copy into F, and no ``leaving`` record."""
        database, name = self.namespace.split(".")
        document = await self.tiers.archive[database][name].find_one({"_id": doc_id})
        assert document is not None
        await self.put(Tier.FAST, document)

    async def _remove(self, doc_id: Any) -> None:
        database, name = self.namespace.split(".")
        await self.tiers.fast[database][name].delete_one({"_id": doc_id})

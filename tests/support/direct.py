"""Driving the proxy's handlers without a proxy: commands go straight to mongods, leases are the test's own."""

import asyncio
import struct
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import bson
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient

from support.mongod import ReplicaSet
from thermocline_common import names
from thermocline_common.coverage import Coverage, State, Tier, UniqueIndex
from thermocline_common.errors import Code, CommandError
from thermocline_common.tiers import RAW, Tiers
from thermocline_proxy.commands.command import Command
from thermocline_proxy.ports import Gateway, Identity, Reply, Request
from thermocline_proxy.routing.snapshot import Snapshot, Tiering

PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True, uuid_representation=UuidRepresentation.STANDARD
)
VOLATILE = ("$clusterTime", "operationTime", "electionId", "opTime")


def strip(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A reply without what differs from run to run."""
    return {name: value for name, value in reply.items() if name not in VOLATILE}


class DirectExchange:
    """Commands as OP_MSG to a tier's first member, one connection at a time; without logins.

    ``before``: awaited with (tier, decoded command) ahead of every send, for pause points.
    ``lose_reply``: for each send, whether its reply is thrown away as if the connection broke.
    """

    def __init__(self, members: Mapping[Tier, int]) -> None:
        self.ports = members
        self.sent: list[tuple[Tier, dict[str, Any]]] = []
        self.before: Callable[[Tier, dict[str, Any]], Awaitable[None]] | None = None
        self.lose_reply: Callable[[Tier, dict[str, Any]], bool] | None = None
        self._idle: dict[Tier, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def run(
        self,
        tier: Tier,
        identity: Identity | None,
        command: Command,
        *,
        to_primary: bool = True,
        member: str | None = None,
        after: Timestamp | None = None,
    ) -> Reply:
        """As of ``ports.Exchange``."""
        decoded = decode(command)
        if self.before is not None:
            await self.before(tier, decoded)
        self.sent.append((tier, decoded))
        raw = await self._round_trip(tier, command)
        if self.lose_reply is not None and self.lose_reply(tier, decoded):
            labels = ("RetryableWriteError",) if "txnNumber" in command.fields else ()
            raise CommandError(Code.HostUnreachable, "connection closed", labels=labels)
        return Reply(raw, tier, f"127.0.0.1:{self.ports[tier]}")

    async def _round_trip(self, tier: Tier, command: Command) -> bytes:
        idle = self._idle.setdefault(tier, [])
        reader, writer = (
            idle.pop() if idle else await asyncio.open_connection("127.0.0.1", self.ports[tier])
        )
        sections = b"\0" + command.body
        for name, documents in command.sequences.items():
            content = name.encode() + b"\0" + b"".join(documents)
            sections += b"\1" + struct.pack("<i", len(content) + 4) + content
        payload = struct.pack("<I", 0) + sections
        writer.write(struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload)
        header = await reader.readexactly(16)
        body = await reader.readexactly(struct.unpack("<i", header[:4])[0] - 16)
        idle.append((reader, writer))
        return body[5:]

    async def close(self) -> None:
        """Close every connection."""
        for idle in self._idle.values():
            for _, writer in idle:
                writer.close()
                await writer.wait_closed()


def decode(command: Command) -> dict[str, Any]:
    """A command with its document sequences in the body."""
    body: dict[str, Any] = bson.decode(command.body, codec_options=PLAIN)
    for name, documents in command.sequences.items():
        body[name] = [bson.decode(d, codec_options=PLAIN) for d in documents]
    return body


@dataclass
class ManualLeases:
    """Leases whose snapshot the test sets; ``on_wait`` is what happens while somebody waits."""

    snapshot: Snapshot
    running: bool = True
    on_wait: Callable[[], Awaitable[None]] | None = None
    asked: int = 0

    async def current(self, deadline: float | None = None) -> Snapshot:
        self.asked += 1
        self.running = True
        return self.snapshot

    async def untiered(self, deadline: float | None = None) -> Snapshot:
        return self.snapshot

    def alive(self, snapshot: Snapshot) -> bool:
        return self.running and snapshot is self.snapshot

    async def wait_for_change(self, snapshot: Snapshot, deadline: float | None) -> Snapshot:
        if self.snapshot is snapshot:
            if self.on_wait is None:
                raise CommandError(Code.ExceededTimeLimit, "the namespace is pausing")
            await self.on_wait()
        return self.snapshot


@dataclass
class ReplayBarrier:
    """Replays F into A by itself whenever somebody wants to pass: a feeder that is never behind."""

    world: "DirectWorld"
    passed_count: int = 0
    patience: list[float | None] = field(default_factory=list)
    """What each caller had of it."""

    async def passed(
        self,
        deadline: float | None,
        *,
        patience: float | None = None,
        whole: Collection[str] = (),
    ) -> Timestamp:
        self.passed_count += 1
        self.patience.append(patience)
        await self.world.replay()
        reply = await self.world.tiers.archive.admin.command("ping")
        time: Timestamp = reply["operationTime"]
        return time


@dataclass
class DirectWorld:
    """One tiered namespace on two mongods, with a gateway to write through."""

    tiers: Tiers
    exchange: DirectExchange
    coverage: Coverage
    leases: ManualLeases
    gateway: Gateway
    counted: list[tuple[str, str]] = field(default_factory=list)
    feeding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever writes to A: a replay that was overtaken would write an old version."""

    @property
    def namespace(self) -> str:
        return self.coverage.namespace

    @property
    def fast(self) -> Any:
        database, collection = self.namespace.split(".", 1)
        return self.tiers.fast[database][collection]

    @property
    def archive(self) -> Any:
        database, collection = self.namespace.split(".", 1)
        return self.tiers.archive[database][collection]

    @property
    def removed(self) -> Any:
        return self.tiers.fast[names.DATABASE][names.REMOVED]

    def set_coverage(self, **changes: Any) -> None:
        """Publish a changed coverage document."""
        self.coverage = replace(self.coverage, **changes)
        old = self.leases.snapshot
        tierings = {**old.tierings, self.namespace: Tiering(self.coverage)}
        self.leases.snapshot = replace(old, tierings=tierings)

    async def place(self, document: dict[str, Any], *where: str) -> None:
        """Put a document: ``fast``, ``archive``, and records ``leaving``, ``deleted``, ``evicted``."""
        for place in where:
            if place == "fast":
                await self.fast.insert_one(dict(document))
            elif place == "archive":
                await self.archive.insert_one(dict(document))
            else:
                await self.record(document["_id"], place)

    async def record(self, doc_id: Any, kind: str) -> None:
        """Write a removal record."""
        key = bson.SON([("ns", self.namespace), ("id", doc_id)])
        await self.removed.replace_one(
            {"_id": key},
            {"_id": key, "kind": kind, "token": Binary.from_uuid(uuid.uuid4())},
            upsert=True,
        )

    async def kind_of(self, doc_id: Any) -> str | None:
        """The kind of a document's removal record."""
        key = bson.SON([("ns", self.namespace), ("id", doc_id)])
        found = await self.removed.find_one({"_id": key})
        return None if found is None else str(found["kind"])

    async def evict(self, doc_id: Any) -> None:
        """What the evictor's transaction does, at once: the document leaves F."""
        await self.replay()
        await self.fast.delete_one({"_id": doc_id})
        await self.record(doc_id, "evicted")

    async def replay(self) -> None:
        """What the feeder does: A gets F's documents, and loses those with a ``deleted`` record."""
        async with self.feeding:
            await self._replay()

    async def _replay(self) -> None:
        async for record in self.removed.find({"_id.ns": self.namespace, "kind": "deleted"}):
            doc_id = record["_id"]["id"]
            if await self.fast.find_one({"_id": {"$eq": doc_id}}, {"_id": 1}) is None:
                await self.archive.delete_one({"_id": {"$eq": doc_id}})
        archive = self.archive.with_options(codec_options=RAW)
        async for document in self.fast.with_options(codec_options=RAW).find():
            await archive.replace_one({"_id": document["_id"]}, document, upsert=True)

    async def truth(self) -> list[dict[str, Any]]:
        """Every document that exists, by the authority rule, in the order of ``_id``."""
        found = {repr(d["_id"]): d async for d in self.archive.find()}
        async for record in self.removed.find({"kind": {"$in": ["deleted", "expired"]}}):
            found.pop(repr(record["_id"]["id"]), None)
        async for document in self.fast.find():
            found[repr(document["_id"])] = document
        return sorted(found.values(), key=lambda d: (str(type(d["_id"])), repr(d["_id"])))

    async def run(
        self,
        command: Mapping[str, Any],
        handle: Callable[[Request, Gateway, Snapshot], Awaitable[Reply]],
        *,
        sequences: Mapping[str, list[dict[str, Any]]] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Answer one command as the proxy would; errors come back as replies."""
        database = self.namespace.split(".", 1)[0]
        body = bson.encode({**command, "$db": database}, codec_options=PLAIN)
        raw = {
            n: [bson.encode(d, codec_options=PLAIN) for d in ds]
            for n, ds in (sequences or {}).items()
        }
        deadline = None if seconds is None else self.gateway.clock() + seconds
        request = Request(Command(body, raw), None, 1, deadline)
        try:
            reply = await handle(request, self.gateway, self.leases.snapshot)
        except CommandError as error:
            failed: dict[str, Any] = {
                "ok": 0.0,
                "errmsg": error.message,
                "code": error.code,
                "codeName": error.code_name,
            }
            return {**failed, "errorLabels": list(error.labels)} if error.labels else failed
        decoded: dict[str, Any] = bson.decode(reply.raw, codec_options=PLAIN)
        return strip(decoded)


async def collection_uuid(client: AsyncMongoClient[dict[str, Any]], namespace: str) -> uuid.UUID:
    """A collection's UUID."""
    database, collection = namespace.split(".", 1)
    infos = [i async for i in await client[database].list_collections(filter={"name": collection})]
    found: Any = infos[0]["info"]["uuid"]
    return found if isinstance(found, uuid.UUID) else uuid.UUID(bytes=bytes(found))


async def open_world(
    fast: ReplicaSet,
    archive: ReplicaSet,
    namespace: str = "shop.orders",
    *,
    unique: tuple[UniqueIndex, ...] = (),
    age_field: str = "t",
) -> DirectWorld:
    """An active namespace, empty in both tiers, with the unique indexes built. Close it afterwards."""
    tiers = Tiers(fast.async_client(), archive.async_client())
    database, collection = namespace.split(".", 1)
    for client in (tiers.fast, tiers.archive):
        await client[database].create_collection(collection)
        for index in unique:
            await client[database][collection].create_index(
                [(path, 1) for path in index.paths], name=index.name, unique=True
            )
    time = (await tiers.archive.admin.command("ping"))["operationTime"]
    coverage = Coverage(
        namespace,
        State.ACTIVE,
        State.ACTIVE,
        age_field=age_field,
        fast_uuid=await collection_uuid(tiers.fast, namespace),
        archive_uuid=await collection_uuid(tiers.archive, namespace),
        archive_time=time,
        epoch=uuid.uuid4(),
        unique=unique,
    )
    exchange = DirectExchange(
        {Tier.FAST: fast.members[0].port, Tier.ARCHIVE: archive.members[0].port}
    )
    leases = ManualLeases(Snapshot(0, 0, {namespace: Tiering(coverage)}, frozenset({namespace})))
    counted: list[tuple[str, str]] = []
    gateway = Gateway(
        exchange=exchange,
        leases=leases,
        barrier=None,  # type: ignore[arg-type]  # set below: it needs the world
        tiers=tiers,
        clock=asyncio.get_running_loop().time,
        proxy_id=uuid.uuid4(),
        count=lambda tier, reason: counted.append((str(tier), reason)),
    )
    world = DirectWorld(tiers, exchange, coverage, leases, gateway, counted)
    gateway.barrier = ReplayBarrier(world)
    return world


async def close_world(world: DirectWorld) -> None:
    """Close every connection."""
    await world.exchange.close()
    await world.tiers.fast.close()
    await world.tiers.archive.close()


def raw(document: Mapping[str, Any]) -> RawBSONDocument:
    """A document as raw BSON."""
    return RawBSONDocument(bson.encode(document))

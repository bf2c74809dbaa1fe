"""Reads between whose steps anything happens that the protocol allows: every answer was once true.

A seeded world moves documents between the two real tiers (promotions, evictions, deletes, replay,
record removal) whenever the reader takes a step. The answer must be that of some moment between
the read's beginning and its end.
"""

import datetime as dt
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import bson
import pytest

from support.mongod import ReplicaSet
from support.read_gateway import ReadBench, Steps
from thermocline_common import names
from thermocline_common.coverage import Coverage, State, Tier, UniqueIndex
from thermocline_common.removals import Kind
from thermocline_common.tiers import Tiers

pytestmark = pytest.mark.integration

FLOOR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
AGES = [
    FLOOR - dt.timedelta(days=5),
    FLOOR - dt.timedelta(days=4),
    FLOOR + dt.timedelta(days=5),
    None,
]
IDS = range(4)
EMAILS = "abcde"
READS = 400

Document = dict[str, Any]
Step = Callable[[int], Awaitable[None]]


class World:
    """The truth, and where the protocol has put it. ``began``: number of the read under way."""

    def __init__(self, bench: ReadBench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.truth: dict[int, Document] = {}
        self.fast: dict[int, Document] = {}
        self.archive: dict[int, Document] = {}
        self.records: dict[int, tuple[Kind, int]] = {}
        self.read = 0
        self.history: list[dict[int, Document]] = []

    async def act(self) -> None:
        """One thing that may happen now, if it can."""
        steps: list[Step] = [
            self.insert, self.update, self.update, self.announce_delete, self.delete, self.promote,
            self.announce, self.announce, self.evict, self.evict, self.evict, self.replay, self.clean,
        ]  # fmt: skip
        await self.random.choice(steps)(self.random.choice(IDS))
        self.history.append(dict(self.truth))

    def drawn(self, doc_id: int) -> Document:
        free = [
            e for e in EMAILS if e not in {d["email"] for i, d in self.truth.items() if i != doc_id}
        ]
        return {
            "_id": doc_id, "email": self.random.choice(free), "v": self.random.randint(0, 1),
            "t": self.random.choice(AGES),
        }  # fmt: skip

    async def record(self, doc_id: int, kind: Kind | None) -> None:
        if kind is None:
            self.records.pop(doc_id, None)
            key = {"ns": self.bench.namespace, "id": doc_id}
            await self.bench.tiers.fast[names.DATABASE][names.REMOVED].delete_one({"_id": key})
            return
        self.records[doc_id] = (kind, self.read)
        await self.bench.record(doc_id, kind)

    def kind(self, doc_id: int) -> Kind | None:
        found = self.records.get(doc_id)
        return None if found is None else found[0]

    def settled(self, doc_id: int) -> bool:
        """Whether the record is older than the read under way: minutes have passed."""
        found = self.records.get(doc_id)
        return found is not None and found[1] < self.read

    async def put(self, document: Document) -> None:
        self.fast[document["_id"]] = document
        await self.bench.put(Tier.FAST, document)

    async def insert(self, doc_id: int) -> None:
        if doc_id not in self.truth:
            self.truth[doc_id] = self.drawn(doc_id)
            await self.put(self.truth[doc_id])

    async def update(self, doc_id: int) -> None:
        if doc_id in self.truth:
            await self.promote(doc_id)
            self.truth[doc_id] = self.drawn(doc_id)
            await self.put(self.truth[doc_id])

    async def promote(self, doc_id: int) -> None:
        if doc_id not in self.truth:
            return
        if doc_id not in self.fast:
            await self.put(self.archive[doc_id])
        if self.kind(doc_id) is Kind.LEAVING:
            await self.record(doc_id, None)

    async def announce_delete(self, doc_id: int) -> None:
        if doc_id in self.truth:
            await self.promote(doc_id)
            await self.record(doc_id, Kind.DELETED)

    async def delete(self, doc_id: int) -> None:
        if doc_id in self.truth:
            await self.announce_delete(doc_id)
            await self.bench._remove(doc_id)
            del self.fast[doc_id], self.truth[doc_id]

    async def announce(self, doc_id: int) -> None:
        document = self.fast.get(doc_id)
        old = document is not None and document["t"] is not None and document["t"] < FLOOR
        if old and self.kind(doc_id) in (None, Kind.EVICTED):
            await self.record(doc_id, Kind.LEAVING)

    async def evict(self, doc_id: int) -> None:
        document = self.fast.get(doc_id)
        confirmed = document is not None and self.archive.get(doc_id) == document
        old = document is not None and document["t"] is not None and document["t"] < FLOOR
        if confirmed and old and self.kind(doc_id) is Kind.LEAVING and self.settled(doc_id):
            await self.bench.evict(doc_id)
            self.records[doc_id] = (Kind.EVICTED, self.read)
            del self.fast[doc_id]

    async def replay(self, _: int) -> None:
        for doc_id in IDS:
            if doc_id in self.fast:
                self.archive[doc_id] = self.fast[doc_id]
                await self.bench.put(Tier.ARCHIVE, self.fast[doc_id])
            elif self.kind(doc_id) is Kind.DELETED and doc_id in self.archive:
                del self.archive[doc_id]
                await self.bench.tiers.archive.shop.orders.delete_one({"_id": doc_id})

    async def clean(self, doc_id: int) -> None:
        if not self.settled(doc_id):
            return
        if self.kind(doc_id) is Kind.DELETED and doc_id in self.archive and doc_id not in self.fast:
            return
        await self.record(doc_id, None)


class Disturbed(Steps):
    """Steps between which the world moves on."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    async def enter(self, name: str) -> None:
        self.log.append(name)
        for _ in range(self.world.random.choice([0, 0, 1, 2, 3])):
            await self.world.act()

    async def leave(self, name: str) -> None:
        for _ in range(self.world.random.choice([0, 0, 0, 1])):
            await self.world.act()


Predicate = Callable[[Document], bool]


def query(source: random.Random) -> tuple[str, dict[str, Any], Predicate]:
    """(kind of read, filter, the same as a predicate)."""
    doc_id, email, v = source.choice(IDS), source.choice(EMAILS), source.randint(0, 1)
    some = source.sample(list(IDS), 2)
    reads: list[tuple[str, dict[str, Any], Predicate]] = [
        ("find", {"_id": doc_id}, lambda d: d["_id"] == doc_id),
        ("find", {"_id": doc_id, "v": v}, lambda d: d["_id"] == doc_id and d["v"] == v),
        ("find", {"email": email}, lambda d: d["email"] == email),
        ("find", {"email": email, "v": v}, lambda d: d["email"] == email and d["v"] == v),
        ("find", {"_id": {"$in": some}}, lambda d: d["_id"] in some),
        ("find", {"_id": {"$in": some}, "v": v}, lambda d: d["_id"] in some and d["v"] == v),
        ("find", {"t": {"$gte": FLOOR}}, lambda d: d["t"] is not None and d["t"] >= FLOOR),
        ("find", {"t": None}, lambda d: d["t"] is None),
        ("find", {"v": v}, lambda d: d["v"] == v),
        ("count", {"_id": doc_id, "v": v}, lambda d: d["_id"] == doc_id and d["v"] == v),
        ("count", {"_id": {"$in": some}}, lambda d: d["_id"] in some),
        ("any", {"v": v}, lambda d: d["v"] == v),
        ("newest", {"v": v}, lambda d: d["v"] == v),
    ]
    return source.choice(reads)


def order(document: Document) -> Any:
    return (document["t"] is not None, document["t"] or FLOOR), -document["_id"]


@pytest.fixture
async def bench(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[ReadBench]:
    async with fast.async_client() as hot, archive.async_client() as cold:
        times = [(await client.admin.command("ping"))["operationTime"] for client in (hot, cold)]
        coverage = Coverage(
            "shop.orders", State.ACTIVE, State.ACTIVE, age_field="t", floor=FLOOR,
            published_at=times[0], archive_time=times[1],
            unique=(UniqueIndex("email", ("email",), plain=True),),
        )  # fmt: skip
        yield ReadBench(Tiers(hot, cold), coverage)


@pytest.mark.parametrize("seed", range(3))
async def test_every_answer_was_true_at_some_moment(bench: ReadBench, seed: int) -> None:
    world = World(bench, seed)
    bench.steps = bench.exchange.steps = Disturbed(world)
    bench.barrier.replay = lambda: world.replay(0)
    for _ in range(30):
        await world.act()
    for world.read in range(1, READS):
        kind, wanted, matches = query(world.random)
        for _ in range(world.random.randint(0, 3)):
            await world.act()
        world.history = [dict(world.truth)]
        bench.steps.log.clear()
        possible = [[d for d in past.values() if matches(d)] for past in world.history]
        if kind == "count":
            reply = await bench.run({"count": "orders", "query": wanted})
            answer: Any = reply["n"]
            possible = [[d for d in past.values() if matches(d)] for past in world.history]
            assert answer in [len(found) for found in possible], (wanted, bench.steps.log)
            continue
        fields: dict[str, Any] = {"find": "orders", "filter": wanted}
        if kind == "any":
            fields["limit"] = 1
        if kind == "newest":
            fields |= {"sort": {"t": -1, "_id": 1}, "limit": 2}
        reply = await bench.run(fields)
        assert reply["ok"], reply
        got = [bson.encode(d) for d in reply["cursor"]["firstBatch"]]
        possible = [[d for d in past.values() if matches(d)] for past in world.history]
        if kind == "any":
            true = [[bson.encode(d)] for found in possible for d in found]
            assert got in true or (got == [] and [] in possible), (wanted, bench.steps.log)
            continue
        if kind == "newest":
            lists = [sorted(found, key=order, reverse=True)[:2] for found in possible]
            assert got in [[bson.encode(d) for d in found] for found in lists], bench.steps.log
            continue
        sets = [sorted(bson.encode(d) for d in found) for found in possible]
        assert sorted(got) in sets, (wanted, bench.steps.log, reply, world.history)
    assert {"fast-miss", "point-id", "point-unique", "id-list", "covered"} <= set(bench.reasons)

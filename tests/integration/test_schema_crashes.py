"""Case M30: a proxy or a feeder dies at any step of a command on A alone; the namespaces go on by themselves."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from bson.binary import Binary

from support.feeders import QUICK, Feeder, following, write_manifest
from support.mongod import ReplicaSet
from support.services import Manifest
from thermocline_common import names, schema_requests
from thermocline_common.coverage import Coverage, State
from thermocline_common.coverage_store import read_all
from thermocline_common.manifest import ManifestFollower
from thermocline_common.tiers import Tiers
from thermocline_feeder.catalog import find_collection
from thermocline_feeder.counterparts import Counterparts

pytestmark = pytest.mark.integration
ORDERS, OTHERS = "shop.orders", "shop.others"
POLICIES = [{"namespace": n, "ageField": "t", "maxAge": "30d"} for n in (ORDERS, OTHERS)]
SETTINGS = replace(
    QUICK,
    heartbeat_interval=0.2,
    takeover_after=0.6,
    state_poll=0.1,
    move_retry=0.2,
    request_rest=0.2,
    record_age=300.0,
)
WITHDRAWAL = ("replay", "publish", "drop", "grant")
ACTIVATION = ("drop", "create", "publish")


@dataclass(frozen=True)
class Case:
    """A command, as a proxy runs it: the namespaces that it asks for, what it does in A, and what is there afterwards.

    ``before``, ``after``: the steps at which a feeder dies, ahead of the command and behind it.
    """

    namespaces: tuple[str, ...]
    run: Callable[[Any], Awaitable[Any]]
    left: dict[str, set[Any]]
    before: tuple[str, ...] = ("publish", "grant")
    after: tuple[str, ...] = ("create",)


FIRST, SECOND = {f"a{i}" for i in range(20)}, {f"b{i}" for i in range(20)}
CASES = {
    "drop": Case(
        (ORDERS,),
        lambda a: a.shop.command({"drop": "orders"}),
        {ORDERS: set(), OTHERS: SECOND},
        WITHDRAWAL,
        ACTIVATION,
    ),
    "renameCollection": Case(
        (ORDERS, OTHERS),
        lambda a: a.admin.command({"renameCollection": ORDERS, "to": OTHERS, "dropTarget": True}),
        {ORDERS: set(), OTHERS: FIRST},
    ),
    "dropDatabase": Case(
        (ORDERS, OTHERS),
        lambda a: a.shop.command({"dropDatabase": 1}),
        {ORDERS: set(), OTHERS: set()},
        ("replay", "drop"),
        ("publish",),
    ),
    "createIndexes": Case(
        (ORDERS,),
        lambda a: a.shop.command(
            {"createIndexes": "orders", "indexes": [{"key": {"u": 1}, "name": "u", "unique": True}]}
        ),
        {ORDERS: FIRST, OTHERS: SECOND},
        ("drop",),
        ("create",),
    ),
}


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        for name, ids in (("orders", FIRST), ("others", SECOND)):
            await a["shop"][name].create_index("t")
            await a["shop"][name].insert_many([{"_id": i, "u": i} for i in sorted(ids)])
        yield Tiers(f, a)


@pytest.fixture
def manifest(tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet) -> Manifest:
    return write_manifest(tmp_path, fast, archive, POLICIES)


@pytest.fixture
async def follower(manifest: Manifest) -> AsyncIterator[ManifestFollower]:
    async with following(manifest) as found:
        yield found


class Line:
    """Feeders, one after the other: each dies at the step that it is told, and the next one takes over."""

    def __init__(self, tiers: Tiers, follower: ManifestFollower) -> None:
        self.tiers = tiers
        self.follower = follower
        self.at: str | None = None
        self.reached = asyncio.Event()
        self.settings = SETTINGS
        self.feeder = self._next()

    def _next(self) -> Feeder:
        self.reached.clear()
        made = Feeder(self.tiers, self.follower, settings=self.settings, pause=self.pause)
        made.start()
        return made

    async def pause(self, step: str) -> None:
        if step == self.at:
            self.reached.set()
            await asyncio.Event().wait()

    async def dies_at(self, step: str) -> None:
        """Let the present one reach the step, and end it there as kill -9 would."""
        await self.feeder.until(self.reached.is_set)
        self.at = None
        await self.feeder.crash()

    async def replaced(self, at: str | None) -> None:
        self.at = at
        self.feeder = self._next()

    async def states(self, state: State, namespaces: tuple[str, ...]) -> dict[str, Coverage]:
        async def there() -> bool:
            found = await read_all(self.tiers)
            return all(n in found and found[n].state is state for n in namespaces)

        await self.feeder.until(there)
        return await read_all(self.tiers)


async def ids(client: Any, namespace: str) -> set[Any]:
    database, collection = namespace.split(".", 1)
    return {d["_id"] async for d in client[database][collection].find({}, {"_id": 1})}


async def settled(line: Line, case: Case) -> None:
    """Active by itself, empty of requests and old records, and as the command left it; replay works."""
    tiers = line.tiers
    for namespace in case.left:
        # What a drop leaves has no index on the age field until the application has made one.
        await tiers.archive["shop"][namespace.split(".")[1]].create_index("t")
    coverages = await line.states(State.ACTIVE, (ORDERS, OTHERS))
    for namespace, left in case.left.items():
        coverage = coverages[namespace]
        assert coverage.requests == ()
        found = await find_collection(tiers.fast, namespace)
        assert (None if found is None else found.uuid) == coverage.fast_uuid
        assert await ids(tiers.archive, namespace) == left
        name = namespace.split(".")[1]
        await tiers.fast["shop"][name].insert_one({"_id": "new", "u": "new"})
        await line.feeder.replayed()
        assert await ids(tiers.archive, namespace) == {*left, "new"}
    assert await tiers.fast[names.DATABASE][names.REMOVED].find_one({"kind": "deleted"}) is None


async def old_record(tiers: Tiers, namespace: str) -> None:
    """One that would hide a new document, if a crash left it."""
    record = {
        "_id": {"ns": namespace, "id": "new"},
        "kind": "deleted",
        "token": Binary.from_uuid(uuid.uuid4()),
    }
    await tiers.fast[names.DATABASE][names.REMOVED].insert_one(record)


@pytest.mark.parametrize("name", CASES)
async def test_m30_feeders_that_die_at_each_step_of_a_command_and_its_proxy_with_them(
    tiers: Tiers, follower: ManifestFollower, name: str
) -> None:
    case = CASES[name]
    line = Line(tiers, follower)
    await line.states(State.ACTIVE, (ORDERS, OTHERS))
    for namespace in case.namespaces:
        await old_record(tiers, namespace)
    line.at = case.before[0]
    await schema_requests.ask(tiers, case.namespaces, uuid.uuid4(), name)
    for step, following_step in zip(case.before, [*case.before[1:], None], strict=True):
        await line.dies_at(step)
        await line.replaced(following_step)

    async def granted() -> bool:
        found = await schema_requests.read_namespaces(tiers, case.namespaces)
        return all(r.granted for c in found.values() for r in c.requests)

    await line.feeder.until(granted)
    await line.states(State.PASSTHROUGH, case.namespaces)
    await case.run(tiers.archive)
    # Now the proxy dies: nobody takes the request back.
    await line.feeder.stop()
    line.settings = replace(SETTINGS, request_age=0.5)
    for namespace in case.left:
        await tiers.archive["shop"][namespace.split(".")[1]].create_index("t")
    await line.replaced(case.after[0])
    for step, following_step in zip(case.after, [*case.after[1:], None], strict=True):
        await line.dies_at(step)
        await line.replaced(following_step)
    await settled(line, case)
    if name == "createIndexes":
        coverage = (await read_all(tiers))[ORDERS]
        assert [index.name for index in coverage.unique] == ["u"]
        assert (await tiers.fast["shop"]["orders"].index_information())["u"]["unique"]
    await line.feeder.stop()


@pytest.mark.parametrize("phase", ["asked", "granted"])
async def test_m30_a_proxy_that_dies_before_its_command_leaves_all_as_it_was(
    tiers: Tiers, follower: ManifestFollower, phase: str
) -> None:
    line = Line(tiers, follower)
    await line.states(State.ACTIVE, (ORDERS, OTHERS))
    await line.feeder.stop()
    line.settings = replace(SETTINGS, request_age=1.0 if phase == "asked" else 4.0)
    await line.replaced(None)
    await schema_requests.ask(tiers, (ORDERS, OTHERS), uuid.uuid4(), "drop")
    if phase == "granted":
        await line.states(State.PASSTHROUGH, (ORDERS, OTHERS))
        await tiers.archive["shop"]["orders"].insert_one({"_id": "between"})
    also = {"between"} if phase == "granted" else set()

    async def taken_back() -> bool:
        found = await read_all(tiers)
        return not any(coverage.requests for coverage in found.values())

    await line.feeder.until(taken_back)
    await settled(line, Case((), CASES["drop"].run, {ORDERS: FIRST | also, OTHERS: SECOND}))
    await line.feeder.stop()


@pytest.mark.parametrize("by_proxy", [True, False], ids=["create died halfway", "insert"])
async def test_m30_a_feeder_that_dies_while_a_collection_gets_its_counterpart(
    tiers: Tiers,
    follower: ManifestFollower,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    by_proxy: bool,
) -> None:
    """``create`` runs on A, then on F; where its proxy died in between, or an insert made the collection, the
    feeder brings the other tier's about, and may die before and after that."""
    namespace = "shop.fresh"
    manifest.change(collections=[{"namespace": namespace, "keep": "All"}])
    line = Line(tiers, follower)
    await line.states(State.ACTIVE, (namespace,))
    steps = iter(["_counterpart", "_publish_pair"])
    at: str | None = next(steps)

    def stopping(step: str) -> None:
        real = getattr(Counterparts, step)

        async def stops(self: Counterparts, *arguments: Any, **more: Any) -> Any:
            if at == step:
                line.reached.set()
                await asyncio.Event().wait()
            return await real(self, *arguments, **more)

        monkeypatch.setattr(Counterparts, step, stops)

    stopping("_counterpart")
    stopping("_publish_pair")
    if by_proxy:
        await tiers.archive["shop"].create_collection("fresh", validator={"u": {"$type": "int"}})
    await tiers.fast["shop"]["fresh"].insert_one({"_id": 1, "u": 1})
    for following_step in ("_publish_pair", None):
        await line.feeder.until(line.reached.is_set)
        await line.feeder.crash()
        at = following_step
        await line.replaced(None)
    await line.feeder.replayed()
    assert await ids(tiers.archive, namespace) == {1}
    there = await find_collection(tiers.archive, namespace)
    here = await find_collection(tiers.fast, namespace)
    assert here is not None
    assert there is not None

    async def published() -> bool:
        found = (await read_all(tiers))[namespace]
        return (found.fast_uuid, found.archive_uuid) == (here.uuid, there.uuid)

    await line.feeder.until(published)
    await line.feeder.stop()

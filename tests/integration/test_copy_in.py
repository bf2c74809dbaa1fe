"""Copying into the fast tier on real mongods, with the interleavings that it must survive."""

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import bson
import pytest
from bson import SON, DBRef, Int64, Timestamp
from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient

from support.mongod import ReplicaSet
from thermocline_common import names
from thermocline_common.copy_in import ATTEMPTS, CollectionChanged, StillChanging, keep
from thermocline_common.coverage import Coverage, State
from thermocline_common.ids import DocId, wrap
from thermocline_common.raw_reads import find_by_ids
from thermocline_common.reserved import reserved_sessions
from thermocline_common.sessions import is_reserved
from thermocline_common.tiers import Tiers, raw_database

pytestmark = pytest.mark.integration
NS = "shop.orders"


class World:
    def __init__(self, tiers: Tiers, coverage: Coverage) -> None:
        self.tiers = tiers
        self.coverage = coverage
        self.fast = tiers.fast["shop"]["orders"]
        self.archive = tiers.archive["shop"]["orders"]
        self.removed = tiers.fast[names.DATABASE][names.REMOVED]

    async def record(self, doc_id: Any, kind: str) -> None:
        key = SON([("ns", NS), ("id", doc_id)])
        token = Binary.from_uuid(uuid.uuid4())
        await self.removed.replace_one(
            {"_id": key}, {"_id": key, "kind": kind, "token": token}, upsert=True
        )


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[World]:
    fast_client: AsyncMongoClient[dict[str, Any]] = fast.async_client()
    archive_client: AsyncMongoClient[dict[str, Any]] = archive.async_client()
    tiers = Tiers(fast_client, archive_client)
    uuids = []
    for client in (fast_client, archive_client):
        await client["shop"].create_collection("orders")
        infos = [i async for i in await client["shop"].list_collections(filter={"name": "orders"})]
        found = infos[0]["info"]["uuid"]
        uuids.append(found if isinstance(found, uuid.UUID) else found.as_uuid())
    time = (await archive_client.admin.command("ping"))["operationTime"]
    coverage = Coverage(
        NS,
        State.ACTIVE,
        State.ACTIVE,
        age_field="t",
        fast_uuid=uuids[0],
        archive_uuid=uuids[1],
        archive_time=time,
    )
    yield World(tiers, coverage)
    await fast_client.close()
    await archive_client.close()


def an_id(value: Any) -> DocId:
    return DocId.of_document(bson.encode({"_id": value}))


ODD: list[Mapping[str, Any]] = [
    {"_id": 1, "ts": Timestamp(0, 0)},
    SON([("_id", 2), ("$set", 1), ("a.b", {"$c": 1, "a": 1})]),
    {"_id": {"ns": "x", "id": Int64(3)}, "v": [{"10": 1}, None]},
    {"_id": DBRef("c", 5), "v": float("nan")},
    {"_id": "s", "blob": b"x" * 1_000_000},
]


async def test_cold_documents_come_in_with_their_bytes(world: World) -> None:
    raw = [RawBSONDocument(bson.encode(d)) for d in ODD]
    body = b"\x10_id\0\x09\0\0\0\x10a\0\x01\0\0\0\x10a\0\x02\0\0\0\0"
    repeated = RawBSONDocument((len(body) + 4).to_bytes(4, "little") + body)
    for document in [*raw, repeated]:
        command: dict[str, Any] = {"insert": "orders", "documents": [document]}
        if document is raw[0] or document is raw[1]:
            query = RawBSONDocument(DocId.of_document(bytes(document.raw)).document())
            pipeline = [{"$replaceWith": {"$literal": document}}]
            command = {"update": "orders", "updates": [{"q": query, "u": pipeline, "upsert": True}]}
        await raw_database(world.tiers.archive, "shop").command(command)
    # Repeated names, a name with "$" and zeros, which only a $set leaves behind an insert.
    zeros = b"\x11t\0" + b"\0" * 8 + b"\x11u\0" + b"\0" * 8
    mixed = wrap(b"\x10_id\0\x0a\0\0\0", b"\x10$a\0\1\0\0\0", zeros, body[9:-1])
    shop = raw_database(world.tiers.archive, "shop")
    await shop.command({"insert": "orders", "documents": [RawBSONDocument(mixed)]})
    change = {"$set": {"t": Timestamp(0, 0), "u": Timestamp(0, 0)}}
    await shop.command({"update": "orders", "updates": [{"q": {"_id": 10}, "u": change}]})
    ids = [DocId.of_document(bytes(d.raw)) for d in [*raw, repeated]] + [an_id(10)]
    kept = await keep(world.tiers, world.coverage, [*ids, an_id("nowhere")])
    assert kept.copied == frozenset(ids)
    assert kept.absent == {an_id("nowhere")}
    theirs = await find_by_ids(world.tiers.archive, NS, ids)
    ours = await find_by_ids(world.tiers.fast, NS, ids)
    assert {i: bytes(d.raw) for i, d in ours.items()} == {
        i: bytes(d.raw) for i, d in theirs.items()
    }
    assert len(ours) == len(ids)
    assert bytes(ours[an_id(1)].raw) == bytes(raw[0].raw)
    assert bytes(ours[an_id(10)].raw) == mixed


async def test_a_deleted_document_stays_away_and_a_leaving_one_stays(world: World) -> None:
    await world.archive.insert_many([{"_id": 1}, {"_id": 2}])
    await world.fast.insert_one({"_id": 2})
    await world.record(1, "deleted")
    await world.record(2, "leaving")
    kept = await keep(world.tiers, world.coverage, [an_id(1), an_id(2)])
    assert kept.hidden == {an_id(1)}
    assert kept.present == {an_id(2)}
    assert [r["kind"] async for r in world.removed.find()] == ["deleted"]
    assert [d["_id"] async for d in world.fast.find()] == [2]


async def test_what_was_deleted_between_reading_and_writing_does_not_come_back(
    world: World,
) -> None:
    await world.archive.insert_one({"_id": 1, "v": "old"})

    async def delete_meanwhile(step: str) -> None:
        if step == "write copies":  # after the transaction's snapshot
            await world.fast.insert_one({"_id": 1, "v": "new"})
            await world.record(1, "deleted")
            await world.fast.delete_one({"_id": 1})

    kept = await keep(world.tiers, world.coverage, [an_id(1)], pause=delete_meanwhile)
    assert kept.hidden == {an_id(1)}
    assert await world.fast.find_one({"_id": 1}) is None


async def test_a_newer_version_evicted_meanwhile_is_read_again(world: World) -> None:
    await world.archive.insert_one({"_id": 1, "v": "old"})
    done: list[str] = []

    async def evict_meanwhile(step: str) -> None:
        if step == "write copies" and not done:
            done.append(step)
            await world.fast.insert_one({"_id": 1, "v": "new"})
            await world.archive.update_one({"_id": 1}, {"$set": {"v": "new"}})
            await world.record(1, "evicted")
            await world.fast.delete_one({"_id": 1})

    await keep(world.tiers, world.coverage, [an_id(1)], pause=evict_meanwhile)
    assert await world.fast.find_one({"_id": 1}) == {"_id": 1, "v": "new"}


async def test_a_collection_made_anew_is_noticed(world: World) -> None:
    await world.archive.insert_one({"_id": 1})

    async def recreate(step: str) -> None:
        if step == "read archive":  # an open transaction would make the drop wait
            await world.fast.drop()
            await world.fast.insert_one({"_id": "of the new one"})

    with pytest.raises(CollectionChanged):
        await keep(world.tiers, world.coverage, [an_id(1)], pause=recreate)
    assert [d["_id"] async for d in world.fast.find()] == ["of the new one"]


async def test_copies_are_reserved_transactions_and_other_sessions_are_not(world: World) -> None:
    await world.archive.insert_many([{"_id": 1}, {"_id": 2}])
    start = (await world.tiers.fast.admin.command("ping"))["operationTime"]
    await keep(world.tiers, world.coverage, [an_id(1)])
    await keep(world.tiers, world.coverage, [an_id(2)])
    for _ in range(20):  # as many as a pool that leaked reserved sessions would hand out again
        async with world.tiers.fast.start_session() as session, await session.start_transaction():
            await world.fast.insert_one({"by": "a plain transaction"}, session=session)
    seen: list[tuple[str | None, bool]] = []
    async with await world.fast.watch(
        start_at_operation_time=start, max_await_time_ms=200
    ) as stream:
        while (event := await stream.try_next()) is not None or len(seen) < 22:
            if event is not None:
                seen.append(
                    (event["fullDocument"].get("by"), is_reserved(event["lsid"]["id"].bytes))
                )
    assert seen.count((None, True)) == 2
    assert seen.count(("a plain transaction", False)) == 20


async def test_a_reserved_session_is_used_again_by_reserved_work_only(world: World) -> None:
    pool = reserved_sessions(world.tiers.fast)
    async with pool.session() as first:
        pass
    async with pool.session() as second:
        assert second is first


async def test_documents_that_never_hold_still_are_told_apart_from_those_no_write_can_copy(
    world: World,
) -> None:
    await world.archive.insert_one({"_id": 1})

    calls = 0

    async def changing(step: str) -> None:
        nonlocal calls
        calls += 1  # a new token each time: another version may have been there
        await world.record(1, "evicted")

    with pytest.raises(StillChanging):
        await keep(world.tiers, world.coverage, [an_id(1)], pause=changing)
    assert calls >= ATTEMPTS

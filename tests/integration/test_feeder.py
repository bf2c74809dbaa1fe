"""The feeder replays what was written to the fast tier into the archive, byte for byte."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bson import encode
from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient

from support.feeders import QUICK, Feeder, following, raw_documents, write_manifest
from support.mongod import ReplicaSet
from thermocline_common import names
from thermocline_common.coverage import State
from thermocline_common.ids import DocId, wrap
from thermocline_common.manifest import ManifestFollower
from thermocline_common.raw_reads import run_raw
from thermocline_common.reserved import reserved_sessions
from thermocline_common.tiers import Tiers

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        yield Tiers(f, a)


@pytest.fixture
async def follower(
    tmp_path: Path, fast: ReplicaSet, archive: ReplicaSet
) -> AsyncIterator[ManifestFollower]:
    async with following(write_manifest(tmp_path, fast, archive, [POLICY])) as found:
        yield found


@pytest.fixture
async def active(tiers: Tiers, follower: ManifestFollower) -> AsyncIterator[Feeder]:
    """A feeder that has made ``shop.orders`` active, with A's collection and a unique index on ``u``."""
    orders = tiers.archive["shop"]["orders"]
    await orders.create_index("t")
    await orders.create_index("u", unique=True, sparse=True)
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        yield feeder


async def record(
    client: AsyncMongoClient[dict[str, Any]], kind: str, *ids: Any, session: Any = None
) -> None:
    for i in ids:
        await client[names.DATABASE][names.REMOVED].replace_one(
            {"_id": {"ns": NS, "id": i}},
            {"kind": kind, "token": Binary.from_uuid(uuid.uuid4())},
            upsert=True,
            session=session,
        )


async def same(tiers: Tiers) -> bool:
    return await raw_documents(tiers.fast, NS) == await raw_documents(tiers.archive, NS)


async def test_inserts_updates_replacements_arrive(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_many([{"_id": i, "n": 0} for i in range(200)])
    await orders.update_many({"_id": {"$lt": 100}}, {"$inc": {"n": 1}, "$push": {"a": {"x.y": 1}}})
    await orders.replace_one({"_id": 150}, {"other": [1, {"0": {"1": 2}}]})
    await active.replayed()
    assert await same(tiers)
    assert await tiers.archive["shop"]["orders"].count_documents({"n": 1}) == 100


async def test_a_delete_needs_a_deleted_record(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_many([{"_id": i} for i in range(5)])
    await record(tiers.fast, "deleted", 0)
    await record(tiers.fast, "evicted", 1)
    await record(tiers.fast, "expired", 2)
    await record(tiers.fast, "leaving", 3)
    await orders.delete_many({})
    await active.replayed()
    left = {d["_id"] async for d in tiers.archive["shop"]["orders"].find()}
    assert left == {1, 2, 3, 4}


async def test_deleted_and_inserted_again_is_there(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_one({"_id": 1, "v": 1})
    await record(tiers.fast, "deleted", 1)
    await orders.delete_one({"_id": 1})
    await orders.insert_one({"_id": 1, "v": 2})
    await active.replayed()
    assert await tiers.archive["shop"]["orders"].find_one({"_id": 1}) == {"_id": 1, "v": 2}


async def test_a_drop_by_hand_in_f_leaves_the_archive_alone(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_many([{"_id": i} for i in range(5)])
    await active.replayed()
    await orders.drop()
    await active.replayed()
    assert await tiers.archive["shop"]["orders"].count_documents({}) == 5
    # The next insert creates the collection anew; it is replayed too, and nothing is covered any more.
    await orders.insert_one({"_id": 9})
    await active.replayed()
    assert await tiers.archive["shop"]["orders"].count_documents({}) == 6
    coverage = await active.reaches(NS, State.ACTIVE)
    assert coverage.floor is None
    assert coverage.fast_uuid is not None
    assert f"dropped {NS}" in active.context.problems.current


def exotic() -> list[bytes]:
    """Documents that a driver, a replacement, or a pipeline would change or choke on."""

    def doc(number: int, *parts: bytes) -> bytes:
        return wrap(b"\x10_id\0" + number.to_bytes(4, "little"), *parts)

    zero = b"\x11%s\0" + b"\0" * 8
    one, two = b"\x10%s\0\1\0\0\0", b"\x10%s\0\2\0\0\0"
    return [
        doc(1, zero % b"ts"),
        doc(2, one % b"$price"),
        doc(3, one % b"a", two % b"a"),
        doc(4, b"\x03in\0" + wrap(one % b"a", two % b"a"), one % b"a.b"),
        doc(5, b"\x03in\0" + wrap(zero % b"ts", one % b"$x")),
        doc(6, b"\x06undef\0", b"\x0esym\0\2\0\0\0x\0"),
        doc(7, b"\x02bad\0\3\0\0\0\xff\xfe\0", b"\x09far\0" + (2**60).to_bytes(8, "little")),
        doc(8, b"\x04odd\0" + wrap(one % b"7", two % b"3")),
        doc(9, b"\x03r\0" + wrap(b"\x07$id\0" + b"\1" * 12, b"\x02$ref\0\2\0\0\0c\0")),
        doc(10, b"\x01nan\0\1\0\0\0\0\0\xf8\x7f", b"\x01neg\0\0\0\0\0\0\0\0\x80"),
    ]


async def write_raw(client: AsyncMongoClient[dict[str, Any]], documents: list[bytes]) -> None:
    """As promotion does: bytes unchanged, in a transaction that isn't reserved."""
    for document in documents:
        literal = wrap(b"\x03$literal\0" + document)
        repeated = DocId.of_document(document).value in {
            b"\3\0\0\0",
            b"\4\0\0\0",
        }
        statement: dict[str, Any] = {
            "q": RawBSONDocument(DocId.of_document(document).document()),
            "u": RawBSONDocument(document)
            if repeated
            else [{"$replaceWith": RawBSONDocument(literal)}],
            "upsert": True,
        }
        reply = await run_raw(client, "shop", {"update": "orders", "updates": [statement]})
        assert "writeErrors" not in reply, reply


async def test_every_byte_arrives(active: Feeder, tiers: Tiers) -> None:
    # First something else under the same ids, so that each is an update in A.
    await tiers.fast["shop"]["orders"].insert_many([{"_id": i, "q": 1} for i in range(1, 11)])
    await active.replayed()
    documents = exotic()
    await write_raw(tiers.fast, documents)
    await active.replayed()
    in_archive = await raw_documents(tiers.archive, NS)
    for document in documents:
        assert in_archive[DocId.of_document(document).document()] == document
    assert await same(tiers)


async def test_an_ids_type_may_change(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_one({"_id": 5, "v": 1})
    await active.replayed()
    await record(tiers.fast, "deleted", 5)
    await orders.delete_one({"_id": 5})
    await orders.insert_one({"_id": 5.0, "v": 2})
    await active.replayed()
    assert await same(tiers)


async def test_reserved_transactions_are_left_out(active: Feeder, tiers: Tiers) -> None:
    async with reserved_sessions(tiers.fast).session() as session:
        await session.start_transaction()
        await tiers.fast["shop"]["orders"].insert_one({"_id": "copy"}, session=session)
        await session.commit_transaction()
    await active.replayed()
    assert await tiers.archive["shop"]["orders"].find_one({"_id": "copy"}) is None


async def test_a_transaction_arrives_whole(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    accounts = [{"_id": i, "money": 100} for i in range(10)]
    await orders.insert_many(accounts)
    await active.replayed()
    stop = asyncio.Event()
    sums: set[int] = set()

    async def look() -> None:
        async with tiers.archive.start_session(snapshot=True) as session:
            del session
        while not stop.is_set():
            async with (
                tiers.archive.start_session() as session,
                await session.start_transaction(),
            ):
                found = await tiers.archive["shop"]["orders"].find({}, session=session).to_list()
            sums.add(sum(d["money"] for d in found))

    watcher = asyncio.create_task(look())
    for turn in range(60):
        await orders.update_one({"_id": turn % 10}, {"$set": {"touched": turn}})
        async with tiers.fast.start_session() as session, await session.start_transaction():
            await orders.update_one({"_id": turn % 10}, {"$inc": {"money": -7}}, session=session)
            await orders.update_one(
                {"_id": (turn + 3) % 10}, {"$inc": {"money": 7}}, session=session
            )
    await active.replayed()
    stop.set()
    await watcher
    assert sums == {1000}
    assert await same(tiers)


async def test_unique_keys_change_hands(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_many([{"_id": i, "u": i} for i in range(4)])
    await active.replayed()
    async with tiers.fast.start_session() as session, await session.start_transaction():
        for i in range(4):
            await orders.update_one({"_id": i}, {"$set": {"u": 100 + i}}, session=session)
        for i in range(4):
            await orders.update_one({"_id": i}, {"$set": {"u": (i + 1) % 4}}, session=session)
    await active.replayed()
    assert await same(tiers)
    assert active.parts.applier.conflicts


async def test_replay_from_far_back_meets_later_owners_of_a_key(
    active: Feeder, tiers: Tiers, follower: ManifestFollower
) -> None:
    """At the time of the first batch another document holds the key in A already."""
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_one({"_id": 1, "u": "x"})
    await active.replayed()
    # As if an earlier feeder had applied the later owner and lost its checkpoint.
    await tiers.archive["shop"]["orders"].replace_one({"_id": 1}, {"_id": 1, "u": "old"})
    await tiers.archive["shop"]["orders"].insert_one({"_id": 2, "u": "y"})
    await orders.insert_one({"_id": 2, "u": "z"})
    await active.replayed()
    await orders.update_one({"_id": 1}, {"$set": {"u": "y"}})
    await active.replayed()
    assert await same(tiers)


async def test_what_the_archive_refuses_is_quarantined_alone(active: Feeder, tiers: Tiers) -> None:
    await tiers.archive["shop"]["orders"].create_index([("place", "2dsphere")])
    # A cold document holds the key that a hot one wants.
    await tiers.archive["shop"]["orders"].insert_one({"_id": "cold", "u": "taken"})
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_many(
        [{"_id": 1}, {"_id": 2, "place": "nowhere"}, {"_id": 3, "u": "taken"}, {"_id": 4}]
    )
    await active.replayed()
    found = {d["_id"] async for d in tiers.archive["shop"]["orders"].find()}
    assert found == {1, 4, "cold"}
    document = await tiers.archive[names.DATABASE][names.CHECKPOINT].find_one()
    assert document is not None
    assert {(q["ns"], q["id"]) for q in document["quarantine"]} == {(NS, 2), (NS, 3)}
    # They are shown, each with the archive's own reason.
    await active.until(lambda: len(active.parts.applier.quarantine) == 2)
    shown = dict(active.service.status())
    assert (shown["quarantined"], shown["namespaces"][NS]["quarantined"]) == (2, 2)
    reasons = {entry["id"]: (entry["code"], entry["reason"]) for entry in shown["quarantine"]}
    assert reasons.keys() == {encode({"_id": i}).hex() for i in (2, 3)}
    assert "geo" in reasons[encode({"_id": 2}).hex()][1]
    assert reasons[encode({"_id": 3}).hex()][0] == 11000
    # Other writes go on, and what fits leaves by itself.
    await orders.insert_one({"_id": 5})
    await orders.update_one({"_id": 2}, {"$set": {"place": [1, 1]}})
    await tiers.archive["shop"]["orders"].delete_one({"_id": "cold"})
    await active.until(lambda: not active.parts.applier.quarantine)
    await active.replayed()
    assert await same(tiers)


async def test_long_ids_stop_nothing(active: Feeder, tiers: Tiers) -> None:
    orders = tiers.fast["shop"]["orders"]
    # Together too long for one command.
    long_ids = [f"{i}/" + "i" * 20_000 for i in range(1_000)]
    for start in range(0, 1_000, 250):
        await orders.insert_many([{"_id": i} for i in long_ids[start : start + 250]])
    # Small updates grow it to what no single write can bring to the archive.
    grown = "grown/" + "i" * 100_000
    await orders.insert_one({"_id": grown, "a": b"x" * 8_000_000})
    await orders.update_one({"_id": grown}, {"$set": {"b": b"x" * (8_777_216 - 100_100)}})
    await orders.insert_one({"_id": "last"})
    await active.replayed()
    archive = tiers.archive["shop"]["orders"]
    assert await archive.find_one({"_id": "last"}) is not None
    assert await archive.count_documents({"a": {"$exists": False}}) == 1_001
    assert [q.id for q in active.parts.applier.quarantine.values()] == [
        DocId.of_document(encode({"_id": grown}))
    ]
    await orders.update_one({"_id": grown}, {"$unset": {"b": 1}})
    await active.until(lambda: not active.parts.applier.quarantine)
    await active.replayed()
    assert await same(tiers)


async def test_two_feeders_take_turns(
    tiers: Tiers, follower: ManifestFollower, active: Feeder
) -> None:
    orders = tiers.fast["shop"]["orders"]
    async with Feeder(tiers, follower, settings=QUICK) as second:
        await second.until(lambda: second.service.standing_by_for == active.service.me)
        await orders.insert_one({"_id": 1})
        await active.replayed()
        await active.crash()
        await orders.insert_one({"_id": 2})
        await second.until(lambda: second.service.owning)
        await second.replayed()
        assert await same(tiers)


async def test_a_replaced_feeder_is_fenced(active: Feeder, tiers: Tiers) -> None:
    await tiers.archive[names.DATABASE][names.CHECKPOINT].update_one(
        {"_id": names.CHECKPOINT_ID},
        {"$set": {"feeder": Binary.from_uuid(uuid.uuid4())}, "$inc": {"heartbeat": Int64(1)}},
    )
    await tiers.fast["shop"]["orders"].insert_one({"_id": 1})
    await active.until(lambda: not active.service.owning)
    assert await tiers.archive["shop"]["orders"].find_one({"_id": 1}) is None
    # Nobody moves the heartbeat: after the wait it takes over, and replays.
    await active.until(lambda: active.service.owning, 15)
    await active.replayed()
    assert await same(tiers)


async def test_an_insert_that_creates_the_collection(
    tiers: Tiers, follower: ManifestFollower
) -> None:
    async with Feeder(tiers, follower) as feeder:
        await feeder.reaches(NS, State.ACTIVE)
        await tiers.fast["shop"]["orders"].insert_one({"_id": 1})
        await feeder.replayed()
        assert await same(tiers)
        coverage = await feeder.reaches(NS, State.ACTIVE)
        assert coverage.fast_uuid is not None
        assert coverage.archive_uuid is not None


async def test_a_checkpoint_names_a_real_time(active: Feeder, tiers: Tiers) -> None:
    await tiers.fast["shop"]["orders"].insert_one({"_id": 1})
    await active.replayed()
    document = await tiers.archive[names.DATABASE][names.CHECKPOINT].find_one()
    assert document is not None
    assert isinstance(document["time"], Timestamp)
    assert await tiers.fast["local"]["oplog.rs"].find_one({"ts": document["time"]}) is not None


async def test_the_archives_collection_is_dropped_and_restored(
    active: Feeder, tiers: Tiers
) -> None:
    orders = tiers.fast["shop"]["orders"]
    await orders.insert_one({"_id": 1})
    await active.replayed()
    await tiers.archive["shop"]["orders"].drop()
    await orders.insert_one({"_id": 2})
    await active.until(lambda: "until it is restored" in str(active.context.problems.current))
    await tiers.archive["shop"]["orders"].insert_one({"_id": "cold", "from": "backup"})
    await active.replayed()
    found = {d["_id"] async for d in tiers.archive["shop"]["orders"].find()}
    assert found == {1, 2, "cold"}
    coverage = await active.reaches(NS, State.ACTIVE)
    assert coverage.floor is None
    assert f"replaced {NS}" in active.context.problems.current

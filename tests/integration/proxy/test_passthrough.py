"""The proxy in front of the archive alone: an ordinary mongos, as far as any client can tell."""

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import MongoClient, WriteConcern
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from support.wire import Closed, Wire, frame, message, query, sequence
from thermocline_common.sessions import new_reserved_id

pytestmark = pytest.mark.integration


@pytest.fixture
def passthrough(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    thermocline = Thermocline(fast, archive, [], mode="Passthrough")
    thermocline.start(only=("proxy",))
    try:
        with thermocline.logs_on_failure():
            yield thermocline
    finally:
        thermocline.stop()


PING = bson.encode({"ping": 1, "$db": "admin"})
INSERT = bson.encode({"insert": "c", "$db": "t"})


def doubled(document: dict[str, Any], more: dict[str, Any]) -> bytes:
    fields = bson.encode(document)[4:-1] + bson.encode(more)[4:-1]
    return struct.pack("<i", len(fields) + 5) + fields + b"\0"


ODD_MESSAGES = {
    "two bodies": frame(bytes(4) + b"\0" + PING + b"\0" + PING),
    "trailing bytes": message(PING, behind=b"xx"),
    "no body": frame(bytes(4) + sequence("documents", [{"_id": 1}])),
    "kind 2": frame(bytes(4) + b"\2" + PING),
    "kind 3": frame(bytes(4) + b"\3" + PING),
    "same sequence twice": message(
        INSERT, behind=sequence("documents", [{}]) + sequence("documents", [{}])
    ),
    "field twice": message(
        {"insert": "c", "documents": [{}], "$db": "t"}, behind=sequence("documents", [{}])
    ),
    "sequence beyond the end": message(INSERT, behind=sequence("documents", [{}], 500)),
    "negative sequence": message(INSERT, behind=sequence("documents", [{}], -5)),
    "tiny sequence": message(INSERT, behind=sequence("documents", [{}], 2)),
    "empty sequence": message(INSERT, behind=sequence("documents", [])),
    "sequence first": message(INSERT, before=sequence("documents", [{"_id": 77}])),
    "flags only": frame(bytes(4)),
    "header only": frame(b""),
    "empty body": message({}),
    "no $db": message({"ping": 1}),
    "$db an int": message({"ping": 1, "$db": 1}),
    "$db twice": message(doubled({"find": "c", "$db": "a"}, {"$db": "b"})),
    "documents twice": message(
        doubled({"insert": "c", "documents": [{}], "$db": "a"}, {"documents": [{}]})
    ),
    "unknown command": message({"bogus": 1, "$db": "a"}),
    "$db first": message({"$db": "a", "find": "x"}),
    "PING": message({"PING": 1, "$db": "a"}),
    "find by number": message({"find": 1, "$db": "a"}),
    "body too long": frame(bytes(5) + struct.pack("<i", 5000) + PING[4:]),
    "negative body": frame(bytes(5) + struct.pack("<i", -5) + PING[4:]),
    "no end": frame(bytes(5) + PING[:-1] + b"x"),
    "unknown type": frame(bytes(5) + b"\x18\0\0\0" + b"\x10ping\0\1\0\0\0\x55xxxxx\0\0\0"),
    "unknown required flag": message(PING, flags=1 << 5),
    "unknown optional flag": message(PING, flags=1 << 20),
    "wrong checksum": message(PING, flags=1, behind=b"abcd"),
    "exhaust": message(PING, flags=1 << 16),
    "legacy isMaster": query("admin.$cmd", {"isMaster": 1}),
    "legacy hello elsewhere": query("xx.$cmd", {"hello": 1}),
    "legacy $query": query("admin.$cmd", {"$query": {"ismaster": 1}}),
    "legacy ping": query("admin.$cmd", {"ping": 1}),
    "legacy find": query("a.b", {}),
    "legacy getMore": frame(bytes(4) + b"a.b\0" + bytes(12), 2005),
    "legacy insert": frame(bytes(4) + b"a.b\0" + bson.encode({}), 2002),
    "unknown opcode": frame(bytes(4), 9999),
    "a reply": frame(bytes(4), 1),
    "compressed though not agreed": frame(struct.pack("<iiB", 2013, 40, 0) + bytes(40), 2012),
    "impossible length": struct.pack("<iiii", 0x7FFFFFFF, 1, 0, 2013),
    "negative length": struct.pack("<iiii", -1, 1, 0, 2013),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "w: 0 that waits for its answer": message(
        {"insert": "c", "documents": [{}], "writeConcern": {"w": 0}, "$db": "t"}
    ),
    "bad operator": message({"find": "c", "filter": {"$bad": 1}, "$db": "t"}),
    "unknown mechanism": message(
        {"saslStart": 1, "mechanism": "FOO", "payload": b"", "$db": "admin"}
    ),
    "removed command": message({"getLastError": 1, "$db": "admin"}),
}


def outcome(port: int, data: bytes) -> tuple[Any, ...]:
    """What a client sees: kind of reply, success, code and its name, and whether the connection goes on."""
    with Wire(port) as wire:
        wire.send(data)
        try:
            opcode, _, reply = wire.receive()
        except Closed:
            return ("closed",)
        alive = True
        try:
            wire.ask({"ping": 1, "$db": "admin"})
        except Closed:
            alive = False
        return opcode, reply.get("ok"), reply.get("code"), reply.get("codeName"), alive


def test_odd_messages_are_answered_as_by_mongod(
    passthrough: Thermocline, archive: ReplicaSet
) -> None:
    differing = {}
    for name, data in ODD_MESSAGES.items():
        direct = outcome(archive.members[0].port, data)
        through = outcome(passthrough.port, data)
        if direct != through:
            differing[name] = (direct, through)
    assert not differing


def test_hello_is_a_mongos_with_the_tiers_limits(
    passthrough: Thermocline, archive: ReplicaSet
) -> None:
    with Wire(passthrough.port) as wire, archive.client() as direct:
        reply = wire.ask({"hello": 1, "$db": "admin"})
        assert reply["msg"] == "isdbgrid"
        assert "topologyVersion" not in reply
        assert "setName" not in reply
        assert "serviceId" not in reply
        own = direct.admin.command("hello")
        for field in ("maxWireVersion", "logicalSessionTimeoutMinutes", "maxBsonObjectSize"):
            assert reply[field] == own[field]
        first = wire.ask({"hello": 1, "loadBalanced": True, "$db": "admin"})["serviceId"]
    with Wire(passthrough.port) as wire:
        assert wire.ask({"hello": 1, "loadBalanced": True, "$db": "x"})["serviceId"] == first
        client = {"driver": {"name": "d", "version": "1"}, "os": {"type": "x"}}
        assert wire.ask({"hello": 1, "client": client, "$db": "admin"})["ok"] == 1
        assert wire.ask({"hello": 1, "client": client, "$db": "admin"})["code"] == 186


def test_bytes_may_come_one_by_one_or_all_at_once(passthrough: Thermocline) -> None:
    commands = [
        message({"insert": "c", "documents": [{"_id": n}], "$db": "t"}) for n in range(20)
    ] + [
        message({"count": "c", "$db": "t"}),
        message({"find": "c", "filter": {"_id": 3}, "$db": "t"}),
    ]
    with Wire(passthrough.port) as wire:
        wire.send(b"".join(commands))
        replies = [wire.receive() for _ in commands]
        sent = [struct.unpack_from("<i", command, 4)[0] for command in commands]
        assert [reply[1] for reply in replies] == sent
        assert replies[20][2]["n"] == 20
        assert replies[21][2]["cursor"]["firstBatch"] == [{"_id": 3}]
        for byte in commands[21]:
            wire.send(bytes((byte,)))
        assert wire.receive()[2]["cursor"]["firstBatch"] == [{"_id": 3}]


def test_a_client_that_does_not_read_is_not_read_from(passthrough: Thermocline) -> None:
    with passthrough.client() as client:
        client.t.c.insert_one({"_id": 1, "p": "x" * 1_000_000})
    command = message({"find": "c", "filter": {"_id": 1}, "$db": "t"})
    with Wire(passthrough.port, 30) as wire:
        sender = threading.Thread(target=lambda: wire.send(command * 200))
        sender.start()
        time.sleep(1.0)
        pid = passthrough.services["proxy"].process.pid
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        assert resident < 300_000, "200 MB of answers were not piled up"
        for _ in range(200):
            assert len(wire.receive()[2]["cursor"]["firstBatch"][0]["p"]) == 1_000_000
        sender.join()


def test_unacknowledged_writes(passthrough: Thermocline) -> None:
    with Wire(passthrough.port) as wire:
        for _ in range(2):  # the second one is a duplicate, which nobody is told of
            wire.send(
                message(
                    {
                        "insert": "c",
                        "documents": [{"_id": 1}],
                        "writeConcern": {"w": 0},
                        "$db": "t",
                    },
                    flags=2,
                )
            )
        wire.send(message({"find": "c", "$db": "t"}, flags=2))
        assert wire.ask({"count": "c", "$db": "t"})["n"] == 1
    with passthrough.client() as client:
        quiet = client.t.get_collection("d", write_concern=WriteConcern(w=0))
        for number in range(50):
            quiet.insert_one({"_id": number})
        wait_until("all written", lambda: client.t.d.count_documents({}) == 50, 10)


def test_large_messages(passthrough: Thermocline) -> None:
    with passthrough.client() as client:
        client.t.c.insert_many([{"_id": n, "p": bytes(1_000_000)} for n in range(40)])
        assert sum(len(d["p"]) for d in client.t.c.find()) == 40_000_000
        client.t.c.insert_one({"_id": "max", "p": bytes(16_777_216 - 28)})
        found = client.t.c.find_one({"_id": "max"})
        assert found is not None
        assert len(found["p"]) == 16_777_216 - 28


def test_cursors_of_another_proxy(passthrough: Thermocline) -> None:
    other = passthrough.add_service("proxy", "other proxy")
    other.wait_ready()
    assert other.listen is not None
    with Wire(passthrough.port) as one, Wire(other.listen) as two:
        documents = [{"_id": n} for n in range(30)]
        one.ask({"insert": "c", "documents": documents, "$db": "t"})
        first, second = (
            one.ask({"find": "c", "batchSize": 5, "$db": "t"})["cursor"]["id"] for _ in range(2)
        )
        more = {"getMore": Int64(first), "collection": "c", "batchSize": 5, "$db": "t"}
        assert [d["_id"] for d in two.ask(more)["cursor"]["nextBatch"]] == [5, 6, 7, 8, 9]
        assert [d["_id"] for d in one.ask(more)["cursor"]["nextBatch"]] == [10, 11, 12, 13, 14]
        unknown = Int64(987_654_321)
        killed = two.ask(
            {"killCursors": "c", "cursors": [Int64(first), Int64(second), unknown], "$db": "t"}
        )
        assert sorted(killed["cursorsKilled"]) == sorted([first, second])
        assert killed["cursorsNotFound"] == [unknown]
        assert one.ask(more)["code"] == 43
        assert one.ask({**more, "getMore": 5})["code"] == 14
        assert one.ask({**more, "getMore": unknown})["code"] == 43


def test_the_coordination_database_is_closed(passthrough: Thermocline) -> None:
    with passthrough.client() as client:
        client.t.c.insert_one({})
        for attempt in (
            lambda: client.thermocline.tiered.find_one(),
            lambda: client.thermocline.tiered.insert_one({}),
            lambda: client.thermocline.list_collection_names(),
            lambda: client.drop_database("thermocline"),
            lambda: list(client.t.c.aggregate([{"$out": {"db": "thermocline", "coll": "x"}}])),
            lambda: client.admin.command("renameCollection", "t.c", to="thermocline.c"),
            lambda: list(client.thermocline.aggregate([{"$currentOp": {}}])),
            lambda: client.thermocline_aside.c.find_one(),
        ):
            with pytest.raises(OperationFailure) as caught:
                attempt()
            assert caught.value.code == 13
        assert "thermocline" not in client.list_database_names()


def test_a_reserved_session_is_refused(passthrough: Thermocline) -> None:
    lsid = {"id": Binary(new_reserved_id().bytes, 4)}
    with Wire(passthrough.port) as wire:
        reply = wire.ask({"find": "c", "lsid": lsid, "$db": "t"})
        assert (reply["ok"], reply["code"]) == (0, 72)


def test_sessions_transactions_and_streams_of_untiered_collections(
    passthrough: Thermocline,
) -> None:
    with passthrough.client() as client:
        client.t.c.insert_one({"_id": 0})
        with client.start_session(causal_consistency=True) as session:
            for number in range(1, 20):
                client.t.c.insert_one({"_id": number}, session=session)
                assert client.t.c.find_one({"_id": number}, session=session)
        with client.start_session() as session:
            with session.start_transaction():
                client.t.c.insert_one({"_id": "committed"}, session=session)
            session.start_transaction()
            client.t.c.insert_one({"_id": "aborted"}, session=session)
            session.abort_transaction()
        assert client.t.c.find_one({"_id": "committed"})
        assert not client.t.c.find_one({"_id": "aborted"})
        with client.t.c.watch(max_await_time_ms=100) as stream:
            client.t.c.insert_one({"_id": "seen"})
            assert stream.next()["documentKey"] == {"_id": "seen"}
        with pytest.raises(BulkWriteError) as caught:
            client.t.c.insert_many([{"_id": "new"}, {"_id": 0}])
        assert caught.value.details["writeErrors"][0]["code"] == 11000


async def test_asynchronous_drivers(passthrough: Thermocline) -> None:
    uri = passthrough.uri()
    async with passthrough.async_client(loadBalanced=True) as client:
        await asyncio.gather(*(client.t.c.insert_one({"_id": n}) for n in range(150)))
        found = await asyncio.gather(*(client.t.c.find(batch_size=20).to_list() for _ in range(10)))
        assert {len(documents) for documents in found} == {150}
    motor: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(uri)
    assert len(await motor.t.c.find({}, batch_size=7).to_list(None)) == 150
    motor.close()


def test_an_operation_ends_with_its_client(passthrough: Thermocline, archive: ReplicaSet) -> None:
    with archive.client() as direct:
        direct.t.c.insert_one({})

        def running() -> bool:
            operations = direct.admin.aggregate([{"$currentOp": {}}])
            return any(o.get("command", {}).get("comment") == "slow" for o in operations)

        wire = Wire(passthrough.port)
        slow = {"$where": "sleep(60000) || true"}
        wire.send(message({"find": "c", "filter": slow, "comment": "slow", "$db": "t"}))
        wait_until("it runs", running, 10)
        wire.close()
        wait_until("it ended", lambda: not running(), 15)


def test_sigterm_finishes_what_is_in_hand(passthrough: Thermocline) -> None:
    with passthrough.client() as client:
        client.t.c.insert_one({"_id": 1})
    slow, idle = Wire(passthrough.port, 60), Wire(passthrough.port, 60)
    assert idle.ask({"ping": 1, "$db": "admin"})["ok"] == 1
    where = {"$where": "sleep(2000) || true"}
    slow.send(message({"find": "c", "filter": where, "$db": "t"}))
    time.sleep(0.3)
    ended: list[int] = []
    stopper = threading.Thread(
        target=lambda: ended.append(passthrough.services["proxy"].terminate(60))
    )
    stopper.start()
    with pytest.raises(Closed):
        idle.receive()
    assert slow.receive()[2]["cursor"]["firstBatch"] == [{"_id": 1}]
    stopper.join()
    assert ended == [0]
    for wire in (slow, idle):
        wire.close()


def test_an_archive_that_dies_behind_a_write_and_comes_back(
    mongod_binary: str, fast: ReplicaSet
) -> None:
    lsid = {"id": Binary(bytes(range(16)), 4)}
    slow = {"q": {"$where": "sleep(20000) || true"}, "u": {"$set": {"a": 1}}}
    with (
        ReplicaSet("away") as archive,
        Thermocline(fast, archive, [], mode="Passthrough") as thermocline,
        thermocline.client(serverSelectionTimeoutMS=2_000) as client,
        Wire(thermocline.port, 30) as wire,
    ):
        client.t.c.insert_one({"_id": 1})
        update = {"update": "c", "updates": [slow], "lsid": lsid, "txnNumber": Int64(1), "$db": "t"}
        wire.send(message(update))
        time.sleep(0.5)
        archive.members[0].kill()
        reply = wire.receive()[2]
        assert (reply["ok"], reply["code"]) == (0, 6)
        assert reply["errorLabels"] == ["RetryableWriteError"], "never sent again by the proxy"
        with contextlib.suppress(PyMongoError):
            client.t.c.find_one({"_id": 1}, max_time_ms=1_000)
        archive.members[0].start()

        def served() -> bool:
            with contextlib.suppress(PyMongoError):
                return client.t.c.find_one({"_id": 1}) == {"_id": 1}
            return False

        wait_until("served again", served, 40, 0.2)


def test_without_the_fast_tier_untiered_collections_are_served(
    mongod_binary: str, archive: ReplicaSet
) -> None:
    with ReplicaSet("gone") as gone:
        thermocline = Thermocline(
            gone,
            archive,
            [{"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"}],
            spec={"proxy": {"lease": "500ms", "barrierTimeout": "2s"}},
        )
        with archive.client() as direct:
            direct.shop.orders.create_index("t")
            direct.shop.orders.insert_one({"_id": 1})
        with thermocline, thermocline.logs_on_failure():
            thermocline.wait_state("Active")
            gone.members[0].kill()
            with thermocline.client(retryReads=False) as client:
                for number in range(40):
                    client.shop.plain.insert_one({"_id": number})
                    assert client.shop.plain.find_one({"_id": number})
                    time.sleep(0.1)
                with pytest.raises(OperationFailure) as caught:
                    client.shop.orders.find_one({"_id": 1}, max_time_ms=3_000)
                assert caught.value.code in (6, 50, 262), caught.value
                # A proxy that never saw the fast tier knows from the archive what is tiered.
                late = thermocline.add_service("proxy", "late")
                wait_until("listening", lambda: late.ready(), 30)
                with MongoClient[dict[str, Any]](thermocline.uri(late.listen)) as other:
                    assert other.shop.plain.count_documents({}) == 40
                    with pytest.raises(OperationFailure) as caught:
                        other.shop.orders.find_one({"_id": 1}, max_time_ms=2_000)
                    assert caught.value.code in (6, 50, 262), caught.value
                    with pytest.raises(OperationFailure):
                        other.shop.orders.insert_one({"_id": 2})
                assert "lease" not in thermocline.services["proxy"].status()["problems"]
            gone.members[0].start()
            with thermocline.client() as client:

                def served() -> bool:
                    with contextlib.suppress(PyMongoError):
                        return client.shop.orders.find_one({"_id": 1}) == {"_id": 1}
                    return False

                wait_until("served again", served, 40, 0.2)


def test_status_and_metrics(passthrough: Thermocline) -> None:
    service = passthrough.services["proxy"]
    with passthrough.client() as client:
        client.t.c.insert_one({"_id": 1})
        client.t.c.find_one({"_id": 1})
        status = service.status()["proxy"]
    assert status["connections"] >= 1
    assert status["routes"]["archive"]["untiered"] >= 2
    wait_until("a lease", lambda: service.status()["proxy"]["leaseAlive"], 20, 0.1)
    metrics = service.metrics()
    for name in ("connections", "routes_total", "upstream_seconds_bucket", "lease_age_seconds"):
        assert f"thermocline_proxy_{name}" in metrics

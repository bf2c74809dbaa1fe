"""The wire itself: packed and signed messages, exhaust cursors, and who means ill, as mongod treats them."""

import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, OperationFailure

from support.fuzzing import attack, memory
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from support.wire import Closed, Wire, frame, message, packed, query, signed

pytestmark = pytest.mark.integration

PING = {"ping": 1, "$db": "admin"}
ASK = message(PING)
QUIET = {"insert": "quiet", "documents": [{}], "writeConcern": {"w": 0}, "$db": "t"}
EXHAUST = 1 << 16
MORE = 2


@pytest.fixture(scope="module")
def proxied(_plain_sets: tuple[ReplicaSet, ReplicaSet]) -> Iterator[Thermocline]:
    thermocline = Thermocline(*_plain_sets, [], mode="Passthrough")
    thermocline.start(only=("proxy",))
    try:
        with thermocline.logs_on_failure():
            yield thermocline
    finally:
        thermocline.stop()


def not_text(document: dict[str, Any]) -> bytes:
    return bson.encode(document).replace(b"~~", b"\xff\xfe")


def damaged(document: dict[str, Any]) -> bytes:
    """With a type that BSON hasn't, deep within."""
    raw = bson.encode(document)
    assert raw.count(b"\x10here\0") == 1
    return raw.replace(b"\x10here\0", b"\x55here\0")


HERE = {"here": 1}
DAMAGED = {
    "filter": message(damaged({"find": "c", "filter": {"a": HERE}, "$db": "t"})),
    "readConcern": message(damaged({"find": "c", "readConcern": HERE, "$db": "t"})),
    "pipeline": message(
        damaged({"aggregate": "c", "pipeline": [{"$match": HERE}], "cursor": {}, "$db": "t"})
    ),
    "cursors": message(damaged({"killCursors": "c", "cursors": [HERE], "$db": "t"})),
}


ODD = {
    **{f"packed by {n}": packed(ASK, n) for n in (1, 2, 3)},
    **{f"said to be shorter, {n}": packed(ASK, n, size=10) for n in (1, 2, 3)},
    **{f"garbage, {n}": packed(ASK, n, data=b"\xff" * 30) for n in (1, 2, 3)},
    **{f"nothing, {n}": packed(ASK, n, data=b"") for n in (1, 2, 3)},
    "said to be huge": packed(ASK, size=48_000_001),
    "said to be negative": packed(ASK, size=-1),
    "said to be empty": packed(ASK, size=0),
    "not compressed": packed(ASK, 0),
    "unknown compressor": packed(ASK, 9),
    "unknown opcode within": packed(frame(bytes(4), 9999)),
    "legacy insert within": packed(frame(bytes(4) + b"a.b\0" + bson.encode({}), 2002)),
    "two bodies within": packed(frame(bytes(4) + (b"\0" + bson.encode(PING)) * 2)),
    "hello within": packed(message({"hello": 1, "$db": "admin"})),
    "legacy isMaster within": packed(query("admin.$cmd", {"isMaster": 1})),
    "legacy ping within": packed(query("admin.$cmd", {"ping": 1})),
    "an error": packed(message({"find": "c", "filter": {"$bad": 1}, "$db": "t"})),
    "an unknown command": packed(message({"bogus": 1, "$db": "t"})),
    "too short for a compressor": frame(b"\xdd\x07\0\0\0\0\0\0", 2012),
    "nothing but a header": frame(b"", 2012),
    "signed": signed(ASK),
    "signed, an error": signed(message({"find": "c", "filter": {"$bad": 1}, "$db": "t"})),
    "signed and packed": packed(signed(ASK)),
    "wrongly signed, packed": packed(signed(ASK)[:-1] + b"\0"),
    "no answer wanted": packed(message(QUIET, flags=MORE)) + ASK,
    **{f"damaged, {name}": made for name, made in DAMAGED.items()},
    "strings that aren't UTF-8": message(not_text({"find": "c", "comment": "~~", "$db": "t"})),
    "longer than the longest": struct.pack("<iiii", 48_000_001, 1, 0, 2013),
    "compression of one name": message({"hello": 1, "$db": "admin", "compression": "zlib"}),
    "compression of a number": message({"hello": 1, "$db": "admin", "compression": [5]}),
}


def outcome(port: int, data: bytes) -> tuple[Any, ...]:
    with Wire(port) as wire:
        wire.send(data)
        try:
            found = wire.answer()
        except Closed:
            return ("closed",)
        reply = found.document
        try:
            alive = wire.ask(PING)["ok"]
        except Closed:
            alive = 0.0
        signature = (found.opcode, found.flags, found.compressor, found.checked, alive)
        return *signature, reply.get("ok"), reply.get("code"), reply.get("codeName")


def test_packed_and_signed_messages_are_answered_as_by_mongod(
    proxied: Thermocline, archive: ReplicaSet
) -> None:
    differing = {}
    for name, data in ODD.items():
        direct, through = outcome(archive.members[0].port, data), outcome(proxied.port, data)
        if direct != through:
            differing[name] = (direct, through)
    assert not differing, differing


@pytest.mark.parametrize("compressor", [1, 2, 3])
def test_what_mongod_half_accepts_ends_the_connection(
    proxied: Thermocline, compressor: int
) -> None:
    """To a message packed twice it gives no answer, and what is missing it takes from its buffer."""
    for data in (packed(packed(ASK), compressor), packed(ASK, compressor, size=len(ASK) + 50)):
        assert outcome(proxied.port, data) == ("closed",)


def test_a_hello_is_never_streamed(proxied: Thermocline) -> None:
    """It names no topologyVersion, so that drivers ask again and again; one from elsewhere is ignored."""
    version = {"processId": bson.ObjectId(), "counter": Int64(0)}
    hello = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 60_000, "$db": "admin"}
    with Wire(proxied.port) as wire:
        wire.send(message(hello, flags=EXHAUST) + ASK)
        first, second = wire.answer(), wire.answer()
    assert (first.flags, first.document["isWritablePrimary"]) == (0, True)
    assert "topologyVersion" not in first.document
    assert "isWritablePrimary" not in second.document


@pytest.mark.parametrize(
    "wanted", [["snappy"], ["zstd", "bogus", "zlib"], ["bogus"], [], ["noop"], ["zlib", "zlib"]]
)
def test_compressors_are_agreed_on_as_with_mongod(
    proxied: Thermocline, archive: ReplicaSet, wanted: list[str]
) -> None:
    answers = []
    for port in (archive.members[0].port, proxied.port):
        with Wire(port) as wire:
            hello = {"hello": 1, "$db": "admin"}
            answers.append(
                [
                    wire.ask(document).get("compression")
                    for document in (
                        {**hello, "compression": wanted},
                        hello,
                        {**hello, "compression": []},
                        hello,
                    )
                ]
            )
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["snappy", "zlib", "zstd"])
def test_a_driver_that_compresses(proxied: Thermocline, archive: ReplicaSet, name: str) -> None:
    uri = f"{proxied.uri()}{'&' if '?' in proxied.uri() else '?'}compressors={name}"
    with MongoClient[dict[str, Any]](uri) as client:
        collection = client.t.c
        collection.insert_many([{"_id": n, "p": str(n) * 1_000} for n in range(500)])
        assert len(list(collection.find(batch_size=70))) == 500
        for n in range(200):  # the short path, with answers to be packed at once
            assert collection.find_one({"_id": n}) == {"_id": n, "p": str(n) * 1_000}
        large = {"_id": "large", "p": bytes(15_000_000)}
        collection.insert_one(large)
        assert collection.find_one({"_id": "large"}) == large
        with pytest.raises(DuplicateKeyError):
            collection.insert_one({"_id": 3})
        with pytest.raises(OperationFailure):
            collection.find_one({"$bad": 1})
        with client.start_session() as session, session.start_transaction():
            collection.insert_one({"_id": "in a transaction"}, session=session)
        assert client.topology_description is not None
    with archive.client() as direct:
        assert direct.t.c.count_documents({}) == 502


def test_a_packed_command_is_answered_packed_and_a_plain_one_plain(proxied: Thermocline) -> None:
    find = {"find": "d", "filter": {"_id": 1}, "$db": "t"}
    with Wire(proxied.port) as wire:
        wire.ask({"insert": "d", "documents": [{"_id": 1, "p": "x" * 100_000}], "$db": "t"})
        for compressor in (None, 1, None, None, 3, 2, 2, None):
            plain = message(find)
            wire.send(plain if compressor is None else packed(plain, compressor))
            found = wire.answer()
            assert found.compressor == compressor
            assert found.response_to == struct.unpack_from("<i", plain, 4)[0]
            assert len(found.document["cursor"]["firstBatch"][0]["p"]) == 100_000


def exhausted(port: int) -> tuple[list[int], list[int], bool]:
    """Of an exhaust cursor: sizes of the batches, flags, and whether each reply answers the one before."""
    with Wire(port) as wire:
        cursor = wire.ask({"find": "e", "batchSize": 2, "$db": "t"})["cursor"]["id"]
        more = {"getMore": Int64(cursor), "collection": "e", "batchSize": 5, "$db": "t"}
        asked = message(more, flags=EXHAUST)
        wire.send(asked + ASK)
        answers = []
        while cursor:
            answers.append(wire.answer())
            cursor = answers[-1].document["cursor"]["id"]
        assert wire.answer().document["ok"] == 1, "the ping, behind all batches"
        before = [struct.unpack_from("<i", asked, 4)[0], *(a.request_id for a in answers)]
        return (
            [len(a.document["cursor"]["nextBatch"]) for a in answers],
            [a.flags for a in answers],
            all(a.response_to == to for a, to in zip(answers, before, strict=False)),
        )


def test_exhaust_cursors_are_pushed_as_by_mongod(proxied: Thermocline, archive: ReplicaSet) -> None:
    with archive.client() as direct:
        direct.t.e.insert_many([{"_id": n} for n in range(20)])
    assert exhausted(proxied.port) == exhausted(archive.members[0].port)
    assert exhausted(proxied.port) == ([5, 5, 5, 3], [MORE, MORE, MORE, 0], True)


def test_an_exhaust_cursor_waits_for_its_client(proxied: Thermocline, archive: ReplicaSet) -> None:
    with archive.client() as direct:
        direct.t.f.insert_many([{"_id": n, "p": bytes(500_000)} for n in range(120)])
    pid = proxied.services["proxy"].process.pid
    before = memory(pid)
    with Wire(proxied.port, 60) as wire:
        cursor = wire.ask({"find": "f", "batchSize": 1, "$db": "t"})["cursor"]["id"]
        more = {"getMore": Int64(cursor), "collection": "f", "batchSize": 1, "$db": "t"}
        wire.send(message(more, flags=EXHAUST))
        # Another client is served meanwhile, again and again: the pushing has stopped by then.
        with Wire(proxied.port) as other:
            for _ in range(300):
                other.ask(PING)
        assert memory(pid) < before + 40_000, "60 MB were not piled up"
        seen = 1
        while cursor:
            found = wire.answer().document["cursor"]
            seen += len(found["nextBatch"])
            cursor = found["id"]
        assert seen == 120


def test_connections_that_announce_much_and_stall_cost_nothing(proxied: Thermocline) -> None:
    pid = proxied.services["proxy"].process.pid
    with Wire(proxied.port) as wire:
        wire.ask(PING)
        before = memory(pid)
        stalled = []
        try:
            for n in range(1_000):
                stalled.append(Wire(proxied.port))
                opcode = 2012 if n % 2 else 2013
                stalled[-1].send(struct.pack("<iiii", 48_000_000, n, 0, opcode) + bytes(9))
            service = proxied.services["proxy"]
            wait_until(
                "accepted", lambda: service.status()["proxy"]["connections"] >= 1_000, 60, 0.1
            )
            assert wire.ask(PING)["ok"] == 1
            assert memory(pid) < before + 40_000, "40 KiB for each at most"
        finally:
            for one in stalled:
                one.close()


def test_a_client_with_tls_is_closed_at_once_and_named(proxied: Thermocline) -> None:
    """A TLS handshake's first bytes would be a message of 33 MB: nobody waits for the rest."""
    service = proxied.services["proxy"]
    context = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", proxied.port), timeout=20) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
    told = [line for line in service.process.log.read_text().splitlines() if "turned away" in line]
    assert len(told) == 1
    assert "it speaks TLS, which this port doesn't have" in told[0]
    with proxied.client() as client:
        client.admin.command("ping")


def test_memory_stays_flat_under_garbage(proxied: Thermocline) -> None:
    """A sample; ``make fuzz`` sends a million."""
    pid = proxied.services["proxy"].process.pid
    attack(proxied.port, 1, 4_000)
    before = memory(pid)
    attack(proxied.port, 2, 4_000)
    assert memory(pid) < before + 15_000
    assert "could not be answered" not in proxied.services["proxy"].process.log.read_text()

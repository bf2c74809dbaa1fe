"""Documents of every kind, end to end: written, updated, replayed, evicted, promoted, deleted; byte for byte.

Cases H1, H6, H7 and M25: whatever MongoDB stores, both tiers store alike.
"""

import datetime as dt
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from thermocline_common.fidelity import Form, form_of
from thermocline_common.ids import DocId, elements, wrap
from thermocline_common.timing import TEST_VARIABLE

pytestmark = pytest.mark.integration
NS = "shop.orders"
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
ENVIRONMENT = {TEST_VARIABLE: "2", "THERMOCLINE_TEST_FEEDER_STATE_POLL": "0.2"}

ZERO = b"\0" * 8
ONE, TWO = b"\x10%s\0\1\0\0\0", b"\x10%s\0\2\0\0\0"
ID = b"\1" * 12
VALUES: Mapping[str, bytes] = {
    "doubles": b"\x01nan\0\1\0\0\0\0\0\xf8\x7f" + b"\x01neg\0\0\0\0\0\0\0\0\x80",
    "strings": b"\x02bad\0\3\0\0\0\xff\xfe\0" + b"\x02nul\0\4\0\0\0a\0b\0" + b"\x02empty\0\1\0\0\0\0",
    "nested": b"\x03in\0" + wrap(ONE % b"a.b", ONE % b"$x", b"\x11ts\0" + ZERO, ONE % b""),
    "array": b"\x04m\0" + wrap(ONE % b"0", b"\x0a1\0", b"\x042\0" + wrap()),
    "odd array": b"\x04odd\0" + wrap(ONE % b"7", TWO % b"3"),
    "array of numbered names": b"\x04arr\0" + wrap(b"\x030\0" + wrap(ONE % b"10")),
    "numbered names": b"\x030\0" + wrap(ONE % b"1"),
    "binary": b"".join(
        b"\x05b%d\0" % kind + struct.pack("<i", 16) + bytes((kind,)) + b"u" * 16
        for kind in (0, 1, 3, 4, 5, 6, 128)
    )
    + b"\x05b2\0\x08\0\0\0\x02\4\0\0\0old!",
    "undefined": b"\x06u\0",
    "object id": b"\x07o\0" + ID,
    "booleans": b"\x08t1\0\1" + b"\x08f\0\0",
    "dates": b"\x09far\0" + struct.pack("<q", 2**60) + b"\x09before\0" + struct.pack("<q", -(2**60)),
    "null": b"\x0an\0",
    "regex": b"\x0br\0a.*\0imx\0",
    "dbpointer": b"\x0cp\0\2\0\0\0c\0" + ID,
    "code": b"\x0dc\0\2\0\0\0x\0",
    "symbol": b"\x0es\0\2\0\0\0x\0",
    "code with scope": b"\x0fw\0" + struct.pack("<i", 4 + 6 + 12) + b"\2\0\0\0x\0" + wrap(ONE % b"s"),
    "int32": b"\x10i\0\xff\xff\xff\x7f",
    "timestamp": b"\x11ts\0\1\0\0\0\2\0\0\0",
    "int64": b"\x12l\0\xff\xff\xff\xff\xff\xff\xff\x7f",
    "decimal": b"\x13d\0" + bson.Decimal128("-0E-6176").bid + b"\x13q\0" + bson.Decimal128("NaN").bid,
    "min and max": b"\xffmin\0" + b"\x7fmax\0",
    "dotted": ONE % b"a.b" + b"\x03a\0" + wrap(TWO % b"b"),
    "repeated": ONE % b"r" + TWO % b"r",
    "repeated, beside dollar": ONE % b"r" + TWO % b"$x" + TWO % b"r",
    "repeated within": b"\x03in\0" + wrap(ONE % b"r", TWO % b"r"),
    "dbref": b"\x03ref\0" + wrap(b"\x07$id\0" + ID, b"\x02$ref\0\2\0\0\0c\0"),
    "dollar": ONE % b"$price",
    "large": b"\x02big\0" + struct.pack("<i", 3_000_001) + b"x" * 3_000_000 + b"\0",
}  # fmt: skip
IDS: Mapping[str, bytes] = {
    "double": b"\x01_id\0" + struct.pack("<d", 1.5),
    "string": b"\x02_id\0\2\0\0\0s\0",
    "bad string": b"\x02_id\0\3\0\0\0\xff\xfe\0",
    "document": b"\x03_id\0" + wrap(TWO % b"b", ONE % b"a.x"),
    "empty document": b"\x03_id\0" + wrap(),
    "binary": b"\x05_id\0\3\0\0\0\0abc",
    "uuid": b"\x05_id\0\x10\0\0\0\x04" + b"u" * 16,
    "object id": b"\x07_id\0" + ID,
    "true": b"\x08_id\0\1",
    "date": b"\x09_id\0" + struct.pack("<q", 2**60),
    "null": b"\x0a_id\0",
    "dbpointer": b"\x0c_id\0\2\0\0\0c\0" + ID,
    "code": b"\x0d_id\0\2\0\0\0x\0",
    "symbol": b"\x0e_id\0\3\0\0\0xy\0",
    "code with scope": b"\x0f_id\0" + struct.pack("<i", 4 + 6 + 12) + b"\2\0\0\0x\0" + wrap(ONE % b"s"),
    "int32": b"\x10_id\0\7\0\0\0",
    "timestamp": b"\x11_id\0\1\0\0\0\2\0\0\0",
    "zero timestamp": b"\x11_id\0" + ZERO,
    "int64": b"\x12_id\0" + struct.pack("<q", 2**40),
    "decimal": b"\x13_id\0" + bson.Decimal128("5.500").bid,
    "min": b"\xff_id\0",
    "max": b"\x7f_id\0",
}  # fmt: skip


def age(days: float) -> bytes:
    when = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    return b"\x09t\0" + struct.pack("<q", int(when.timestamp() * 1000))


def documents() -> dict[bytes, bytes]:
    """By raw ``_id`` filter: a hot and a cold one of each value, a cold one of each id."""
    made = []
    for number, value in enumerate(VALUES.values()):
        made.append(wrap(ONE[:-4] % b"_id" + struct.pack("<i", 1_000 + number), age(1), value))
        made.append(wrap(ONE[:-4] % b"_id" + struct.pack("<i", 2_000 + number), age(60), value))
    made += [wrap(raw_id, age(60)) for raw_id in IDS.values()]
    return {DocId.of_document(document).document(): document for document in made}


def with_field(document: bytes, number: int) -> bytes:
    """After ``$set: {touched: number}``: in place where it was, else at the end."""
    field = b"\x10touched\0" + struct.pack("<i", number)
    for name, _, begin, _, end in elements(document):
        if name == b"touched":
            return document[:begin] + field + document[end:]
    return wrap(document[4:-1], field)


def contents(client: MongoClient[Any]) -> dict[bytes, bytes]:
    found = client["shop"].get_collection("orders", codec_options=RAW).find({})
    return {DocId.of_document(bytes(d.raw)).document(): bytes(d.raw) for d in found}


def differing(found: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes]) -> list[str]:
    return [
        f"{query!r}: {found.get(query, b'absent')[:200]!r} instead of {wanted.get(query, b'absent')[:200]!r}"
        for query in found.keys() | wanted.keys()
        if found.get(query) != wanted.get(query)
    ]


@pytest.fixture
def running(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    with archive.client() as client:
        client.shop.orders.create_index("t")
    policy = {"namespace": NS, "ageField": "t", "maxAge": "30d"}
    system = Thermocline(fast, archive, [policy], environment=ENVIRONMENT)
    try:
        system.start()
        with system.logs_on_failure():
            yield system
    finally:
        system.stop()


def run(client: MongoClient[Any], command: Mapping[str, Any]) -> RawBSONDocument:
    reply = client.get_database("shop", codec_options=RAW).command(dict(command), codec_options=RAW)
    assert "writeErrors" not in reply, reply["writeErrors"]
    return reply


def touch(client: MongoClient[Any], wanted: dict[bytes, bytes], number: int) -> None:
    for query in wanted:
        update = {"q": RawBSONDocument(query), "u": {"$set": {"touched": number}}}
        assert run(client, {"update": "orders", "updates": [update]})["n"] == 1, query
        wanted[query] = with_field(wanted[query], number)


def cold(query: bytes) -> bool:
    return not (query[4:5] == b"\x10" and 1_000 <= struct.unpack("<i", query[9:13])[0] < 2_000)


def wait_evicted(running: Thermocline, here: MongoClient[Any]) -> None:
    def evicted() -> bool:
        return not any(cold(query) for query in contents(here))

    try:
        wait_until("the cold ones are evicted", evicted, 100, 0.5)
    except TimeoutError as error:
        status = running.services["evictor"].status()
        left = [query for query in contents(here) if cold(query)]
        raise AssertionError(
            f"{error}; left: {left}; {status['evictor']}, {status['problems']}"
        ) from None


def test_every_byte_of_every_kind(running: Thermocline) -> None:
    wanted = documents()
    running.wait_state("Active")
    with (
        running.client() as client,
        running.fast.client() as here,
        running.archive.client() as there,
    ):
        for document in wanted.values():
            run(client, {"insert": "orders", "documents": [RawBSONDocument(document)]})
        # Only an update leaves Timestamp(0, 0) at the top level; an insert fills it in.
        zero = wrap(b"\x02_id\0\5\0\0\0zero\0", age(60), b"\x11ts\0" + ZERO)
        literal = {"$replaceWith": RawBSONDocument(wrap(b"\x03$literal\0" + zero))}
        run(client, {"insert": "orders", "documents": [{"_id": "zero"}]})
        run(client, {"update": "orders", "updates": [{"q": {"_id": "zero"}, "u": [literal]}]})
        wanted[DocId.of_document(zero).document()] = zero
        # Repeated names besides: no replacement and no pipeline writes it.
        mixed = wrap(b"\x02_id\0\6\0\0\0mixed\0", age(60), b"\x11ts\0" + ZERO, VALUES["repeated"])
        run(client, {"insert": "orders", "documents": [RawBSONDocument(mixed)]})
        mend = {"q": {"_id": "mixed"}, "u": {"$set": {"ts": Timestamp(0, 0)}}}
        run(client, {"update": "orders", "updates": [mend]})
        wanted[DocId.of_document(mixed).document()] = mixed
        touch(client, wanted, 1)
        running.wait_applied()
        assert differing(contents(there), wanted) == []

        wait_evicted(running, here)
        assert differing(contents(there), wanted) == []
        for query, document in wanted.items():
            reply = run(client, {"find": "orders", "filter": RawBSONDocument(query)})
            assert [bytes(d.raw) for d in reply["cursor"]["firstBatch"]] == [document], query
        for query in sorted(wanted)[::2]:
            delete = {"q": RawBSONDocument(query), "limit": 1}
            assert run(client, {"delete": "orders", "deletes": [delete]})["n"] == 1, query
            del wanted[query]
        running.wait_applied()
        assert differing(contents(there), wanted) == []
        touch(client, wanted, 2)  # promotes
        running.wait_applied()
        assert differing(contents(there), wanted) == []
        in_fast = contents(here)
        assert differing(in_fast, {q: wanted[q] for q in in_fast}) == []
        assert running.services["evictor"].status()["evictor"]["namespaces"][NS]["mismatches"] == 0


LARGEST = 16 * 1024 * 1024
"""MongoDB's limit of a document, in bytes."""


def sized(name: str, days: float, size: int = LARGEST, fill: bytes = b"x") -> bytes:
    """A document of exactly that many bytes; its last field is a string."""
    start = b"\x02_id\0" + struct.pack("<i", len(name) + 1) + name.encode() + b"\0"
    start += age(days) + ONE % b"n"
    length = size - len(wrap(start)) - len(b"\x02big\0") - 4 - 1
    made = wrap(start, b"\x02big\0" + struct.pack("<i", length + 1) + fill * length + b"\0")
    assert len(made) == size
    return made


class Inserts(CommandListener):
    """How many documents each insert had."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "insert":
            self.seen.append(len(event.command["documents"]))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


def test_documents_and_messages_as_large_as_mongodb_takes(running: Thermocline) -> None:
    documents = {
        "cold": sized("cold", 60),
        "replaced": sized("replaced", 1, fill=b"r"),
        "grown": sized("grown", 1, fill=b"g"),
        **{f"batch{i}": sized(f"batch{i}", 60 * i, 15 * 1024 * 1024) for i in range(2)},
        "batch2": sized("batch2", 1, 15 * 1024 * 1024, b"2"),
    }
    batch = [RawBSONDocument(documents[f"batch{i}"]) for i in range(3)]
    inserts = Inserts()
    running.wait_state("Active")
    with running.client(event_listeners=[inserts]) as client, running.fast.client() as here:
        orders: Any = client.shop.get_collection("orders", codec_options=RAW)
        orders.insert_one(RawBSONDocument(documents["cold"]))
        orders.insert_many(batch)
        for name in ("replaced", "grown"):
            start = documents[name][4 : documents[name].index(b"\x02big")]
            orders.insert_one(RawBSONDocument(wrap(start)))
        orders.replace_one({"_id": "replaced"}, RawBSONDocument(documents["replaced"]))
        big = bson.decode(documents["grown"])["big"]
        orders.update_one({"_id": "grown"}, {"$set": {"big": big}})
        assert inserts.seen == [1, 3, 1, 1], "the batch is one message"

        away = {"$in": ["cold", "batch1"]}
        gone = partial(here.shop.orders.find_one, {"_id": away}, {"_id": 1})
        wait_until("the cold ones are evicted", lambda: gone() is None, 60, 0.2)
        for name in away["$in"]:
            found = orders.find_one({"_id": name})
            assert found is not None
            assert bytes(found.raw) == documents[name]
            assert orders.update_one({"_id": name}, {"$set": {"n": 2}}).matched_count == 1, name
            documents[name] = documents[name].replace(ONE % b"n", TWO % b"n", 1)
        running.wait_applied()
        # As the archive has them, and in several replies.
        with running.archive.client() as there:
            for reader in (there, client):
                everything = contents(reader)
                wanted = {DocId.of_document(d).document(): d for d in documents.values()}
                assert everything.keys() == wanted.keys()
                assert [query for query, d in wanted.items() if everything[query] != d] == []


@pytest.mark.parametrize(
    "fields",
    [
        b"\x11$t\0" + ZERO + ONE % b"a" + TWO % b"a",
        b"\x11a.b\0" + ZERO + ONE % b"a" + TWO % b"a",
        b"\x11ts\0" + ZERO + b"\x11ts\0" + ZERO,
        b"\x11ts\0" + ZERO + ONE % b"ts",
        b"\x11\0" + ZERO + ONE % b"a" + TWO % b"a",
    ],
    ids=["dollar", "dotted", "zero twice", "zero and other", "no name"],
)
def test_the_forms_that_no_write_keeps_are_known(fields: bytes) -> None:
    """As docs/limits.md says: repeated names together with a Timestamp(0, 0) that no update can name."""
    assert form_of(wrap(ONE % b"_id", fields)) is Form.NONE

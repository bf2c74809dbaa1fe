"""How replay writes a document over another: the same bytes on every member of the archive.

A pipeline update is logged as a difference, as a replacement, or (of a document that isn't there) as an
insert, and a secondary applies what was logged.
"""

import itertools
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bson.binary import Binary
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, ReadPreference

from support.mongod import ReplicaSet
from support.processes import wait_until
from thermocline_common import names
from thermocline_common.fidelity import Form, form_of, is_plain
from thermocline_common.ids import DocId, wrap
from thermocline_feeder import writer
from thermocline_feeder.plan.batches import commands
from thermocline_feeder.plan.verdicts import Verdict

pytestmark = pytest.mark.integration
NS = "shop.o"
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
ME = uuid.uuid4()
ZERO = b"\0" * 8


def number(name: bytes, value: int) -> bytes:
    return b"\x10" + name + b"\0" + struct.pack("<i", value)


def sub(name: bytes, *fields: bytes) -> bytes:
    return b"\x03" + name + b"\0" + wrap(*fields)


def array(name: bytes, *values: bytes) -> bytes:
    """``values``: documents."""
    elements = (b"\x03%d\0" % i + value for i, value in enumerate(values))
    return b"\x04" + name + b"\0" + wrap(*elements)


def deep(leaf: int) -> bytes:
    document = wrap(number(b"x", leaf), b"\x02pad\0" + struct.pack("<i", 101) + b"p" * 100 + b"\0")
    for _ in range(176):
        document = wrap(b"\x03a\0" + document)
    return b"\x03v\0" + document


A, B, C = number(b"a", 1), number(b"b", 2), number(b"c", 3)
CONTENTS: Mapping[str, bytes] = {
    "nothing": b"",
    "int": number(b"v", 1),
    "long": b"\x12v\0" + struct.pack("<q", 1),
    "double": b"\x01v\0" + struct.pack("<d", 1),
    "zero": b"\x01v\0" + struct.pack("<d", 0.0),
    "minus zero": b"\x01v\0" + struct.pack("<d", -0.0),
    "nan": b"\x01v\0" + bytes.fromhex("000000000000f87f"),
    "nan with payload": b"\x01v\0" + bytes.fromhex("010000000000f87f"),
    "string": b"\x02v\0\2\0\0\0x\0",
    "symbol": b"\x0ev\0\2\0\0\0x\0",
    "order": A + B + C,
    "another order": C + A + B,
    "nested order": sub(b"v", A, B),
    "another nested order": sub(b"v", B, A),
    "nested dollar": sub(b"v", number(b"$a", 1), number(b"b.c", 1), number(b"", 1)),
    "nested dollar 2": sub(b"v", number(b"$a", 2), number(b"b.c", 2), number(b"", 2)),
    "dotted": number(b"a.b", 1) + sub(b"a", B),
    "dotted 2": number(b"a.b", 2) + sub(b"a", C),
    "array": array(b"v", wrap(A), wrap(B)),
    "longer array": array(b"v", wrap(A), wrap(C), wrap(B), wrap()),
    "empty array": b"\x04v\0" + wrap(),
    "names of a difference": number(b"u", 1) + number(b"d", 1) + sub(b"s", number(b"l", 1)),
    "names of a difference 2": number(b"i", 1) + number(b"d", 2) + sub(b"s", number(b"l", 2)),
    "deep": deep(1),
    "deep 2": deep(2),
    "nested zero timestamp": sub(b"v", b"\x11t\0" + ZERO),
    # Those that a pipeline must write, and those that repeat names:
    "zero timestamp": b"\x11t\0" + ZERO,
    "dollar": number(b"$price", 1),
    "like a difference": number(b"$v", 2) + sub(b"diff", sub(b"u", number(b"a", 9))),
    "repeated": number(b"r", 1) + number(b"r", 2),
    "repeated, one kept": number(b"r", 1),
    "repeated, other kept": number(b"r", 2),
    "repeated beside dollar": number(b"r", 1) + number(b"$v", 1) + number(b"r", 2),
    "repeated dollar": number(b"$r", 1) + number(b"$r", 2),
    "repeated beside zeros": number(b"r", 1)
    + b"\x11t\0"
    + ZERO
    + number(b"r", 2)
    + b"\x11v\0"
    + ZERO,
    "repeated within": sub(b"v", A, number(b"a", 9)),
    "repeated within, kept": sub(b"v", number(b"a", 9)),
}
PAD = b"\x02pad\0" + struct.pack("<i", 201) + b"p" * 200 + b"\0"
PAIRS = list(itertools.product(CONTENTS, CONTENTS))


def verdicts(which: int) -> list[Verdict]:
    made = []
    for _id, pair in enumerate(PAIRS):
        document = wrap(number(b"_id", _id), number(b"first", 1), CONTENTS[pair[which]], PAD)
        made.append(Verdict(NS, DocId.of_document(document), document))
    return made


def contents(client: MongoClient[Any]) -> dict[bytes, bytes]:
    found = client["shop"].get_collection("o", codec_options=RAW).find({})
    return {DocId.of_document(bytes(d.raw)).key: bytes(d.raw) for d in found}


def differing(found: Mapping[bytes, bytes], wanted: list[Verdict]) -> list[tuple[str, str]]:
    assert len(found) == len(wanted)
    return [PAIRS[i] for i, v in enumerate(wanted) if found.get(v.id.key) != v.document]


async def test_every_document_over_every_other_on_every_member(
    make_replica_set: Callable[..., ReplicaSet],
) -> None:
    archive = make_replica_set("archive", 2)
    before, after = verdicts(0), verdicts(1)
    alike = {
        v.id
        for v, w in zip(before, after, strict=True)
        if v.document and w.document and is_plain(v.document) and is_plain(w.document)
    }
    assert len(alike) > 500
    by_pipeline = {v.id for v in after if v.document and form_of(v.document) is Form.PIPELINE}
    assert len(by_pipeline) > 50
    async with archive.async_client() as client:
        await client["shop"].create_collection("o")
        await client[names.DATABASE][names.CHECKPOINT].insert_one(
            {"_id": names.CHECKPOINT_ID, "feeder": Binary.from_uuid(ME)}
        )
        await writer.apply(client, ME, commands(before), {"step": 1})
        over = commands(after, alike={NS: alike})
        assert sum(len(c.ids) for c in over if c.together) > 500
        # One that isn't there after all is noticed, and nothing is written.
        gone = next(i for c in over if c.together for i in c.ids)
        await client["shop"]["o"].delete_one(RawBSONDocument(gone.document()))
        with pytest.raises(writer.Unexpected):
            await writer.apply(client, ME, over, {"step": 0})
        with archive.client() as primary:
            unchanged = {v.id.key: v.document for v in before if v.id != gone}
            assert contents(primary) == unchanged
        await writer.apply(client, ME, commands(before), {"step": 1})
        await writer.apply(client, ME, over, {"step": 2})
    with archive.client() as primary:
        assert differing(contents(primary), after) == []
        diffs = primary["local"]["oplog.rs"].count_documents(
            {"o.applyOps.o.diff": {"$exists": True}}
        )
        assert diffs, "some were logged as differences"
    secondary = next(m for m in archive.members if m is not archive.primary())
    with secondary.direct_client(read_preference=ReadPreference.SECONDARY) as other:

        def arrived() -> bool:
            found = other[names.DATABASE][names.CHECKPOINT].find_one({})
            return bool(found and found.get("step") == 2)

        wait_until("the secondary has it", arrived, 60)
        assert differing(contents(other), after) == []

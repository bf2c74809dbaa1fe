"""Removal records, whatever the id is that they are about."""

import uuid

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from thermocline_common.ids import DocId, record_id, wrap
from thermocline_common.removals import Kind, Record
from thermocline_common.tiers import PLAIN, RAW
from thermocline_feeder.checkpoint import Quarantined

TOKEN = uuid.UUID(int=7)
IDS = {
    "number": DocId.of_document(bson.encode({"_id": 5})),
    "not UTF-8": DocId.of_value(0x02, b"\3\0\0\0\xff\xfe\0"),
    "far date": DocId.of_value(0x09, (2**60).to_bytes(8, "little")),
    "document": DocId.of_document(bson.encode({"_id": {"ns": 1, "id": 2}})),
    "symbol": DocId.of_value(0x0E, b"\2\0\0\0x\0"),
}


def record(doc_id: DocId) -> bytes:
    key = b"\x03_id\0" + record_id("shop.ö", doc_id)
    return wrap(
        key,
        b"\x02kind\0\x08\0\0\0deleted\0",
        b"\x05token\0\x10\0\0\0\x04" + TOKEN.bytes,
    )


@pytest.mark.parametrize("doc_id", IDS.values(), ids=IDS)
def test_a_record_of_any_id_is_read(doc_id: DocId) -> None:
    found = Record.parse(RawBSONDocument(record(doc_id), RAW))
    assert found == Record("shop.ö", doc_id, Kind.DELETED, TOKEN)
    assert (found.id.kind, found.id.value) == (doc_id.kind, doc_id.value)


@pytest.mark.parametrize("doc_id", IDS.values(), ids=IDS)
def test_a_quarantined_document_of_any_id_is_read(doc_id: DocId) -> None:
    entry = Quarantined("shop.ö", doc_id, -5, "why")
    assert Quarantined.parse(entry.raw()) == entry
    # As a proxy reads the checkpoint, for the namespace alone.
    assert bson.decode(bytes(entry.raw().raw), codec_options=PLAIN)["ns"] == "shop.ö"


@pytest.mark.parametrize(
    "raw", [wrap(), wrap(b"\x10_id\0\1\0\0\0"), bson.encode({"_id": {"ns": "a"}})]
)
def test_foreign_data_is_no_record(raw: bytes) -> None:
    with pytest.raises((KeyError, ValueError)):
        Record.parse(RawBSONDocument(raw, RAW))

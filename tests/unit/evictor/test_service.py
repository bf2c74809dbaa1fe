"""What the service remembers and shows."""

import bson

from thermocline_common.ids import DocId
from thermocline_evictor.service import mismatch_text, shown_id
from thermocline_evictor.tools import Report


def test_ids_are_shown_as_people_write_them() -> None:
    assert shown_id(DocId.of_document(bson.encode({"_id": 7}))) == "7"
    assert shown_id(DocId.of_document(bson.encode({"_id": {"a": "b"}}))) == '{"a": "b"}'
    bad = b"\x02_id\0\x02\0\0\0\xff\0"
    text = shown_id(DocId.of_document((len(bad) + 5).to_bytes(4, "little") + bad + b"\0"))
    assert "ff" in text


def test_a_mismatch_names_ids_and_what_to_do() -> None:
    assert mismatch_text("shop.orders", Report()) is None
    report = Report(mismatches=[DocId.of_document(bson.encode({"_id": 7}))])
    text = mismatch_text("shop.orders", report) or ""
    assert "shop.orders" in text
    assert "7" in text
    assert "compare" in text

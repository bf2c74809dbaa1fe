"""Open cursors are found in raw replies, and their homes remembered."""

import struct
from typing import Any

import bson
import pytest
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_proxy import cursors
from thermocline_proxy.cursors import Cursors, Home, describe, first_batch_is_empty, reply_cursor


def frame(document: dict[str, Any]) -> bytes:
    body = bson.encode(document)
    return struct.pack("<iiii", 21 + len(body), 1, 2, 2013) + bytes(5) + body


def cursor(cursor_id: int, batch: list[Any], name: str = "firstBatch", **more: Any) -> bytes:
    return frame({"cursor": {name: batch, **more, "id": Int64(cursor_id), "ns": "d.c"}, "ok": 1.0})


@pytest.mark.parametrize("batch", [[], [{"_id": 1, "s": "x" * 300}], [{"id": Int64(99)}, {"b": 1}]])
@pytest.mark.parametrize("name", ["firstBatch", "nextBatch"])
@pytest.mark.parametrize("cursor_id", [0, 1, 5_000_000_000, -7, 2**63 - 1])
@pytest.mark.parametrize("more", [{}, {"postBatchResumeToken": {"_data": "82"}}])
def test_the_id_is_found(batch: list[Any], name: str, cursor_id: int, more: dict[str, Any]) -> None:
    assert reply_cursor(cursor(cursor_id, batch, name, **more)) == cursor_id


@pytest.mark.parametrize(
    "document", [{"n": 1, "ok": 1.0}, {"ok": 0.0, "code": 2}, {"cursor": {}, "ok": 1.0}]
)
def test_other_replies_have_none(document: dict[str, Any]) -> None:
    assert reply_cursor(frame(document)) == 0


def test_empty_first_batches() -> None:
    assert first_batch_is_empty(cursor(0, []))
    assert not first_batch_is_empty(cursor(0, [{"_id": 1}]))
    assert not first_batch_is_empty(frame({"n": 0, "ok": 1.0}))


def test_homes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "MAX_CURSORS", 3)
    table = Cursors()
    for number in range(1, 6):
        table.remember(number, Tier.FAST, "h:1")
    assert len(table) == 3
    assert table.find(1) is None
    assert table.find(5) == Home(Tier.FAST, "h:1")
    table.forget(5)
    table.forget(5)
    assert table.find(5) is None


@pytest.mark.parametrize("name", ["firstBatch", "nextBatch"])
def test_a_reply_tells_the_collection_and_whether_it_is_a_stream(name: str) -> None:
    assert describe(cursor(7, [{"_id": 1}], name)) == ("d.c", False)
    token = {"postBatchResumeToken": {"_data": "82"}}
    assert describe(cursor(7, [], name, **token)) == ("d.c", True)
    assert describe(frame({"n": 1, "ok": 1.0})) == ("", False)

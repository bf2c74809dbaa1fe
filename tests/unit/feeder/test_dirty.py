"""Events -> dirty ids -> batches."""

import itertools
import uuid
from typing import Any

import pytest
from bson import Code, Decimal128, MaxKey, MinKey, ObjectId, Regex, decode, encode
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from hypothesis import given, strategies as st

from thermocline_common.ids import DocId, wrap
from thermocline_feeder.plan.dirty import Backlog, Batch, Change, Parser
from thermocline_feeder.plan.replies import batch_of, cursor_of, id_element, id_of

OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    uuid_representation=UuidRepresentation.STANDARD
)
UUID = uuid.UUID("00000000-0000-4000-8000-000000000001")


def event(
    kind: str, database: str, name: str, key: object, time: Timestamp, **more: object
) -> bytes:
    return encode(
        {
            "_id": {"_data": "82"},
            "operationType": kind,
            "clusterTime": time,
            "collectionUUID": Binary.from_uuid(UUID),
            "ns": {"db": database, "coll": name},
            **({} if key is None else {"documentKey": {"_id": key}}),
            **more,
        }
    )


def raw_id(value: Any) -> bytes:
    return encode({"_id": value})


T = Timestamp(100, 7)
CASES = {
    "insert": (
        event("insert", "shop", "a.b$ c", 5, T),
        Change(T, "shop.a.b$ c", UUID, raw_id(5), insert=True),
    ),
    "delete": (
        event("delete", "shop", "o", {"x": 1}, T),
        Change(T, "shop.o", UUID, raw_id({"x": 1})),
    ),
    "replace": (event("replace", "shop", "o", "s", T), Change(T, "shop.o", UUID, raw_id("s"))),
    "record": (
        event("update", "thermocline", "removed", {"ns": "shop.o", "id": [1, 2.5]}, T),
        Change(T, "shop.o", None, raw_id([1, 2.5])),
    ),
    "foreign data among the records": (event("insert", "thermocline", "removed", 7, T), Change(T)),
    "marker": (event("update", "thermocline", "markers", "epoch", T), Change(T)),
    "drop": (event("drop", "shop", "o", None, T), Change(T, "shop.o", UUID, None, True)),
    "index": (event("createIndexes", "shop", "o", None, T), Change(T)),
}


@pytest.mark.parametrize(("raw", "change"), CASES.values(), ids=CASES.keys())
def test_parses(raw: bytes, change: Change) -> None:
    parser = Parser()
    assert parser.parse(raw) == change
    assert parser.parse(raw) == change


def test_remembered_values_do_not_leak_between_events() -> None:
    parser = Parser()
    parser.parse(event("insert", "shop", "o", 1, Timestamp(1, 1)))
    assert parser.parse(event("insert", "shop", "p", 2, Timestamp(1, 2))) == Change(
        Timestamp(1, 2), "shop.p", UUID, raw_id(2), insert=True
    )


IDS: list[Any] = [
    5, Int64(5), 5.5, "s", "", ObjectId("0123456789abcdef01234567"), None, True, {"a": {"b": 1}}, {}, b"\0" * 40, MinKey(), MaxKey(),
    Timestamp(1, 2), Decimal128("5.00"), Regex("a", "i"), Code("x"), Code("x", {"y": 1}), uuid.UUID(int=7),
    "documentKey", {"documentKey": {"_id": 1}},
]  # fmt: skip


@pytest.mark.parametrize("value", IDS, ids=repr)
@pytest.mark.parametrize("name", ["orders", "documentKey", "a.b$ c", "ö", "x" * 200])
def test_a_usual_event_is_read_as_field_by_field(value: Any, name: str) -> None:
    key = encode({"_id": value}, codec_options=OPTIONS)
    raw = event("update", "shop", name, 1, T)
    whole = decode(raw, codec_options=OPTIONS)
    usual = encode({**whole, "documentKey": RawBSONDocument(key)}, codec_options=OPTIONS)
    unusual = encode(
        {"_id": 1, **{k: v for k, v in whole.items() if k != "_id"}, "documentKey": RawBSONDocument(key)},
        codec_options=OPTIONS,
    )  # fmt: skip
    expected = Change(T, f"shop.{name}", UUID, key)
    assert Parser().parse(usual) == expected
    assert Parser().parse(unusual) == expected


@pytest.mark.parametrize("value", IDS, ids=repr)
def test_the_first_field_of_a_document(value: Any) -> None:
    raw = encode({"_id": value, "more": 1}, codec_options=OPTIONS)
    assert id_element(raw) == DocId.of_document(raw).element()
    assert id_element(wrap(b"\x10more\0\1\0\0\0", raw[4:-1])) == b""


def test_takes_a_reply_apart() -> None:
    documents: list[dict[str, Any]] = [{"_id": 1, "a": [1, {"b": 2}]}, {"_id": "x"}]
    for name in ("firstBatch", "nextBatch"):
        cursor = {"postBatchResumeToken": {"x": 1}, name: documents, "id": 5}
        assert batch_of(encode({"cursor": cursor, "ok": 1})) == [encode(d) for d in documents]
    long = {"cursor": {"nextBatch": documents, "id": Int64(-7)}}
    assert cursor_of(encode(long)) == (-7, [encode(d) for d in documents])
    long["cursor"]["id"] = Int64(0)
    assert cursor_of(encode(long))[0] == 0
    with pytest.raises(KeyError):
        batch_of(encode({"ok": 1}))


@pytest.mark.parametrize("value", [1, 1.0, "s", None, {"a": 1}, b"bin", T, True])
def test_finds_the_id_as_the_shared_code_does(value: object) -> None:
    raw = encode({"_id": value, "a": 1})
    assert id_of(raw) == DocId.of_document(raw)
    assert id_of(raw).document() == raw_id(value)


def changes(*times: int) -> list[Change]:
    return [Change(Timestamp(t, 1), "shop.o", UUID, raw_id(i)) for i, t in enumerate(times)]


def times(batch: Batch | None) -> list[int]:
    return [] if batch is None else [change.time.time for change in batch.changes]


def test_a_transaction_whose_end_is_not_seen_is_held_back() -> None:
    backlog = Backlog()
    backlog.add(changes(1, 2, 2), caught_up=False)
    assert times(backlog.take(100)) == [1]
    assert backlog.take(100) is None
    backlog.add(changes(2, 3), caught_up=False)
    assert times(backlog.take(100)) == [2, 2, 2]
    backlog.add([], caught_up=True)
    assert times(backlog.take(100)) == [3]


def test_a_batch_ends_between_transactions() -> None:
    backlog = Backlog()
    backlog.add(changes(1, 2, 2, 2, 3), caught_up=True)
    assert times(backlog.take(2)) == [1, 2, 2, 2]
    assert times(backlog.take(2)) == [3]


@given(st.lists(st.integers(1, 4), max_size=40), st.integers(1, 6), st.data())
def test_every_change_comes_out_once_in_order(
    steps: list[int], limit: int, data: st.DataObject
) -> None:
    clock, all_times = 0, []
    for step in steps:
        clock += step - 1
        all_times.append(clock)
    backlog, out = Backlog(), []
    given_to = changes(*all_times)
    while given_to:
        size = data.draw(st.integers(1, len(given_to)))
        part, given_to = given_to[:size], given_to[size:]
        # The server is caught up only where a transaction isn't cut.
        backlog.add(part, caught_up=not given_to)
        while (batch := backlog.take(limit)) is not None:
            out.append(times(batch))
    flat = [t for batch in out for t in batch]
    assert flat == all_times
    for before, after in itertools.pairwise(out):
        assert before[-1] < after[0]


def test_splits_between_transactions() -> None:
    halves = Batch(changes(1, 2, 2, 2, 3)).split()
    assert halves is not None
    assert times(halves[0]) + times(halves[1]) == [1, 2, 2, 2, 3]
    assert halves[0].time < halves[1].time
    assert Batch(changes(2, 2, 2)).split() is None
    assert Batch(changes(1)).split() is None
    last = Batch(changes(1, 2, 2, 2, 2, 2)).split()
    assert last is not None
    assert times(last[0]) == [1]


def test_one_id_in_several_types_is_dirty_once() -> None:
    found = [Change(T, "shop.o", UUID, raw_id(v)) for v in (5, 5.0, 6)]
    dirty = Batch(found).dirty()
    assert len(dirty["shop.o"]) == 2


@pytest.mark.parametrize(
    ("changes", "inserted"),
    [
        ([(1, True)], {1}),
        ([(1, True), (1, False)], {1}),
        ([(1, False), (1, True)], set()),
        ([(1, False), (2, True)], {2}),
        ([(1, False)], set()),
    ],
    ids=["insert", "insert, update", "delete, insert", "another's insert", "update"],
)
def test_what_a_batch_inserts(changes: list[tuple[int, bool]], inserted: set[int]) -> None:
    made = [Change(T, "shop.o", UUID, raw_id(i), insert=insert) for i, insert in changes]
    made.append(Change(T, "shop.o", None, raw_id(9)))  # a record
    found = Batch(made).inserted().get("shop.o", set())
    assert {decode(i.document())["_id"] for i in found} == inserted

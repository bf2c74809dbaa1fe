"""The differential test's streams: the same from the same seed, of every kind, and comparisons that can fail."""

import datetime as dt
import itertools
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion

from support.differential.answers import differ, essence
from support.differential.layout import CLOSED_PARTITION
from support.differential.step import Compared, Step
from support.differential.streams import Stream
from support.differential.transactions import TransactionStream
from support.differential.watching import compare_events

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
CODEC: CodecOptions[Any] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
SCHEMA = {
    "create", "createIndexes", "createIndexes unique", "dropIndexes", "dropIndexes unique", "collMod", "collMod unique",
    "drop", "renameCollection", "dropDatabase", "shared index",
}  # fmt: skip


def steps(seed: int, partition: int, count: int) -> list[Step]:
    return list(itertools.islice(Stream(seed, partition, lambda: NOW), count))


def test_a_seed_says_all() -> None:
    one, two = (steps(7, 1, 400) for _ in range(2))
    encoded = [[bson.encode(step.command, codec_options=CODEC) for step in s] for s in (one, two)]
    assert encoded[0] == encoded[1]
    assert [step.kind for step in one] != [step.kind for step in steps(8, 1, 400)]


def test_every_kind_comes_and_can_be_sent() -> None:
    stream = Stream(3, 0, lambda: NOW)
    drawn = list(itertools.islice(stream, 8_000))
    kinds = {step.kind for step in drawn}
    assert kinds >= SCHEMA
    assert {"insert large", "output", "view find", "capped read", "series read"} <= kinds
    assert {step.limit for step in drawn if step.limit}
    assert all(bson.encode(step.command, codec_options=CODEC) for step in drawn[:1_000])
    own = {step.database for step in drawn if step.kind in SCHEMA and step.kind != "shared index"}
    assert own <= {"own0", "admin"}, "schemas change in the stream's own database alone"


def test_transactions_are_of_tiered_collections_of_untiered_ones_or_mixed() -> None:
    stream = TransactionStream(3, 0, lambda: NOW)
    drawn = list(itertools.islice(stream.transactions(3), 400))
    untiered = {"shop.notes", "own0.loose"}
    mixes = {frozenset(s.namespace in untiered for s in t.steps) for t in drawn}
    assert mixes == {frozenset({True}), frozenset({False}), frozenset({True, False})}


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_partitions_dont_meet(partition: int) -> None:
    others = [Stream(5, p, lambda: NOW) for p in (0, 1, 2, 100, 101, 102) if p != partition]
    mine = {bson.encode({"_id": value}) for value in Stream(5, partition, lambda: NOW).ids}
    assert len(mine) == 36
    assert all(bson.encode({"_id": value}) not in mine for other in others for value in other.ids)
    assert partition < CLOSED_PARTITION


OK = {"ok": 1.0}


def answer(
    *documents: dict[str, Any], **reply: Any
) -> tuple[dict[str, Any], list[int], list[bytes]]:
    return essence({**OK, **reply}), [len(documents)], [bson.encode(d) for d in documents]


@pytest.mark.parametrize(
    ("compared", "plain", "proxied", "equal"),
    [
        (Compared.MATCH, answer({"_id": 1}, {"_id": 2}), answer({"_id": 2}), True),
        (Compared.MATCH, answer({"_id": 1}), answer({"_id": 2}), False),
        (Compared.MATCH, answer({"_id": 1}), answer(), False),
        (Compared.MATCH, answer(), answer({"_id": 1}), False),
        (Compared.SET, answer(values=[1, "a"]), answer(values=["a", 1]), True),
        (Compared.SET, answer(values=[1]), answer(values=[1, 2]), False),
        (Compared.CODES, answer(numIndexesAfter=3), answer(numIndexesAfter=4), True),
        (Compared.CODES, answer(), answer(ok=0, code=27), False),
        (Compared.CATALOG, answer({"name": "a", "info": {"uuid": 1}}), answer({"name": "a", "info": {"uuid": 2}}), True),
        (Compared.CATALOG, answer({"name": "a", "options": {}}), answer({"name": "a", "options": {"x": 1}}), False),
        (Compared.ALL, answer(ok=0, code=2, codeName="BadValue"), answer(ok=0, code=2, codeName="Location2"), False),
        (Compared.ALL, answer(ok=0, code=112, errorLabels=["TransientTransactionError"]), answer(ok=0, code=112), False),
    ],
)  # fmt: skip
def test_what_is_compared(compared: Compared, plain: Any, proxied: Any, equal: bool) -> None:
    assert (differ(compared, False, plain, proxied) is None) is equal


def event(key: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"documentKey": bson.encode({"_id": key}), "operationType": kind, **fields}


@pytest.mark.parametrize(
    ("left", "right", "in_order", "loose"),
    [
        ([event(1, "insert"), event(2, "insert")], [event(1, "insert"), event(2, "insert")], True, True),
        ([event(1, "insert"), event(2, "insert")], [event(2, "insert"), event(1, "insert")], False, True),
        ([event(1, "insert"), event(1, "delete")], [event(1, "delete"), event(1, "insert")], False, False),
        ([event(1, "update")], [event(1, "replace")], False, False),
        ([event(1, "update", fullDocument=b"a")], [event(1, "update", fullDocument=b"b")], False, False),
        ([event(1, "insert")], [event(1, "insert"), event(1, "insert")], False, False),
        ([event(1, "insert")], [], False, False),
    ],
)  # fmt: skip
def test_events(left: Any, right: Any, in_order: bool, loose: bool) -> None:
    assert (compare_events(left, right, in_order=True) is None) is in_order
    assert (compare_events(left, right, in_order=False) is None) is loose

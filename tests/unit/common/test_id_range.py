"""Documents picked at random by their ids."""

import uuid
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId

from thermocline_common.id_range import between
from thermocline_common.ids import DocId, wrap


def doc_id(value: Any) -> DocId:
    return DocId.of_document(bson.encode({"_id": value}))


def value(found: DocId) -> Any:
    return bson.decode(wrap(found.element(b"_id")))["_id"]


SHARES = [n / 200 for n in range(200)]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1_000_000),
        (-5, Int64(1 << 40)),
        (0.5, 99),
        (ObjectId("5f" * 12), ObjectId("6a" * 12)),
        ("order-000001", "order-000999"),
        ("0a3f", "fe91"),
        ("Ada", "Zoe"),
        (Binary(uuid.UUID(int=5).bytes, 4), Binary(uuid.UUID(int=(1 << 128) - 1).bytes, 4)),
    ],
)
def test_many_different_ids_in_order(low: Any, high: Any) -> None:
    found = [value(between(doc_id(low), doc_id(high), share)) for share in SHARES]
    assert found == sorted(found)
    assert len(set(found)) == len(SHARES)


@pytest.mark.parametrize(("low", "high"), [({"a": 1}, {"a": 9}), (3, "x"), (None, True)])
def test_where_nothing_is_known_one_of_the_two(low: Any, high: Any) -> None:
    assert value(between(doc_id(low), doc_id(high), 0.2)) == low
    assert value(between(doc_id(low), doc_id(high), 0.8)) == high


def test_a_single_document() -> None:
    for one in (7, "x", ObjectId()):
        found = value(between(doc_id(one), doc_id(one), 0.7))
        assert found == one or str(found).startswith(str(one))

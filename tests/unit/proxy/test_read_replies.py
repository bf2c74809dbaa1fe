"""Raw replies: batches, final errors, explanations; and the judgement on ids."""

import uuid
from typing import Any

import bson
import pytest
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code
from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record
from thermocline_proxy.commands.command import Command
from thermocline_proxy.reads.by_key import Held, classify, narrowed
from thermocline_proxy.reads.replies import error_code, first_batch, is_final_error, name_tier


def raw(document: Any) -> bytes:
    return bytes(bson.encode(document))


def test_first_batch() -> None:
    cursor = {"firstBatch": [{"_id": 1}, {"_id": 2}], "id": Int64(2**40), "ns": "shop.orders"}
    found = first_batch(raw({"ok": 1.0, "cursor": cursor}))
    assert found is not None
    assert (found.cursor_id, found.namespace) == (2**40, "shop.orders")
    assert found.documents == (raw({"_id": 1}), raw({"_id": 2}))
    assert first_batch(raw({"n": 1, "ok": 1.0})) is None
    assert first_batch(raw({"cursor": {"nextBatch": [], "id": Int64(0)}, "ok": 1.0})) is None


@pytest.mark.parametrize(
    "code", [Code.NotWritablePrimary, Code.MaxTimeMSExpired, Code.Unauthorized]
)
def test_errors_that_are_the_answer(code: Code) -> None:
    assert is_final_error(error_code(raw({"ok": 0.0, "code": int(code)})))


@pytest.mark.parametrize("code", [Code.BadValue, Code.IndexNotFound, Code.NamespaceNotFound, 0])
def test_errors_that_only_the_archive_can_judge(code: int) -> None:
    assert not is_final_error(code)


def test_name_tier() -> None:
    named = bson.decode(name_tier(raw({"a": 1, "serverInfo": {"host": "h"}, "ok": 1.0}), Tier.FAST))
    assert named == {"a": 1, "serverInfo": {"host": "h", "tier": "fast"}, "ok": 1.0}


ONE, TWO = (DocId.of_document(raw({"_id": i})) for i in (1, 2))


def record(doc_id: DocId, kind: Kind) -> dict[DocId, Record]:
    return {doc_id: Record("a.b", doc_id, kind, uuid.uuid4())}


@pytest.mark.parametrize(
    ("present", "records", "held"),
    [
        ({ONE, TWO}, {}, Held.SETTLED),
        ({ONE, TWO}, record(ONE, Kind.DELETED), Held.SETTLED),
        ({ONE, TWO}, record(ONE, Kind.LEAVING), Held.LEAVING),
        ({ONE, TWO}, record(ONE, Kind.EVICTED), Held.LEAVING),
        ({ONE}, {}, Held.ABSENT),
        ({ONE}, record(TWO, Kind.DELETED), Held.SETTLED),
        ({ONE}, record(TWO, Kind.EXPIRED), Held.SETTLED),
        ({ONE}, record(TWO, Kind.EVICTED), Held.ABSENT),
        ({ONE}, record(TWO, Kind.LEAVING), Held.ABSENT),
        ({ONE}, {**record(TWO, Kind.DELETED), **record(ONE, Kind.LEAVING)}, Held.LEAVING),
        (set(), record(TWO, Kind.DELETED), Held.ABSENT),
    ],
)
def test_classify(present: set[DocId], records: dict[DocId, Record], held: Held) -> None:
    assert classify((ONE, TWO), frozenset(present), records) is held


def test_narrowed() -> None:
    command = Command(raw({"find": "orders", "filter": {"v": 1}, "$db": "shop"}))
    assert bson.decode(narrowed(command, ONE).body)["filter"] == {"$and": [{"v": 1}, {"_id": 1}]}
    bare = Command(raw({"find": "orders", "$db": "shop"}))
    assert bson.decode(narrowed(bare, ONE).body)["filter"] == {"$and": [{"_id": 1}]}

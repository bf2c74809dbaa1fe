"""The stage that keeps a pipeline to the unique keys that were asked for."""

from typing import Any

import bson
import pytest

from thermocline_common.coverage import UniqueIndex
from thermocline_common.ids import ARRAY, elements
from thermocline_proxy.writes.guards import OTHER_KEYS, guarded, stopped

INDEXES = (
    UniqueIndex("k_1", ("k", "a.b"), plain=True),
    UniqueIndex("p", ("k", "live"), plain=False),
)


def stages_of(update: tuple[int, bytes]) -> list[Any]:
    return list(bson.decode(bson.encode({}) if update[0] != ARRAY else update[1]).values())


def test_the_clients_stages_come_first_and_every_path_is_checked() -> None:
    mine = [{"$set": {"k": "$n"}}, {"$unset": "z"}]
    raw = bson.encode({"u": mine})
    _, kind, _, start, end = next(iter(elements(raw)))
    after = bson.encode({"_id": 1, "k": 5, "a": {"b": [1]}, "other": 7})
    *first, last = stages_of(guarded((kind, raw[start:end]), after, INDEXES))
    assert first == mine
    condition, kept, _ = last["$replaceWith"]["$cond"]
    assert kept == "$$ROOT"
    assert condition["$and"] == [
        {"$eq": [{"v": "$a"}, {"$literal": {"v": {"b": [1]}}}]},
        {"$eq": [{"v": "$k"}, {"$literal": {"v": 5}}]},
        {"$eq": [{"$type": "$live"}, "missing"]},
    ]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            {"ok": 1.0, "n": 0, "writeErrors": [{"index": 0, "code": OTHER_KEYS, "errmsg": ""}]},
            True,
        ),
        ({"ok": 0.0, "code": OTHER_KEYS, "errmsg": ""}, True),
        ({"ok": 1.0, "n": 0, "writeErrors": [{"index": 0, "code": 11000, "errmsg": ""}]}, False),
        ({"ok": 1.0, "n": 1, "nModified": 1}, False),
        ({"ok": 0.0, "code": 13, "errmsg": ""}, False),
    ],
)
def test_stopped(reply: dict[str, Any], expected: bool) -> None:
    assert stopped(bson.encode(reply)) is expected

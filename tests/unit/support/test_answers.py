"""The comparison behind the differential test notices what it must."""

from typing import Any

import pytest
from bson import encode

from support.differential.answers import differ, essence
from support.differential.step import Compared

OK = {"n": 1, "ok": 1.0}


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (OK, {**OK, "operationTime": 1, "$clusterTime": 2, "electionId": 3}, True),
        (OK, {"n": 2, "ok": 1.0}, False),
        (OK, {"ok": 0, "code": 11000}, False),
        ({"ok": 0, "code": 2, "errmsg": "a"}, {"ok": 0, "code": 2, "errmsg": "b"}, True),
        ({"ok": 0, "code": 2}, {"ok": 0, "code": 9}, False),
        ({**OK, "value": {"a": 1, "b": 2}}, {**OK, "value": {"b": 2, "a": 1}}, False),
        ({**OK, "value": {"a": 1}}, {**OK, "value": {"a": 1.0}}, False),
        ({**OK, "writeErrors": [{"index": 0, "code": 11000}]}, OK, False),
        (
            {**OK, "writeErrors": [{"index": 0, "code": 11000, "keyPattern": {"_id": 1}}]},
            {**OK, "writeErrors": [{"index": 0, "code": 11000, "keyPattern": {"sku": 1}}]},
            False,
        ),
        ({**OK, "retriedStmtIds": [0, 1]}, {**OK, "retriedStmtIds": [1, 0]}, True),
        ({**OK, "retriedStmtIds": [0]}, OK, False),
        ({**OK, "x": {"upserted": float("nan")}}, {**OK, "x": {"upserted": float("nan")}}, True),
        (
            {**OK, "lastErrorObject": {"upserted": float("nan")}},
            {**OK, "lastErrorObject": {"upserted": float("nan")}},
            True,
        ),
        (
            {**OK, "lastErrorObject": {"upserted": -0.0}},
            {**OK, "lastErrorObject": {"upserted": 0.0}},
            False,
        ),
    ],
)
def test_replies(left: dict[str, Any], right: dict[str, Any], equal: bool) -> None:
    found = differ(Compared.ALL, False, (essence(left), [], []), (essence(right), [], []))
    assert (found is None) is equal


@pytest.mark.parametrize(
    ("ordered", "left", "right", "equal"),
    [
        (True, [1, 2], [2, 1], False),
        (False, [1, 2], [2, 1], True),
        (False, [1, 2], [1, 2, 2], False),
        (False, [1, 2], [1], False),
    ],
)
def test_documents(ordered: bool, left: list[int], right: list[int], equal: bool) -> None:
    sides = [(essence(OK), [2], [encode({"_id": i}) for i in ids]) for ids in (left, right)]
    assert (differ(Compared.ALL, ordered, *sides) is None) is equal


def test_batches() -> None:
    assert differ(Compared.ALL, True, (essence(OK), [2, 1], []), (essence(OK), [3], []))

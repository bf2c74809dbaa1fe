"""What currentOp and replSetGetStatus say."""

from typing import Any

import pytest

from thermocline_evictor.members import Membership, cursors_on, membership, writes_on

NS = "shop.orders"


def test_membership() -> None:
    status = {
        "members": [
            {"name": "a:1", "state": 1, "self": True},
            {"name": "b:1", "state": 2, "health": 1},
            {"name": "c:1", "state": 8, "health": 0},
            {"name": "d:1", "state": 3, "health": 1},
            {"name": "e:1", "state": 7, "health": 1},
            {"name": "f:1", "state": 2, "health": 0},
        ]
    }
    assert membership(status) == Membership(
        frozenset({"a:1", "b:1"}), frozenset({"c:1", "d:1", "f:1"})
    )


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"type": "idleCursor", "ns": NS, "cursor": {"cursorId": 7, "tailable": False}}, {7}),
        ({"type": "op", "op": "getmore", "ns": NS, "cursor": {"cursorId": 7}}, {7}),
        ({"type": "idleCursor", "ns": NS, "cursor": {"cursorId": 7, "tailable": True}}, set()),
        ({"type": "idleCursor", "ns": "shop.other", "cursor": {"cursorId": 7}}, set()),
        ({"type": "op", "op": "query", "ns": NS}, set()),
    ],
)
def test_cursors_on(operation: Any, expected: set[int]) -> None:
    assert cursors_on([operation], NS) == expected


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "update", "ns": NS, "opid": 1}, {1}),
        ({"op": "remove", "ns": NS, "opid": 1}, {1}),
        ({"op": "insert", "ns": NS, "opid": 1}, {1}),
        ({"op": "command", "ns": NS, "opid": 1, "command": {"findAndModify": "orders"}}, {1}),
        ({"op": "command", "ns": "shop.$cmd", "opid": 1, "command": {"update": "orders"}}, {1}),
        ({"op": "command", "ns": "shop.$cmd", "opid": 1, "command": {"update": "other"}}, set()),
        ({"op": "update", "ns": "shop.other", "opid": 1}, set()),
        ({"op": "query", "ns": NS, "opid": 1, "command": {"find": "orders"}}, set()),
    ],
)
def test_writes_on(operation: Any, expected: set[int]) -> None:
    assert writes_on([operation], NS) == expected

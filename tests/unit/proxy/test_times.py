"""The tiers' cluster times are exchanged in place and never mixed."""

import struct
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_proxy import times
from thermocline_proxy.times import TierClock


def signed(time: Timestamp, key: int) -> dict[str, Any]:
    return {
        "clusterTime": time,
        "signature": {"hash": bytes([key]) * 20, "keyId": Int64(key)},
    }


def reply(time: Timestamp, key: int, **fields: Any) -> bytes:
    document = {**fields, "ok": 1.0, "$clusterTime": signed(time, key), "operationTime": time}
    body = bson.encode(document)
    return struct.pack("<iiii", 21 + len(body), 1, 2, 2013) + bytes(5) + body


def clock(time: Timestamp, key: int) -> TierClock:
    found = TierClock()
    found.learn_document({"$clusterTime": signed(time, key), "operationTime": time})
    return found


ARCHIVE = reply(Timestamp(2_000, 1), 1, n=1)


def test_the_tail_is_recognised() -> None:
    assert times.has_tail(ARCHIVE)
    assert ARCHIVE[-times.TAIL_SIZE :] == clock(Timestamp(2_000, 1), 1).tail
    assert ARCHIVE[-times.OK_TAIL_SIZE :] == clock(Timestamp(2_000, 1), 1).ok_tail


def test_a_reply_gets_the_other_tiers_times() -> None:
    fast = clock(Timestamp(1_000, 5), 2)
    swapped = times.swap_tail(ARCHIVE, fast.tail)
    document = bson.decode(swapped[21:])
    assert document == {
        "n": 1,
        "ok": 1.0,
        "$clusterTime": signed(Timestamp(1_000, 5), 2),
        "operationTime": Timestamp(1_000, 5),
    }
    assert struct.unpack_from("<i", swapped)[0] == len(swapped)


def test_without_a_known_time_the_reply_has_none() -> None:
    swapped = times.swap_tail(ARCHIVE, TierClock().tail)
    assert bson.decode(swapped[21:]) == {"n": 1, "ok": 1.0}
    assert struct.unpack_from("<i", swapped)[0] == len(swapped)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"ok": 0.0, "code": 1}, id="failed"),
        pytest.param({"ok": 1.0}, id="no times"),
        pytest.param(
            {"ok": 1.0, "x": 1, "operationTime": Timestamp(1, 1)}, id="something in between"
        ),
    ],
)
def test_other_ends_take_the_long_way(document: dict[str, Any]) -> None:
    body = bson.encode(document)
    assert not times.has_tail(bytes(21) + body)


def test_document_content_that_looks_like_a_tail_stays() -> None:
    inside = ARCHIVE[-times.OK_TAIL_SIZE :]
    outer = reply(Timestamp(9, 9), 1, payload=inside)
    swapped = times.swap_tail(outer, clock(Timestamp(1, 1), 2).tail)
    document = bson.decode(swapped[21:])
    assert document["payload"] == inside
    assert document["operationTime"] == Timestamp(1, 1)


def test_times_only_grow() -> None:
    found = clock(Timestamp(10, 0), 1)
    found.learn_document(
        {"$clusterTime": signed(Timestamp(9, 9), 1), "operationTime": Timestamp(11, 0)}
    )
    assert found.time == times.number(Timestamp(10, 0))
    assert found.operation_time == Timestamp(11, 0)


def test_an_unsigned_time_of_another_form_is_not_taken() -> None:
    found = TierClock()
    found.learn_document({"$clusterTime": {"clusterTime": Timestamp(5, 5)}})
    assert found.element == b""


def test_taking_times_out() -> None:
    body = bson.encode(
        {
            "ok": 0.0,
            "code": 10107,
            "topologyVersion": {"counter": 3},
            "$clusterTime": signed(Timestamp(7, 7), 1),
            "operationTime": Timestamp(6, 6),
        }
    )
    left, element, operation = times.take_times(body)
    assert bson.decode(left) == {"ok": 0.0, "code": 10107}
    assert len(element) == times.ELEMENT_SIZE
    assert times.timestamp(operation) == Timestamp(6, 6)


def test_a_commands_time_is_replaced() -> None:
    archive = clock(Timestamp(2_000, 1), 1)
    command = bson.encode({"find": "c", "$clusterTime": signed(Timestamp(3, 3), 2), "$db": "d"})
    assert bson.decode(times.replace_cluster_time(command, archive.element)) == {
        "find": "c",
        "$db": "d",
        "$clusterTime": signed(Timestamp(2_000, 1), 1),
    }
    assert "$clusterTime" not in bson.decode(times.replace_cluster_time(command, b""))

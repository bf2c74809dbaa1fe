"""Cluster times of the two tiers, kept apart at the level of bytes.

The tiers sign with different keys, and drivers keep the greatest ``operationTime`` they see. So a
client only ever gets the fast tier's times, and a tier only ever gets its own. A reply of a
replica-set member ends with ``$clusterTime`` and ``operationTime``, always in this form and
length, so that both are exchanged in place.
"""

import struct
from typing import Final

import bson
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from thermocline_common.ids import wrap
from thermocline_proxy.wire.header import INT32
from thermocline_proxy.wire.scan import scan

_U64: Final = struct.Struct("<Q")
ELEMENT_SIZE: Final = 102
"""Bytes of a signed ``$clusterTime`` element."""
TAIL_SIZE: Final = ELEMENT_SIZE + 15 + 8 + 1
"""``$clusterTime``, ``operationTime`` and the document's end."""
_HEAD: Final = b"\x03$clusterTime\0" + INT32.pack(88) + b"\x11clusterTime\0"
_HEAD_SIZE: Final = len(_HEAD)
_OPERATION: Final = b"\x11operationTime\0"
_OK: Final = b"\x01ok\0" + struct.pack("<d", 1.0)
OK_TAIL_SIZE: Final = 12 + TAIL_SIZE
"""``ok: 1.0`` and the tail."""
_FRAME_OVERHEAD: Final = 21
_CLUSTER: Final = b"$clusterTime"
_HIDDEN: Final = (b"$clusterTime", b"operationTime", b"topologyVersion")


class TierClock:
    """The latest signed ``$clusterTime`` and ``operationTime`` that a tier told.

    ``element``: the raw ``$clusterTime`` element, empty while none is known. ``tail``: what a reply
    with these times ends with, the document's last byte included.
    """

    __slots__ = ("element", "ok_tail", "operation", "tail", "time")

    def __init__(self) -> None:
        self.element = b""
        self.time = 0
        self.operation = 0
        self.tail = b"\0"
        self.ok_tail = b"-"
        """How a successful reply of this tier ends while its times stand still."""

    @property
    def operation_time(self) -> Timestamp | None:
        """The latest ``operationTime``; None while none is known."""
        return timestamp(self.operation) if self.operation else None

    def learn(self, element: bytes, operation: int) -> None:
        """Take news in: a raw ``$clusterTime`` element (may be empty) and an operation time (or 0)."""
        changed = False
        if len(element) == ELEMENT_SIZE:
            time = _U64.unpack_from(element, _HEAD_SIZE)[0]
            if time > self.time:
                self.time = time
                self.element = element
                changed = True
        if operation > self.operation:
            self.operation = operation
            changed = True
        if changed and self.element:
            operation_part = _OPERATION + _U64.pack(self.operation) if self.operation else b""
            self.tail = self.element + operation_part + b"\0"
            if operation_part:
                self.ok_tail = _OK + self.tail

    def learn_document(self, reply: RawBSONDocument | dict[str, object]) -> None:
        """Take the times out of a decoded reply, such as PyMongo returns."""
        cluster = reply.get("$clusterTime")
        operation = reply.get("operationTime")
        element = (
            bytes(bson.encode({"$clusterTime": cluster})[4:-1]) if cluster is not None else b""
        )
        self.learn(element, number(operation) if isinstance(operation, Timestamp) else 0)


def timestamp(value: int) -> Timestamp:
    """The Timestamp of BSON's 64 bits."""
    return Timestamp(value >> 32, value & 0xFFFFFFFF)


def number(value: Timestamp) -> int:
    """BSON's 64 bits of a Timestamp."""
    return (value.time << 32) | value.inc


def has_tail(frame: bytes) -> bool:
    """Whether a successful reply ends in the known form, right behind ``ok: 1.0``."""
    return (
        frame[-TAIL_SIZE : _HEAD_SIZE - TAIL_SIZE] == _HEAD
        and frame[-24:-9] == _OPERATION
        and frame[-TAIL_SIZE - 12 : -TAIL_SIZE] == _OK
    )


def learn_tail(frame: bytes, clock: TierClock) -> None:
    """Learn from a frame for which :func:`has_tail` holds."""
    time = _U64.unpack_from(frame, _HEAD_SIZE - TAIL_SIZE + len(frame))[0]
    operation = _U64.unpack_from(frame, len(frame) - 9)[0]
    if time > clock.time or operation > clock.operation:
        clock.learn(frame[-TAIL_SIZE:-24], operation)


def swap_tail(frame: bytes, tail: bytes) -> bytes:
    """The reply with another tail in place of its own (:func:`has_tail` must hold)."""
    if len(tail) == TAIL_SIZE:
        return frame[:-TAIL_SIZE] + tail
    change = len(tail) - TAIL_SIZE
    size = INT32.unpack_from(frame, 0)[0] + change
    body = INT32.unpack_from(frame, _FRAME_OVERHEAD)[0] + change
    return (
        INT32.pack(size) + frame[4:_FRAME_OVERHEAD] + INT32.pack(body)
        + frame[_FRAME_OVERHEAD + 4 : -TAIL_SIZE] + tail
    )  # fmt: skip


def take_times(body: bytes) -> tuple[bytes, bytes, int]:
    """A reply document without times and ``topologyVersion``; the ``$clusterTime`` element; the operation time."""
    spans = scan(body, 0)
    element = b""
    operation = 0
    if not any(name in spans for name in _HIDDEN):
        return body, element, operation
    parts = []
    for name, (_, begin, value, end) in spans.items():
        if name == b"$clusterTime":
            element = body[begin:end]
        elif name == b"operationTime":
            operation = _U64.unpack_from(body, value)[0]
        elif name != b"topologyVersion":
            parts.append(body[begin:end])
    return wrap(*parts), element, operation


def with_tail(body: bytes, tail: bytes) -> bytes:
    """A reply document followed by a tail (its end included)."""
    return INT32.pack(len(body) - 1 + len(tail)) + body[4:-1] + tail


def replace_cluster_time(body: bytes, element: bytes) -> bytes:
    """A command with the tier's ``$clusterTime`` element in place of the client's; without one where empty."""
    spans = scan(body, 0)
    parts = [body[begin:end] for name, (_, begin, _, end) in spans.items() if name != _CLUSTER]
    if element:
        parts.append(element)
    return wrap(*parts)

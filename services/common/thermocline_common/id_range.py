"""An ``_id`` somewhere between two others, so that a document can be picked at random. Pure.

``$sample`` won't do: it reads thousands of documents ahead, also for one.
"""

import string
import struct
from typing import Final

from thermocline_common.ids import BINARY, DOUBLE, INT32, INT64, OBJECT_ID, STRING, DocId

_NUMBERS: Final = {
    INT32: struct.Struct("<i"),
    INT64: struct.Struct("<q"),
    DOUBLE: struct.Struct("<d"),
}
_LENGTH: Final = struct.Struct("<i")
_ALPHABETS: Final = (
    string.digits,
    string.digits + "abcdef",
    string.digits + string.ascii_uppercase + string.ascii_lowercase,
)
_DETAIL: Final = 12
"""Bytes or characters to choose; what follows makes no difference to what is found."""


def between(low: DocId, high: DocId, share: float) -> DocId:
    """An id about ``share`` (0 to 1) of the way from ``low`` to ``high``, in MongoDB's order.

    Where the two say nothing about what lies between them, one of the two.
    """
    if low.kind in _NUMBERS and high.kind in _NUMBERS:
        first, last = (float(_NUMBERS[i.kind].unpack(i.value)[0]) for i in (low, high))
        return DocId.of_value(DOUBLE, _NUMBERS[DOUBLE].pack(first + share * (last - first)))
    if low.kind == high.kind:
        if low.kind == OBJECT_ID:
            return DocId.of_value(OBJECT_ID, _bytes(low.value, high.value, share))
        if low.kind == BINARY and low.value[:5] == high.value[:5]:
            return DocId.of_value(
                BINARY, low.value[:5] + _bytes(low.value[5:], high.value[5:], share)
            )
        if low.kind == STRING:
            text = _text(low.value[4:-1], high.value[4:-1], share)
            return DocId.of_value(STRING, _LENGTH.pack(len(text) + 1) + text + b"\0")
    return low if share < 0.5 else high


def _bytes(low: bytes, high: bytes, share: float) -> bytes:
    first, last = int.from_bytes(low), int.from_bytes(high)
    return (first + int(share * (last - first))).to_bytes(len(low))


def _text(low: bytes, high: bytes, share: float) -> bytes:
    """What both begin with, then characters such as theirs."""
    same = 0
    while same < min(len(low), len(high)) and low[same] == high[same]:
        same += 1
    rest = (low[same:] + high[same:]).decode("utf-8", "replace")
    alphabet = next((a for a in _ALPHABETS if set(rest) <= set(a)), _ALPHABETS[-1])
    chosen = ""
    for _ in range(_DETAIL):
        share *= len(alphabet)
        position = min(int(share), len(alphabet) - 1)
        chosen += alphabet[position]
        share -= position
    return low[:same] + chosen.encode()

"""Where the top-level fields of a raw command lie, found in one pass without decoding any value."""

import struct
from typing import TypeAlias

from thermocline_proxy.wire.header import INT32, WireError

Spans: TypeAlias = dict[bytes, tuple[int, int, int, int]]
"""Field name -> (BSON type, start of the element, start of its value, end), offsets into the frame."""

_unpack = INT32.unpack_from
# Type byte -> size of the value; variable ones by what their leading int32 leaves out.
_FIXED = {
    0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16,
    0xFF: 0, 0x7F: 0,
}  # fmt: skip
_PREFIXED = {0x02: 4, 0x03: 0, 0x04: 0, 0x05: 5, 0x0C: 16, 0x0D: 4, 0x0E: 4, 0x0F: 0}
_MINIMUM = {0x02: 1, 0x03: 5, 0x04: 5, 0x05: 0, 0x0C: 1, 0x0D: 1, 0x0E: 1, 0x0F: 14}


def scan(data: bytes, start: int) -> Spans:
    """The fields of the document that begins at ``start``, in order.

    Raises :class:`WireError`: 22 where the bytes are no BSON document, 40413 where a name repeats
    (two readers of such a command could take different values).
    """
    found: Spans = {}
    if len(data) - start < 5:
        raise WireError(22, "BSON data has to be at least 5 bytes")
    last = start + _unpack(data, start)[0] - 1
    position = start + 4
    if last < position or last >= len(data) or data[last] != 0:
        raise WireError(22, "Incorrect BSON length")
    count = 0
    try:
        while position < last:
            kind = data[position]
            stop = data.index(0, position + 1, last)
            value = stop + 1
            if kind in _FIXED:
                end = value + _FIXED[kind]
            elif kind in _PREFIXED:
                size = _unpack(data, value)[0]
                if size < _MINIMUM[kind]:
                    raise WireError(22, "Incorrect BSON length")
                end = value + size + _PREFIXED[kind]
            elif kind == 0x0B:
                end = data.index(0, data.index(0, value, last) + 1, last) + 1
            else:
                raise WireError(22, f"Unrecognized BSON type {kind}")
            if end > last:
                raise WireError(22, "Incorrect BSON length")
            found[data[position + 1 : stop]] = (kind, position, value, end)
            count += 1
            position = end
    except (ValueError, struct.error):
        raise WireError(22, "BSON element without an end") from None
    if count != len(found):
        raise WireError(
            40413, f"a field of the command is a duplicate field: {_repeated(data, start)}"
        )
    return found


def _repeated(data: bytes, start: int) -> str:
    seen: set[bytes] = set()
    position = start + 4
    while True:
        kind = data[position]
        stop = data.index(0, position + 1)
        name = data[position + 1 : stop]
        if name in seen:
            return name.decode("utf-8", "replace")
        seen.add(name)
        if kind in _FIXED:
            position = stop + 1 + _FIXED[kind]
        elif kind in _PREFIXED:
            position = stop + 1 + _unpack(data, stop + 1)[0] + _PREFIXED[kind]
        else:
            position = data.index(0, data.index(0, stop + 1) + 1) + 1

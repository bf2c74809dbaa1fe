"""A cursor's reply, taken apart as bytes: building Python objects of each document costs ten times as much."""

import struct

from thermocline_common.ids import (
    ARRAY,
    DOCUMENT,
    INT32,
    INT64,
    OBJECT_ID,
    DocId,
    elements,
    elements_within,
    value_end,
)

_INT = struct.Struct("<i")


def batch_of(reply: bytes) -> list[bytes]:
    """The documents of ``cursor.firstBatch`` or ``cursor.nextBatch``, raw. Raises ``KeyError`` without one."""
    return cursor_of(reply)[1]


def cursor_of(reply: bytes) -> tuple[int, list[bytes]]:
    """The cursor's id (0: there is no more) and its documents, raw. Raises ``KeyError`` without one."""
    for name, kind, _, start, end in elements(reply):
        if name == b"cursor" and kind == DOCUMENT:
            cursor_id, batch = 0, None
            for inner, inner_kind, _, inner_start, inner_end in elements_within(reply, start, end):
                if inner == b"id" and inner_kind == INT64:
                    cursor_id = int.from_bytes(reply[inner_start:inner_end], "little", signed=True)
                elif inner in (b"firstBatch", b"nextBatch") and inner_kind == ARRAY:
                    batch = _documents(reply, inner_start, inner_end)
            if batch is not None:
                return cursor_id, batch
    raise KeyError("cursor")


def _documents(data: bytes, start: int, end: int) -> list[bytes]:
    found = []
    position, last = start + 4, end - 1
    index, size_at = data.index, _INT.unpack_from
    while position < last:
        value = index(b"\0", position + 1) + 1
        (size,) = size_at(data, value)
        found.append(data[value : value + size])
        position = value + size
    return found


def fields(document: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Top-level fields: name -> (type, value bytes). The last one of a repeated name counts."""
    found = {}
    position, last = 4, len(document) - 1
    index = document.index
    while position < last:
        kind = document[position]
        value = index(b"\0", position + 1) + 1
        if kind in (DOCUMENT, ARRAY):
            end = value + int.from_bytes(document[value : value + 4], "little")
        else:
            end = value_end(document, kind, value)
        found[document[position + 1 : value - 1]] = (kind, document[value:end])
        position = end
    return found


def id_of(document: bytes) -> DocId:
    """The id of a stored document, whose first field it is. Raises ``KeyError`` if it has none."""
    if document[5:9] != b"_id\0":
        return DocId.of_document(document)
    kind = document[4]
    if kind == OBJECT_ID:
        value = document[9:21]
        return DocId(kind, value, b"\x07" + value)
    if kind == INT32:
        value = document[9:13]
        return DocId(kind, value, b"n%d" % int(_INT.unpack(value)[0]))
    return DocId.of_value(kind, document[9 : value_end(document, kind, 9)])


def id_element(document: bytes) -> bytes:
    """The bytes of the first field of a stored document, which is its ``_id``, type and name included.

    Empty where something else comes first.
    """
    if document[5:9] != b"_id\0":
        return b""
    kind = document[4]
    if kind == OBJECT_ID:
        return document[4:21]
    if kind == INT32:
        return document[4:13]
    return document[4 : value_end(document, kind, 9)]

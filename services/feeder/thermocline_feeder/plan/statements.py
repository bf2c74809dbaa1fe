"""Update statements as raw BSON, put together in one go: one is made for almost every document."""

import struct
from collections.abc import Sequence

from thermocline_common.ids import (
    BINARY,
    DATE,
    INT32,
    INT64,
    OBJECT_ID,
    STRING,
    DocId,
    id_list,
    index_names,
    wrap,
)

LEAST_TOGETHER = 4
MOST_TOGETHER = 50
"""Documents in one statement. What a statement costs by itself is shared by then; the server looks each of its
documents up in a list of so many."""
MOST_BYTES_TOGETHER = 256 * 1024
COMPARABLE = frozenset({STRING, BINARY, OBJECT_ID, DATE, INT32, INT64})
"""Types of an ``_id`` that may stand in :func:`together`: nothing of what ``$in`` or a list means is special to them."""

_QUERY = struct.Struct("<i3siB4s").pack
_LITERAL = struct.Struct("<4si3si14si10s").pack
_TOGETHER = struct.Struct("<3si3si14si14si3si10si").pack
_INT = struct.Struct("<i").pack
_UPSERT_AND_END = b"\x08upsert\0\1\0"


def replacement(doc_id: DocId, document: bytes) -> bytes:
    """``{q: {_id}, u: document, upsert: true}``."""
    value = doc_id.value
    length = len(value)
    query = _QUERY(length + len(document) + 30, b"\x03q\0", length + 10, doc_id.kind, b"_id\0")
    return b"".join((query, value, b"\0\x03u\0", document, _UPSERT_AND_END))


def literal(doc_id: DocId, document: bytes) -> bytes:
    """``{q: {_id}, u: [{$replaceWith: {$literal: document}}], upsert: true}``."""
    value = doc_id.value
    length, size = len(value), len(document)
    query = _QUERY(length + size + 72, b"\x03q\0", length + 10, doc_id.kind, b"_id\0")
    change = _LITERAL(
        b"\0\x04u\0",
        size + 42,
        b"\x030\0",
        size + 34,
        b"\x03$replaceWith\0",
        size + 15,
        b"\x03$literal\0",
    )
    return b"".join((query, value, change, document, b"\0\0\0", _UPSERT_AND_END))


def together(ids: Sequence[DocId], documents: Sequence[bytes]) -> bytes:
    """One statement that writes each of these documents over the one that is there, as :func:`literal` does.

    ``{q: {_id: {$in: ids}}, u: [{$replaceWith: {$arrayElemAt: [{$literal: documents}, {$indexOfArray:
    [{$literal: ids}, "$_id"]}]}}], multi: true}``. It inserts nothing, so the reply's ``n`` falls short where
    one isn't there. An ``_id`` that weren't found would choose another document (-1 is the last one's index), whose
    other ``_id`` the server refuses.
    """
    listed = id_list(ids)
    query = wrap(b"\x03_id\0", wrap(b"\x04$in\0", listed))
    place = wrap(b"\x030\0", wrap(b"\x04$literal\0", listed), b"\x021\0\5\0\0\0$_id\0")
    index = wrap(b"\x04$indexOfArray\0", place)
    names = index_names(len(documents))
    elements = [part for pair in zip(names, documents, strict=True) for part in (b"\x03", *pair)]
    # Sizes from the inside out, so that the documents are copied once.
    held = sum(map(len, elements)) + 5
    choice = held + len(index) + 26
    update = choice + 46
    return b"".join(
        (
            _INT(len(query) + update + 19),
            b"\x03q\0",
            query,
            _TOGETHER(
                b"\x04u\0",
                update,
                b"\x030\0",
                choice + 38,
                b"\x03$replaceWith\0",
                choice + 19,
                b"\x04$arrayElemAt\0",
                choice,
                b"\x030\0",
                held + 15,
                b"\x04$literal\0",
                held,
            ),
            *elements,
            b"\0\0\x031\0",
            index,
            b"\0\0\0\0\x08multi\0\1\0",
        )
    )

"""How a document's exact bytes can be written: what the server would change or choke on. Pure.

Seen on MongoDB 6.0.5: an insert or a replacement sets a top-level ``Timestamp(0, 0)``; a replacement
refuses top-level names that begin with ``$``. A pipeline update of a document that is there is logged
as the difference of the two, or as a replacement where that is shorter: making the difference aborts
the server where field names repeat in *either* document, and a secondary that applies the replacement sets
``Timestamp(0, 0)``. Where the document isn't there, it is logged as an insert, which keeps all bytes
everywhere.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from bson import decode, encode
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError

from thermocline_common.ids import ARRAY, CODE_W_SCOPE, DOCUMENT, TIMESTAMP, elements


class Form(Enum):
    """The way to write a document's bytes unchanged."""

    REPLACEMENT = "replacement"
    """Insert, or update with the document as replacement: fast, and right for almost all documents."""
    PIPELINE = "pipeline"
    """An upsert of ``[{$replaceWith: {$literal: document}}]`` where the document *isn't*: what is there
    is to be deleted first."""
    NONE = "none"
    """Needs both: no way is known that keeps the bytes."""


def repeats_names(document: bytes) -> bool:
    """Whether a field name repeats within one (nested) document."""
    seen: set[bytes] = set()
    for name, kind, _, start, end in elements(document):
        if name in seen:
            return True
        seen.add(name)
        if kind in (DOCUMENT, ARRAY) and end - start > 5:
            if repeats_names(document[start:end]):
                return True
        elif kind == CODE_W_SCOPE:
            code = int.from_bytes(document[start + 4 : start + 8], "little")
            if repeats_names(document[start + 8 + code : end]):
                return True
    return False


_PLAIN: CodecOptions[Mapping[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS
)


def is_plain(document: bytes) -> bool:
    """Whether the bytes are exactly what PyMongo makes of the document as Python sees it.

    Then no name repeats anywhere, because a ``dict`` can't hold one twice, and arrays are numbered as
    they should be. Two such documents may safely meet in a pipeline update (see above). It takes the
    C code a fraction of what :func:`repeats_names` takes; documents with types that Python lacks
    aren't plain, whatever their names.
    """
    try:
        return encode(decode(document, _PLAIN), codec_options=_PLAIN) == document
    except (BSONError, ValueError, TypeError, OverflowError, RecursionError):
        return False


def form_of(document: bytes) -> Form:
    """Which form writes this document's bytes unchanged."""
    special = False
    for name, kind, _, start, end in elements(document):
        if name[:1] == b"$" or (
            kind == TIMESTAMP and name != b"_id" and document[start:end] == b"\0" * 8
        ):
            special = True
            break
    if not special:
        return Form.REPLACEMENT
    return Form.NONE if repeats_names(document) else Form.PIPELINE

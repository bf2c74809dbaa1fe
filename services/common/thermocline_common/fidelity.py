"""How a document's exact bytes can be written: what the server would change or choke on. Pure.

Seen on MongoDB 6.0.5: an insert or a replacement sets a top-level ``Timestamp(0, 0)``; a replacement
refuses top-level names that begin with ``$``. A pipeline update of a document that is there is logged
as the difference of the two, or as a replacement where that is shorter: making the difference aborts
the server where field names repeat in *either* document, and a secondary that applies the replacement sets
``Timestamp(0, 0)``. Where the document isn't there, it is logged as an insert, which keeps all bytes
everywhere. An insert takes ``$`` names and repeated ones; ``$set`` of a field keeps ``Timestamp(0, 0)``, touches
nothing else, and is logged as just that.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from bson import decode, encode
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError

from thermocline_common.ids import ARRAY, CODE_W_SCOPE, DOCUMENT, TIMESTAMP, DocId, elements, wrap

_ZERO = b"\0" * 8


class Form(Enum):
    """The way to write a document's bytes unchanged."""

    REPLACEMENT = "replacement"
    """Insert, or update with the document as replacement: fast, and right for almost all documents."""
    PIPELINE = "pipeline"
    """An upsert of ``[{$replaceWith: {$literal: document}}]`` where the document *isn't*: what is there
    is to be deleted first."""
    INSERT = "insert"
    """An insert where the document *isn't*, then, in the same transaction, the update that :func:`zeroing`
    makes: for names that repeat beside such that begin with ``$``, or beside ``Timestamp(0, 0)``."""
    NONE = "none"
    """No way is known that keeps the bytes: a ``Timestamp(0, 0)`` is to be set that no update can name."""


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
            kind == TIMESTAMP and name != b"_id" and document[start:end] == _ZERO
        ):
            special = True
            break
    if not special:
        return Form.REPLACEMENT
    if not repeats_names(document):
        return Form.PIPELINE
    return Form.INSERT if _can_be_set(document) else Form.NONE


def _zeros(document: bytes) -> list[bytes]:
    return [
        name
        for name, kind, _, start, end in elements(document)
        if kind == TIMESTAMP and name != b"_id" and document[start:end] == _ZERO
    ]


def _can_be_set(document: bytes) -> bool:
    """Whether ``$set`` reaches each zero timestamp: by a path that means this top-level field alone."""
    zeros = _zeros(document)
    names = [name for name, *_ in elements(document) if name in zeros]
    return len(names) == len(set(zeros)) and all(map(_is_path, zeros))


def _is_path(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return bool(name) and name[:1] != b"$" and b"." not in name


def zeroing(document: bytes) -> bytes | None:
    """The raw update statement behind an insert of a document of :attr:`Form.INSERT`; None: nothing is to be set."""
    zeros = _zeros(document)
    if not zeros:
        return None
    fields = wrap(*(bytes((TIMESTAMP,)) + name + b"\0" + _ZERO for name in zeros))
    query = DocId.of_document(document).document()
    return wrap(b"\x03q\0" + query, b"\x03u\0" + wrap(b"\x03$set\0" + fields))

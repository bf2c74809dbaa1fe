"""How a document's exact bytes can be written: what the server would change or choke on. Pure.

Seen on MongoDB 6.0.5: an insert or a replacement sets a top-level ``Timestamp(0, 0)``; a replacement
refuses top-level names that begin with ``$``; a pipeline update aborts the server where field
names repeat.
"""

from enum import Enum

from thermocline_common.ids import ARRAY, CODE_W_SCOPE, DOCUMENT, TIMESTAMP, elements


class Form(Enum):
    """The way to write a document's bytes unchanged."""

    REPLACEMENT = "replacement"
    """Insert, or update with the document as replacement: fast, and right for almost all documents."""
    PIPELINE = "pipeline"
    """``[{$replaceWith: {$literal: document}}]``."""
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

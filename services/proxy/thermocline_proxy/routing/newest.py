"""Newest-first lists: which can be checked, and whether a batch of the fast tier is the whole answer.

F lacks only documents whose age is a scalar Date below the floor. Sorted by age descending they
all come behind a document whose own age is at or above the floor: if the last of ``n`` returned
documents is such a one, no missing document belongs among the ``n``.
"""

import struct
from collections.abc import Sequence
from typing import Final

from thermocline_common.ids import (
    CODE,
    CODE_W_SCOPE,
    DATE,
    DBPOINTER,
    DOCUMENT,
    INT32,
    INT64,
    REGEX,
    TIMESTAMP,
    elements,
)
from thermocline_proxy.commands.pipelines import whole_number

LARGEST_BATCH: Final = 1_000
DEFAULT_BATCH: Final = 101

_MAX_KEY: Final = 0x7F
# BSON types that MongoDB sorts above every Date.
_ABOVE_DATES: Final = frozenset((TIMESTAMP, REGEX, DBPOINTER, CODE, CODE_W_SCOPE, _MAX_KEY))
_LONG = struct.Struct("<q")


def sorts_newest_first(sort: bytes, path: str) -> bool:
    """Whether a raw sort document sorts by ``path`` descending, before anything else."""
    for name, kind, _, start, end in elements(sort):
        return name == path.encode() and whole_number(kind, sort[start:end]) == -1
    return False


def keeps_field(projection: bytes, path: str) -> bool:
    """Whether a raw find projection surely leaves the value at ``path`` as it is stored.

    Only plain inclusions and exclusions are understood: an expression could put another value there.
    """
    wanted = path.encode()
    included: list[bytes] = []
    excluded: list[bytes] = []
    for name, kind, _, start, end in elements(projection):
        if kind not in (INT32, INT64, 0x01, 0x08):
            return False
        value = projection[start:end]
        chosen = any(value) if kind != 0x01 else struct.unpack("<d", value)[0] != 0.0
        if name == b"_id" and wanted != b"_id" and not wanted.startswith(b"_id."):
            if chosen and not included:
                included.append(b"_id")
            continue
        (included if chosen else excluded).append(name)
    if any(_touches(name, wanted) for name in excluded):
        return False
    if included:
        return any(name == wanted or wanted.startswith(name + b".") for name in included)
    return True


def _touches(name: bytes, wanted: bytes) -> bool:
    return name == wanted or wanted.startswith(name + b".") or name.startswith(wanted + b".")


def proves(documents: Sequence[bytes], count: int, path: str, floor: int) -> bool:
    """Whether ``documents``, raw and in order, are the first ``count`` of all that exist in both tiers."""
    if count < 1 or len(documents) != count:
        return False
    value = scalar_at(documents[-1], path)
    if value is None:
        return False
    kind, raw = value
    if kind == DATE:
        return int(_LONG.unpack(raw)[0]) >= floor
    return kind in _ABOVE_DATES


def scalar_at(document: bytes, path: str) -> tuple[int, bytes] | None:
    """(BSON type, raw value) where the path leads through documents alone; None: missing, or an array."""
    kind, value = DOCUMENT, document
    for part in path.encode().split(b"."):
        if kind != DOCUMENT:
            return None
        for name, inner, _, start, end in elements(value):
            if name == part:
                kind, value = inner, value[start:end]
                break
        else:
            return None
    return kind, value

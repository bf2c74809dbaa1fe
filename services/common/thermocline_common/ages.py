"""A document's age, and the index that orders documents by it. Pure.

Ages are milliseconds since 1970 as MongoDB stores them: its dates reach beyond Python's years.
"""

import datetime as dt
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from thermocline_common.ids import DATE, DOCUMENT, elements

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LOWEST_DATE: Final = DatetimeMS(-(2**63))
"""The lowest date MongoDB stores: every scalar date is at or above it."""

_MILLISECOND = dt.timedelta(milliseconds=1)
_LONG = struct.Struct("<q")


def to_milliseconds(moment: dt.datetime) -> int:
    """A timezone-aware datetime as MongoDB stores it."""
    return (moment - EPOCH) // _MILLISECOND


def from_milliseconds(milliseconds: int) -> dt.datetime:
    """The other way. Raises ``OverflowError`` outside Python's years."""
    return EPOCH + milliseconds * _MILLISECOND


def scalar_date(document: bytes, path: str) -> int | None:
    """The age at a dotted path if it is a single Date, reached through documents alone.

    None for everything else, which must never leave F: missing, null, another type, an array at
    the end of the path or anywhere on it. Where a name repeats, the first counts, as it does for
    MongoDB's indexes.
    """
    *outer, last = path.encode().split(b".")
    for name in outer:
        kind, value = _value(document, name)
        if kind != DOCUMENT:
            return None
        document = value
    kind, value = _value(document, last)
    return int(_LONG.unpack(value)[0]) if kind == DATE else None


def _value(document: bytes, wanted: bytes) -> tuple[int | None, bytes]:
    """Type and raw bytes of a document's field; (None, b"") where it has no such field."""
    for name, kind, _, start, end in elements(document):
        if name == wanted:
            return kind, document[start:end]
    return None, b""


def odd_ages_filter(path: str, multikey: bool) -> dict[str, Any]:
    """A filter for the documents whose age isn't a scalar Date.

    Without arrays in the index, "no date at all" is exactly that, and is answered by two ranges of
    the index. An array of dates has its keys among the dates: then the type decides, for which
    every document is looked at.
    """
    if multikey:
        return {"$expr": {"$ne": [{"$type": f"${path}"}, "date"]}}
    return {path: {"$not": {"$gte": LOWEST_DATE}}}


def age_index(indexes: Iterable[Mapping[str, Any]], path: str) -> Mapping[str, Any] | None:
    """A full index that starts with the age field (specs as ``listIndexes`` gives them), or None.

    Full: not sparse, not partial, not hidden, simple collation, ordered. The one with the fewest
    fields is taken.
    """
    usable = [
        index
        for index in indexes
        if next(iter(index["key"])) == path
        and all(isinstance(order, int | float) for order in index["key"].values())
        and not index.get("sparse")
        and not index.get("hidden")
        and "partialFilterExpression" not in index
        and "collation" not in index
    ]
    return min(usable, key=lambda index: (len(index["key"]), index["name"]), default=None)


def is_multikey(explanation: Mapping[str, Any], path: str) -> bool:
    """Whether the index scan in an ``explain`` reply may hold arrays at ``path``.

    True where the reply doesn't say: then every document is looked at.
    """
    stages = [explanation.get("queryPlanner", {}).get("winningPlan", {})]
    while stages:
        stage = stages.pop()
        if stage.get("stage") == "IXSCAN":
            paths = stage.get("multiKeyPaths")
            if paths is not None and path in paths:
                return bool(paths[path])
            return bool(stage.get("isMultiKey", True))
        stages += [stage[name] for name in ("inputStage", "queryPlan") if name in stage]
    return True

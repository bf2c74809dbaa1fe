"""What a filter proves: a lower bound on the age field, equality on ``_id`` or on a unique key.

Every function takes a raw filter and answers only what holds for *every* document that the filter
can match. What isn't understood proves nothing: then the archive answers.

The lower bound rests on one fact. A document whose age is a *scalar* Date (no array anywhere on
the path) is seen by a predicate on exactly that path as that one Date. So it suffices to ask of
each predicate which scalar Dates it can match; arrays, other types and missing ages don't matter,
because the fast tier holds all documents of that kind.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from thermocline_common.coverage import UniqueIndex
from thermocline_common.ids import (
    ARRAY,
    BINARY,
    DATE,
    DECIMAL,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    OBJECT_ID,
    REGEX,
    STRING,
    TIMESTAMP,
    DocId,
    elements,
)

NO_DATE: Final = 1 << 63
"""The bound of a filter that matches no document with a scalar Date: later than every Date."""

BOOL: Final = 0x08
NULL: Final = 0x0A
MAX_DEPTH: Final = 64

_LONG = struct.Struct("<q")
# Operands of these types are never equal to a Date, and $gt, $gte, $lt, $lte compare them within
# their own type alone. Left out: MinKey and MaxKey, which compare with everything, and rare types.
_NEVER_A_DATE: Final = frozenset((DOUBLE, STRING, OBJECT_ID, BOOL, NULL, INT32, INT64, DECIMAL))
_ID_TYPES: Final = _NEVER_A_DATE | {DOCUMENT, BINARY, DATE, TIMESTAMP}
_KEY_TYPES: Final = _ID_TYPES - {DOCUMENT, NULL}

# Understood, and only able to narrow a conjunction: they prove nothing by themselves.
_NARROWING_CLAUSES: Final = frozenset((b"$nor", b"$expr", b"$where", b"$comment", b"$jsonSchema"))
_NARROWING_OPERATORS: Final = frozenset(
    (
        b"$eq", b"$gt", b"$gte", b"$lt", b"$lte", b"$in", b"$ne", b"$nin", b"$not", b"$exists",
        b"$type", b"$mod", b"$regex", b"$options", b"$size", b"$all", b"$elemMatch", b"$bitsAllSet",
        b"$bitsAllClear", b"$bitsAnySet", b"$bitsAnyClear", b"$geoWithin", b"$geoIntersects",
        b"$comment",
    )
)  # fmt: skip


class _NotUnderstood(Exception):
    """An operator that isn't known, or one whose answer depends on more than the document."""


def lower_bound(query: bytes, path: str) -> int | None:
    """A time below which no scalar Date at ``path`` matches ``query``; None: nothing is proven.

    Milliseconds since 1970 (negative before), :data:`NO_DATE` if no scalar Date matches at all.
    """
    try:
        return _conjunction(query, path.encode(), 0)
    except (_NotUnderstood, ValueError, struct.error, IndexError):
        return None


def understood(query: bytes) -> bool:
    """Whether every operator is known and decides by the document alone (so not ``$near``, ``$text``)."""
    try:
        _conjunction(query, b"", 0)
    except (_NotUnderstood, ValueError, struct.error, IndexError):
        return False
    return True


def _conjunction(query: bytes, path: bytes, depth: int) -> int | None:
    if depth > MAX_DEPTH:
        raise _NotUnderstood
    bound: int | None = None
    for name, kind, _, start, end in elements(query):
        value = query[start:end]
        if not name.startswith(b"$"):
            bound = _higher(bound, _field(name, kind, value, path))
        elif name == b"$and":
            for branch in _branches(kind, value):
                bound = _higher(bound, _conjunction(branch, path, depth + 1))
        elif name == b"$or":
            bound = _higher(
                bound, _any([_conjunction(b, path, depth + 1) for b in _branches(kind, value)])
            )
        elif name not in _NARROWING_CLAUSES:
            raise _NotUnderstood
    return bound


def _higher(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _any(bounds: list[int | None]) -> int | None:
    proven = [bound for bound in bounds if bound is not None]
    return min(proven) if proven and len(proven) == len(bounds) else None


def _branches(kind: int, value: bytes) -> Iterator[bytes]:
    if kind != ARRAY:
        raise _NotUnderstood
    for _, inner, _, start, end in elements(value):
        if inner != DOCUMENT:
            raise _NotUnderstood
        yield value[start:end]


def _field(name: bytes, kind: int, value: bytes, path: bytes) -> int | None:
    aged = name == path
    if kind != DOCUMENT:
        return _equal(kind, value) if aged else None
    if not is_operators(value):
        return None
    on_path = aged or path.startswith(name + b".")
    bound: int | None = None
    for operator, operand_kind, _, start, end in elements(value):
        if operator not in _NARROWING_OPERATORS:
            raise _NotUnderstood
        if operator == b"$elemMatch" and on_path:
            # It matches arrays alone, so no document in which the path leads to a scalar.
            bound = NO_DATE
        elif aged and operator in _BOUNDS:
            bound = _higher(bound, _BOUNDS[operator](operand_kind, value[start:end]))
    return bound


def is_operators(document: bytes) -> bool:
    """Whether a field's value is a document of operators (``{$gt: 1}``), not one to be equal to."""
    return len(document) > 5 and document[5:6] == b"$"


def _equal(kind: int, value: bytes) -> int | None:
    if kind == DATE:
        return int(_LONG.unpack(value)[0])
    return NO_DATE if kind in _NEVER_A_DATE else None


def _above(kind: int, value: bytes) -> int | None:
    bound = _equal(kind, value)
    return bound + 1 if kind == DATE and bound is not None else bound


def _below(kind: int, _value: bytes) -> int | None:
    return NO_DATE if kind in _NEVER_A_DATE else None


def _one_of(kind: int, value: bytes) -> int | None:
    if kind != ARRAY:
        raise _NotUnderstood
    bounds = [_equal(inner, value[start:end]) for _, inner, _, start, end in elements(value)]
    return _any(bounds) if bounds else NO_DATE


_BOUNDS: Final[Mapping[bytes, Callable[[int, bytes], int | None]]] = {
    b"$eq": _equal,
    b"$gte": _equal,
    b"$gt": _above,
    b"$lt": _below,
    b"$lte": _below,
    b"$in": _one_of,
}


def equalities(query: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Paths that every match equals a given value at: path -> (BSON type, raw value).

    Found in the filter itself and in nested ``$and``; where a path has several, the first.
    Implicit equality to a regular expression or to a document of operators is none.
    """
    found: dict[bytes, tuple[int, bytes]] = {}
    try:
        for name, kind, value in _conjuncts(query, 0):
            if kind == DOCUMENT and is_operators(value):
                for operator, inner, _, start, end in elements(value):
                    if operator == b"$eq":
                        found.setdefault(name, (inner, value[start:end]))
            elif kind != REGEX:
                found.setdefault(name, (kind, value))
    except (_NotUnderstood, ValueError, struct.error, IndexError):
        return {}
    return found


def _conjuncts(query: bytes, depth: int) -> Iterator[tuple[bytes, int, bytes]]:
    if depth > MAX_DEPTH:
        raise _NotUnderstood
    for name, kind, _, start, end in elements(query):
        if name == b"$and":
            for branch in _branches(kind, query[start:end]):
                yield from _conjuncts(branch, depth + 1)
        elif not name.startswith(b"$"):
            yield name, kind, query[start:end]


def point_id(query: bytes) -> DocId | None:
    """The one ``_id`` that a match can have, or None. Simple collation is the caller's to check."""
    if b"_id\0" not in query:
        return None
    return _as_id(equalities(query).get(b"_id"))


def _as_id(value: tuple[int, bytes] | None) -> DocId | None:
    # No _id is missing, undefined or an array (MongoDB refuses them); a regular expression matches.
    if value is None or value[0] not in _ID_TYPES:
        return None
    return DocId.of_value(*value)


def listed_ids(query: bytes) -> tuple[DocId, ...] | None:
    """The ids of ``_id: {$in: [...]}``, each once, or None where the filter doesn't bind ``_id`` so."""
    if b"$in\0" not in query or b"_id\0" not in query:
        return None
    try:
        for name, kind, value in _conjuncts(query, 0):
            if name != b"_id" or kind != DOCUMENT or not is_operators(value):
                continue
            for operator, inner, _, start, end in elements(value):
                if operator == b"$in" and inner == ARRAY:
                    return _ids(value[start:end])
    except (_NotUnderstood, ValueError, struct.error, IndexError):
        return None
    return None


def _ids(values: bytes) -> tuple[DocId, ...] | None:
    found = []
    for _, kind, _, start, end in elements(values):
        doc_id = _as_id((kind, values[start:end]))
        if doc_id is None:
            return None
        found.append(doc_id)
    return tuple(dict.fromkeys(found)) or None


def only_about(query: bytes, paths: frozenset[bytes]) -> bool:
    """Whether the filter is nothing but one equality (or one ``$in``) for each of these paths."""
    seen = set()
    for name, kind, _, start, end in elements(query):
        if name not in paths or name in seen:
            return False
        seen.add(name)
        value = query[start:end]
        if kind == DOCUMENT and is_operators(value):
            operators = [operator for operator, *_ in elements(value)]
            if operators not in ([b"$eq"], [b"$in"]):
                return False
    return seen == paths


def unique_key(
    query: bytes, indexes: tuple[UniqueIndex, ...]
) -> tuple[UniqueIndex, dict[bytes, tuple[int, bytes]]] | None:
    """A unique index whose whole key the filter gives, with its values; or None.

    Only plain indexes, scalar non-null values, and paths where "the document matches" and "the
    index holds that key" are the same even where the document has arrays: no numeric components,
    no two paths below one field (``a.x``, ``a.y``: different elements of an array ``a`` could match).
    """
    if not indexes:
        return None
    equal = equalities(query)
    for index in indexes:
        paths = [path.encode() for path in index.paths]
        first_parts = [path.split(b".", 1)[0] for path in paths]
        numeric = any(part.isdigit() for path in paths for part in path.split(b"."))
        if not index.plain or numeric or len(set(first_parts)) < len(paths):
            continue
        values = {path: equal[path] for path in paths if path in equal}
        if len(values) == len(paths) and all(kind in _KEY_TYPES for kind, _ in values.values()):
            return index, values
    return None

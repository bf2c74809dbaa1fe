"""What an aggregation pipeline reads, writes, and proves about the documents it needs."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from thermocline_common.ids import ARRAY, DOCUMENT, STRING, array, elements, wrap

# Stages that compute from their input alone: the fast tier answers as the archive would.
_PURE_STAGES: Final = frozenset(
    (
        b"$match", b"$project", b"$addFields", b"$set", b"$unset", b"$group", b"$sort", b"$limit",
        b"$skip", b"$unwind", b"$count", b"$sortByCount", b"$bucket", b"$bucketAuto",
        b"$replaceRoot", b"$replaceWith", b"$redact", b"$sample", b"$setWindowFields", b"$densify",
        b"$fill", b"$geoNear",
    )
)  # fmt: skip
_LOCAL_STAGES: Final = frozenset((b"$planCacheStats", b"$currentOp", b"$listLocalSessions"))
_JOINS: Final = frozenset((b"$lookup", b"$graphLookup", b"$unionWith"))
MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline, read.

    ``filter``: a raw filter that every document which matters satisfies (the leading ``$match``
    stages together). ``joined``: namespaces read besides the collection itself, at any depth.
    ``written``: target of ``$out`` or ``$merge``. ``change_stream``: it begins with ``$changeStream``.
    ``portable``: every stage, at any depth, is known to give the same answer on any server that has
    the documents. ``newest``: for ``$match``.., ``$sort``, ``$limit`` and nothing else: (raw sort, limit).
    ``about_server``: it begins with a stage that reads no documents, but what one server knows; MongoDB
    allows such stages no other read concern than ``local``.
    """

    filter: bytes = b"\x05\0\0\0\0"
    joined: frozenset[str] = frozenset()
    written: str | None = None
    change_stream: bool = False
    portable: bool = True
    newest: tuple[bytes, int] | None = None
    about_server: bool = False


class _Unreadable(Exception):
    """A stage has a shape that isn't known."""


Stage = tuple[bytes, int, bytes]


def read_pipeline(stages: list[bytes], database: str) -> Pipeline:
    """Read a pipeline's raw stage documents; ``database`` is the one that the command runs in.

    Never raises: what can't be read makes the result not ``portable``.
    """
    try:
        named = [_stage(stage) for stage in stages]
    except (_Unreadable, ValueError, struct.error, IndexError):
        return Pipeline(portable=False)
    names = tuple(name for name, _, _ in named)
    joined: set[str] = set()
    portable = _collect(named, database, joined, 0)
    written = None
    if names and names[-1] in (b"$out", b"$merge"):
        written = _target(named[-1], database)
        portable = False
    return Pipeline(
        filter=_leading_filter(named),
        joined=frozenset(joined),
        written=written,
        change_stream=bool(names) and names[0] == b"$changeStream",
        portable=portable,
        newest=_newest(named),
        about_server=bool(names) and names[0] in _LOCAL_STAGES,
    )


def _stage(document: bytes) -> Stage:
    found = [(name, kind, document[start:end]) for name, kind, _, start, end in elements(document)]
    if len(found) != 1:
        raise _Unreadable
    return found[0]


def _collect(stages: list[Stage], database: str, joined: set[str], depth: int) -> bool:
    """Add the namespaces that ``stages`` read; whether all stages are portable."""
    if depth > MAX_DEPTH:
        return False
    portable = True
    for name, kind, value in stages:
        try:
            if name in _JOINS:
                portable &= _join(name, kind, value, database, joined, depth)
            elif name == b"$facet":
                if kind != DOCUMENT:
                    raise _Unreadable
                for _, inner, _, start, end in elements(value):
                    portable &= _inner(inner, value[start:end], database, joined, depth)
            elif name not in _PURE_STAGES:
                portable = False
        except (_Unreadable, ValueError, struct.error, IndexError):
            portable = False
    return portable


def _inner(kind: int, value: bytes, database: str, joined: set[str], depth: int) -> bool:
    if kind != ARRAY:
        raise _Unreadable
    return _collect([_stage(stage) for stage in _documents(value)], database, joined, depth + 1)


def _documents(value: bytes) -> Iterator[bytes]:
    for _, kind, _, start, end in elements(value):
        if kind != DOCUMENT:
            raise _Unreadable
        yield value[start:end]


def _join(
    name: bytes, kind: int, value: bytes, database: str, joined: set[str], depth: int
) -> bool:
    if kind == STRING and name == b"$unionWith":
        joined.add(f"{database}.{_text(value)}")
        return True
    if kind != DOCUMENT:
        raise _Unreadable
    source = b"coll" if name == b"$unionWith" else b"from"
    portable, named = True, False
    for key, inner, _, start, end in elements(value):
        operand = value[start:end]
        if key == source:
            joined.add(_namespace(inner, operand, database))
            # ``from: {db, coll}`` exists for few collections; where it does, the archive decides.
            portable &= inner == STRING
            named = True
        elif key == b"pipeline":
            portable &= _inner(inner, operand, database, joined, depth)
    return portable and named


def _text(value: bytes) -> str:
    return value[4:-1].decode("utf-8", "replace")


def _namespace(kind: int, value: bytes, database: str) -> str:
    if kind == STRING:
        return f"{database}.{_text(value)}"
    if kind != DOCUMENT:
        raise _Unreadable
    parts = {
        key: _text(value[start:end])
        for key, inner, _, start, end in elements(value)
        if inner == STRING
    }
    if b"coll" not in parts:
        raise _Unreadable
    return f"{parts.get(b'db', database)}.{parts[b'coll']}"


def _target(stage: Stage, database: str) -> str:
    """The namespace that ``$out`` or ``$merge`` writes to; ``database.`` where it can't be read."""
    name, kind, value = stage
    try:
        if name == b"$merge" and kind == DOCUMENT:
            for key, inner, _, start, end in elements(value):
                if key == b"into":
                    return _namespace(inner, value[start:end], database)
            raise _Unreadable
        return _namespace(kind, value, database)
    except (_Unreadable, ValueError, struct.error, IndexError):
        return f"{database}."


def _leading_filter(stages: list[Stage]) -> bytes:
    """All of the ``$match`` stages before anything but ``$sort``, which changes no membership."""
    filters = []
    for name, kind, value in stages:
        if name == b"$match" and kind == DOCUMENT:
            filters.append(value)
        elif name != b"$sort":
            break
    if not filters:
        return wrap()
    if len(filters) == 1:
        return filters[0]
    return wrap(b"\x04$and\0" + array((DOCUMENT, one) for one in filters))


def _newest(stages: list[Stage]) -> tuple[bytes, int] | None:
    rest = [stage for stage in stages if stage[0] != b"$match"]
    shape = [name for name, _, _ in stages[-2:]]
    if len(rest) != 2 or shape != [b"$sort", b"$limit"] or rest[0][1] != DOCUMENT:
        return None
    limit = whole_number(rest[1][1], rest[1][2])
    return None if limit is None else (rest[0][2], limit)


def whole_number(kind: int, value: bytes) -> int | None:
    """A BSON number without a fraction, or None."""
    if kind == 0x10:
        return int(struct.unpack("<i", value)[0])
    if kind == 0x12:
        return int(struct.unpack("<q", value)[0])
    if kind == 0x01:
        number = float(struct.unpack("<d", value)[0])
        return int(number) if number.is_integer() else None
    return None

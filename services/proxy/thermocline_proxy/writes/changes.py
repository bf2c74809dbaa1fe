"""What an update may write: which paths, and under which ``_id`` an upsert would insert. Pure."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from thermocline_common.coverage import Coverage
from thermocline_common.ids import ARRAY, DOCUMENT, STRING, DocId, elements
from thermocline_proxy.writes.statements import fields_of

Field = tuple[int, bytes]
_FIELD_STAGES: Final = frozenset({b"$set", b"$addFields", b"$unset"})


class NewId(Enum):
    """Where the ``_id`` of a document that an upsert inserts comes from, if it isn't known."""

    GENERATED = "generated"
    """The server makes a new ObjectId."""
    UNKNOWN = "unknown"
    """Only running the upsert tells."""


class Touch(Enum):
    """Whether an update can change what an index holds."""

    NO = "no"
    PERHAPS = "perhaps"
    REPLACES = "replaces"
    """The whole document is replaced."""


def is_replacement(update: Field) -> bool:
    """Whether it is a whole document rather than modifiers or a pipeline."""
    kind, raw = update
    return kind == DOCUMENT and not (len(raw) > 5 and raw[5:6] == b"$")


def is_pipeline(update: Field) -> bool:
    """Whether it is an aggregation pipeline."""
    return update[0] == ARRAY


def written_paths(update: Field) -> frozenset[bytes] | None:
    """The paths that modifiers or a pipeline of field stages can write; None: any path."""
    kind, raw = update
    if is_replacement(update):
        return None
    paths: set[bytes] = set()
    if kind == ARRAY:
        for _, stage_kind, _, start, end in elements(raw):
            found = _stage_paths(raw[start:end]) if stage_kind == DOCUMENT else None
            if found is None:
                return None
            paths |= found
        return frozenset(paths)
    for operator, inner, _, start, end in elements(raw):
        if inner != DOCUMENT:
            return None
        for path, target_kind, _, value_start, value_end in elements(raw[start:end]):
            paths.add(path)
            if operator == b"$rename" and target_kind == STRING:
                paths.add(raw[start:end][value_start + 4 : value_end - 1])
    return frozenset(paths)


def _stage_paths(stage: bytes) -> set[bytes] | None:
    parts = list(elements(stage))
    if len(parts) != 1 or parts[0][0] not in _FIELD_STAGES:
        return None
    name, kind, _, start, end = parts[0]
    value = stage[start:end]
    if name == b"$unset":
        if kind == STRING:
            return {value[4:-1]}
        if kind != ARRAY:
            return None
        return {value[s + 4 : e - 1] for _, k, _, s, e in elements(value) if k == STRING}
    if kind != DOCUMENT:
        return None
    return {path for path, *_ in elements(value)}


def rests_on(update: Field, query: bytes, paths: Iterable[str]) -> frozenset[bytes] | None:
    """The top-level fields on which depends what modifiers make of the values at index paths; None: any.

    A modifier sees the value at its own path; a renamed one comes from elsewhere, and a position (``$``)
    from what the filter matched.
    """
    roots = {path.partition(".")[0].encode() for path in paths}
    for operator, inner, _, start, end in elements(update[1]):
        if inner != DOCUMENT:
            return None
        for path, *_ in elements(update[1][start:end]):
            components = path.split(b".")
            if operator == b"$rename":
                roots.add(components[0])
            if b"$" in components:
                fields = [name.split(b".")[0] for name, *_ in elements(query)]
                if any(name.startswith(b"$") for name in fields):
                    return None
                roots |= set(fields)
    return frozenset(roots) if all(map(_is_name, roots)) else None


def _is_name(root: bytes) -> bool:
    """Whether an expression can name such a field."""
    try:
        return bool(root.decode())
    except UnicodeDecodeError:
        return False


def _components(path: bytes) -> list[bytes]:
    """The field names of a path, without array positions, which an index path doesn't show."""
    return [c for c in path.split(b".") if c and not c.isdigit() and c[:1] != b"$"]


def related(one: bytes, other: bytes) -> bool:
    """Whether writing one path can change a value at the other: one leads to, or through, the other."""
    left, right = _components(one), _components(other)
    shorter = min(len(left), len(right))
    return left[:shorter] == right[:shorter]


def touch(update: Field, paths: Iterable[str]) -> Touch:
    """Whether the update can change values at one of these index paths."""
    wanted = [path.encode() for path in paths]
    if not wanted:
        return Touch.NO
    if is_replacement(update):
        return Touch.REPLACES
    written = written_paths(update)
    if written is None:
        return Touch.PERHAPS
    if any(related(one, other) for one in written for other in wanted):
        return Touch.PERHAPS
    return Touch.NO


def touches_unique(coverage: Coverage, update: Field | None) -> bool:
    """Whether the update can change a key of one of the namespace's unique indexes."""
    if update is None or not coverage.unique:
        return False
    paths = [path for index in coverage.unique for path in index.paths]
    return touch(update, paths) is not Touch.NO


def new_id(query: bytes, update: Field) -> DocId | NewId:
    """The ``_id`` of the document that the upsert would insert, of a filter without an ``_id`` equality."""
    if _mentions_id(query) or is_pipeline(update):
        return NewId.UNKNOWN
    raw = update[1]
    if is_replacement(update):
        given = fields_of(raw).get(b"_id")
        return NewId.GENERATED if given is None else DocId.of_value(*given)
    for operator, kind, _, start, end in elements(raw):
        if kind != DOCUMENT:
            return NewId.UNKNOWN
        for path, (value_kind, value) in fields_of(raw[start:end]).items():
            if path == b"_id" and operator in (b"$set", b"$setOnInsert"):
                return DocId.of_value(value_kind, value)
            to = value[4:-1] if operator == b"$rename" and value_kind == STRING else b""
            if b"_id" in (path.split(b".")[0], to.split(b".")[0]):
                return NewId.UNKNOWN
    return NewId.GENERATED


def _mentions_id(query: bytes) -> bool:
    for name, kind, _, start, end in elements(query):
        if name.split(b".")[0] == b"_id":
            return True
        if name in (b"$and", b"$or") and kind == ARRAY:
            value = query[start:end]
            branches: Iterator[bytes] = (
                value[s:e] for _, k, _, s, e in elements(value) if k == DOCUMENT
            )
            if any(map(_mentions_id, branches)):
                return True
    return False

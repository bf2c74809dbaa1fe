"""Unique indexes besides ``_id``'s: which keys a document has in them, and how to ask for their holders. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import bson

from thermocline_common.ids import ARRAY, DOCUMENT, array, elements, value_key, wrap
from thermocline_proxy.writes.filters import both, is_simple_collation
from thermocline_proxy.writes.statements import fields_of, number, truth

_NULL: Final = 0x0A
Value = tuple[int, bytes]


class NotDecidable(ValueError):
    """A unique index of a kind whose keys can't be looked up."""


@dataclass(frozen=True, slots=True)
class UniqueSpec:
    """A unique index. ``partial``: its raw filter; ``collation``: its raw collation unless simple."""

    name: str
    paths: tuple[bytes, ...]
    sparse: bool = False
    partial: bytes | None = None
    collation: bytes | None = None


def parse_spec(raw: bytes) -> UniqueSpec | None:
    """One entry of ``listIndexes``; None: not unique, or ``_id``'s. Raises :class:`NotDecidable`."""
    fields = fields_of(raw)
    if not truth(fields.get(b"unique")):
        return None
    name = fields[b"name"][1][4:-1].decode("utf-8", "replace")
    paths = []
    for path, kind, _, start, end in elements(fields[b"key"][1]):
        if kind not in (0x01, 0x10, 0x12) or number((kind, fields[b"key"][1][start:end])) == 0:
            raise NotDecidable(f"the unique index {name} isn't a plain ascending or descending one")
        paths.append(path)
    collation = fields.get(b"collation")
    partial = fields.get(b"partialFilterExpression")
    return UniqueSpec(
        name,
        tuple(paths),
        truth(fields.get(b"sparse")),
        None if partial is None else partial[1],
        None if collation is None or is_simple_collation(collation[1]) else collation[1],
    )


def values_at(document: bytes, path: bytes) -> list[Value]:
    """Every value an index could hold for the path: through arrays, their elements, null if missing."""
    found = _walk(DOCUMENT, document, path.split(b"."))
    unique: dict[bytes, Value] = {}
    for kind, raw in found or [(_NULL, b"")]:
        unique.setdefault(value_key(kind, raw), (kind, raw))
    return list(unique.values())


def _walk(kind: int, raw: bytes, components: list[bytes]) -> list[Value]:
    if not components:
        if kind != ARRAY:
            return [(kind, raw)]
        inner = [(k, raw[s:e]) for _, k, _, s, e in elements(raw)]
        return [(kind, raw), *inner]
    head, rest = components[0], components[1:]
    if kind == DOCUMENT:
        field = fields_of(raw).get(head)
        return [] if field is None else _walk(*field, rest)
    if kind != ARRAY:
        return []
    out: list[Value] = []
    for name, k, _, s, e in elements(raw):
        if name == head:
            out += _walk(k, raw[s:e], rest)
        if k == DOCUMENT:
            out += _walk(k, raw[s:e], components) or [(_NULL, b"")]
    return out


def keys(document: bytes, spec: UniqueSpec) -> tuple[tuple[bytes, ...], ...]:
    """The document's values per path of the index, comparable: equal where MongoDB calls them equal."""
    return tuple(
        tuple(sorted(value_key(*value) for value in values_at(document, path)))
        for path in spec.paths
    )


def holders_filter(document: bytes, spec: UniqueSpec) -> bytes | None:
    """A filter for every document that could hold one of this one's keys; None: it has no key there."""
    conditions = []
    present = False
    for path in spec.paths:
        values = values_at(document, path)
        present = present or any(kind != _NULL for kind, _ in values) or _exists(document, path)
        conditions.append(_equal_to_one(path, values))
    if spec.sparse:
        if not present:
            return None
        exists = wrap(bytes(bson.encode({"$exists": True})[4:-1]))
        some = array((DOCUMENT, wrap(b"\x03" + path + b"\0" + exists)) for path in spec.paths)
        conditions.append(wrap(b"\x04$or\0" + some))
    if spec.partial is not None:
        conditions.append(spec.partial)
    return both(*conditions)


def _exists(document: bytes, path: bytes) -> bool:
    return bool(_walk(DOCUMENT, document, path.split(b".")))


def _equal_to_one(path: bytes, values: Iterable[Value]) -> bytes:
    equalities = [
        (DOCUMENT, wrap(b"\x03" + path + b"\0" + wrap(bytes((kind,)) + b"$eq\0" + raw)))
        for kind, raw in values
    ]
    if len(equalities) == 1:
        return equalities[0][1]
    return wrap(b"\x04$or\0" + array(equalities))


def any_of(filters: list[bytes]) -> bytes:
    """The filter ``{$or: [...]}``."""
    return wrap(b"\x04$or\0" + array((DOCUMENT, each) for each in filters))


def by_collation(
    documents: Iterable[bytes], specs: Iterable[UniqueSpec]
) -> Mapping[bytes | None, list[bytes]]:
    """The filters for all holders, grouped by the collation that they must be asked under."""
    grouped: dict[bytes | None, list[bytes]] = {}
    every = list(documents)
    for spec in specs:
        for document in every:
            wanted = holders_filter(document, spec)
            if wanted is not None:
                grouped.setdefault(spec.collation, []).append(wanted)
    return grouped

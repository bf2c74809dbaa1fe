"""Unique indexes besides ``_id``'s: which keys a document has in them, and how to ask for their holders. Pure."""

import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import bson

from thermocline_common.ids import ARRAY, DOCUMENT, array, elements, value_key, wrap
from thermocline_common.portions import cut
from thermocline_proxy.writes.filters import both, is_simple_collation
from thermocline_proxy.writes.statements import fields_of, number, truth

_NULL: Final = 0x0A
_MIN_KEY: Final = 0xFF
_MAX_KEY: Final = 0x7F
_NAN: Final = struct.pack("<d", math.nan)
"""The lowest number, and so the first value behind null."""
_MOST_COMBINATIONS: Final = 1_000
Value = tuple[int, bytes]


class NotDecidable(ValueError):
    """A unique index of a kind whose keys can't be looked up."""


@dataclass(frozen=True, slots=True)
class UniqueSpec:
    """A unique index. ``partial``: its raw filter; ``collation``: its raw collation unless simple.

    ``descending``: the paths with a negative direction.
    """

    name: str
    paths: tuple[bytes, ...]
    descending: frozenset[bytes] = frozenset()
    sparse: bool = False
    partial: bytes | None = None
    collation: bytes | None = None


def parse_spec(raw: bytes) -> UniqueSpec | None:
    """One entry of ``listIndexes``; None: not unique, or ``_id``'s. Raises :class:`NotDecidable`."""
    fields = fields_of(raw)
    if not truth(fields.get(b"unique")):
        return None
    name = fields[b"name"][1][4:-1].decode("utf-8", "replace")
    directions: dict[bytes, int] = {}
    for path, key in fields_of(fields[b"key"][1]).items():
        directions[path] = number(key) if key[0] in (0x01, 0x10, 0x12) else 0
        if not directions[path]:
            raise NotDecidable(f"the unique index {name} isn't a plain ascending or descending one")
    collation = fields.get(b"collation")
    partial = fields.get(b"partialFilterExpression")
    return UniqueSpec(
        name,
        tuple(directions),
        frozenset(path for path, direction in directions.items() if direction < 0),
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
        out += (_walk(k, raw[s:e], components) if k == DOCUMENT else []) or [(_NULL, b"")]
    return out


def keys(document: bytes, spec: UniqueSpec) -> tuple[tuple[bytes, ...], ...]:
    """The document's values per path of the index, comparable: equal where MongoDB calls them equal."""
    return tuple(
        tuple(sorted(value_key(*value) for value in values_at(document, path)))
        for path in spec.paths
    )


@dataclass(frozen=True, slots=True)
class Lookup:
    """A ``find`` for the holders of keys: a filter, perhaps within a range of the index.

    ``bounds``: raw ``min`` (included) and ``max`` (excluded) of index ``hint``.
    """

    query: bytes
    collation: bytes | None = None
    hint: str | None = None
    bounds: tuple[bytes, bytes] | None = None


def holders(document: bytes, spec: UniqueSpec) -> list[Lookup]:
    """Look-ups that find every document which could hold one of this one's keys (and a few more).

    A missing value on a dotted path is a null in the index also for arrays that are empty or hold
    scalars, which no filter for null finds: those are looked for in the index itself.
    Raises :class:`NotDecidable`.
    """
    values = {path: values_at(document, path) for path in spec.paths}
    if spec.sparse and not any(_exists(document, path) for path in spec.paths):
        return []
    asked = {p: [v for v in vs if not _hidden_null(p, v)] for p, vs in values.items()}
    lookups = []
    if all(asked.values()):
        conditions = [_equal_to_one(path, found) for path, found in asked.items()]
        if spec.sparse:
            conditions.append(_any_exists(spec))
        lookups.append(Lookup(_with_partial(conditions, spec), spec.collation))
    for position, path in enumerate(spec.paths):
        if len(asked[path]) < len(values[path]):
            lookups += _null_lookups(spec, position, values, asked)
    return lookups


def _hidden_null(path: bytes, value: Value) -> bool:
    return value[0] == _NULL and b"." in path


def _null_lookups(
    spec: UniqueSpec,
    position: int,
    values: Mapping[bytes, list[Value]],
    asked: Mapping[bytes, list[Value]],
) -> Iterator[Lookup]:
    """The index's entries with null at ``position``, and the document's own values before it."""
    if spec.collation is not None:
        raise NotDecidable(
            f"the unique index {spec.name} has a collation and a document lacks one of its fields"
        )
    before, path, after = spec.paths[:position], spec.paths[position], spec.paths[position + 1 :]
    conditions = [_equal_to_one(p, asked[p]) for p in after if len(asked[p]) == len(values[p])]
    query = _with_partial(conditions, spec) if conditions or spec.partial else wrap()
    first = [_end(p in spec.descending, p) for p in after]
    beyond = (_MIN_KEY, b"") if path in spec.descending else (0x01, _NAN)
    if math.prod(len(values[p]) for p in before) > _MOST_COMBINATIONS:
        raise NotDecidable(f"a document has too many keys in the unique index {spec.name}")
    for combination in itertools.product(*(values[p] for p in before)):
        fixed = [_element(p, v) for p, v in zip(before, combination, strict=True)]
        low = wrap(*fixed, _element(path, (_NULL, b"")), *first)
        high = wrap(*fixed, _element(path, beyond), *first)
        yield Lookup(query, None, spec.name, (low, high))


def _element(path: bytes, value: Value) -> bytes:
    return bytes((value[0],)) + path + b"\0" + value[1]


def _end(descending: bool, path: bytes) -> bytes:
    """The first value of a field in the index's order."""
    return _element(path, (_MAX_KEY if descending else _MIN_KEY, b""))


def _any_exists(spec: UniqueSpec) -> bytes:
    exists = wrap(bytes(bson.encode({"$exists": True})[4:-1]))
    return any_of([wrap(b"\x03" + path + b"\0" + exists) for path in spec.paths])


def _with_partial(conditions: list[bytes], spec: UniqueSpec) -> bytes:
    return both(*conditions, *(() if spec.partial is None else (spec.partial,)))


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


def grouped(lookups: Iterable[Lookup], most: int) -> Iterator[Lookup]:
    """The same look-ups, those that can be asked together in one ``$or`` each, at most ``most`` at once."""
    together: dict[bytes | None, list[bytes]] = {}
    for lookup in lookups:
        if lookup.bounds is not None:
            yield lookup
        else:
            together.setdefault(lookup.collation, []).append(lookup.query)
    for collation, queries in together.items():
        for portion in cut(queries, len, most):
            yield Lookup(any_of(portion), collation)

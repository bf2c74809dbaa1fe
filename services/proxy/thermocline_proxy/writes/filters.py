"""What a write's filter says about ``_id``, and how a filter is narrowed to known ids. Pure."""

from collections.abc import Iterable

import bson

from thermocline_common.ids import (
    ARRAY,
    DOCUMENT,
    REGEX,
    STRING,
    SYMBOL,
    DocId,
    array,
    elements,
    in_filter,
    wrap,
)

UNDEFINED = 0x06
NOTHING = wrap(b"\x03_id\0" + wrap(b"\x04$in\0" + wrap()))
"""The filter ``{_id: {$in: []}}``, which matches nothing."""

IMPOSSIBLE = bytes(bson.encode({"$nor": [{}]}))
"""A filter that matches nothing and says nothing about any field, so that an upsert takes none from it."""

_LOGICAL = frozenset({b"$and", b"$or", b"$nor"})
_NEVER_IDS = frozenset({ARRAY, REGEX, UNDEFINED})


class CannotNarrow(ValueError):
    """No filter picks exactly these ids under the statement's collation."""


def storable(doc_id: DocId) -> bool:
    """Whether MongoDB would store a document under this id; others need no look-up (and break one)."""
    if doc_id.kind in _NEVER_IDS:
        return False
    if doc_id.kind != DOCUMENT:
        return True
    names = [name for name, *_ in elements(doc_id.value)]
    return not names or names[0][:1] != b"$" or names[:2] == [b"$ref", b"$id"]


def id_equality(query: bytes, *, collated: bool = False) -> DocId | None:
    """The one ``_id`` that the filter asks for, if it does so as an equality that must hold, and for one
    that a document can have.

    ``collated``: a collation that isn't simple is in force, under which strings have equals.
    """
    found = id_choices(query, collated=collated)
    if found is None or len(found) != 1 or not storable(found[0]):
        return None
    return found[0]


def has_expression(query: bytes) -> bool:
    """Whether the filter holds a ``$expr``, which MongoDB doesn't take in upserts."""
    for name, kind, _, start, end in elements(query):
        if name == b"$expr":
            return True
        if name in _LOGICAL and kind == ARRAY:
            value = query[start:end]
            branches = (value[s:e] for _, k, _, s, e in elements(value) if k == DOCUMENT)
            if any(map(has_expression, branches)):
                return True
    return False


def implies_order(query: bytes) -> bool:
    """Whether the filter may bring an order of its own: the nearest match is the first."""
    return b"$near" in query


def id_choices(query: bytes, *, collated: bool = False) -> list[DocId] | None:
    """The few ids outside of which the filter matches nothing; None where it doesn't list ids."""
    best: list[DocId] | None = None
    for name, kind, _, start, end in elements(query):
        value = query[start:end]
        if name == b"_id":
            found = _condition_choices(kind, value)
        elif name == b"$and" and kind == ARRAY:
            found = _all_of_choices(value, collated)
        else:
            continue
        if found is not None and collated and any(map(_has_strings, found)):
            found = None
        if found is not None and (best is None or len(found) < len(best)):
            best = found
    return best


def _all_of_choices(value: bytes, collated: bool) -> list[DocId] | None:
    best: list[DocId] | None = None
    for _, kind, _, start, end in elements(value):
        if kind != DOCUMENT:
            return None
        found = id_choices(value[start:end], collated=collated)
        if found is not None and (best is None or len(found) < len(best)):
            best = found
    return best


def _condition_choices(kind: int, value: bytes) -> list[DocId] | None:
    if kind in (REGEX, UNDEFINED):
        return None
    if kind != DOCUMENT:
        return [DocId.of_value(kind, value)]
    parts = [(name, inner, value[start:end]) for name, inner, _, start, end in elements(value)]
    if not parts or parts[0][0][:1] != b"$" or [n for n, *_ in parts[:2]] == [b"$ref", b"$id"]:
        return [DocId.of_value(kind, value)]
    for name, inner, operand in parts:
        if name == b"$eq" and inner not in (REGEX, UNDEFINED):
            return [DocId.of_value(inner, operand)]
        if name == b"$in" and inner == ARRAY:
            choices = [(k, operand[start:end]) for _, k, _, start, end in elements(operand)]
            if all(k not in (REGEX, UNDEFINED) for k, _ in choices):
                return list(dict.fromkeys(DocId.of_value(k, raw) for k, raw in choices))
    return None


def is_ids_alone(query: bytes) -> bool:
    """Whether the filter is nothing but ``{_id: {$in: [...]}}`` of plain values."""
    fields = list(elements(query))
    if [(name, kind) for name, kind, *_ in fields] != [(b"_id", DOCUMENT)]:
        return False
    condition = query[fields[0][3] : fields[0][4]]
    operators = [name for name, *_ in elements(condition)]
    return operators == [b"$in"] and id_choices(query) is not None


def _has_strings(doc_id: DocId) -> bool:
    return _value_has_strings(doc_id.kind, doc_id.value)


def _value_has_strings(kind: int, value: bytes) -> bool:
    if kind in (STRING, SYMBOL):
        return True
    if kind in (DOCUMENT, ARRAY):
        return any(_value_has_strings(k, value[s:e]) for _, k, _, s, e in elements(value))
    return False


def is_simple_collation(collation: bytes | None) -> bool:
    """Whether a statement's ``collation`` document (None: absent) is the simple one."""
    if collation is None or collation == wrap():
        return True
    return any(
        name == b"locale" and kind == STRING and collation[start + 4 : end - 1] == b"simple"
        for name, kind, _, start, end in elements(collation)
    )


def both(*filters: bytes) -> bytes:
    """The filter ``{$and: [...]}``."""
    return wrap(b"\x04$and\0" + array((DOCUMENT, each) for each in filters))


def narrow(query: bytes, ids: Iterable[DocId], *, collated: bool = False) -> bytes:
    """``query`` for these documents only: ``{$and: [query, {_id: {$in: ids}}]}``.

    Under a collation ``$in`` would pick ids that are only equal in its sense; regular expressions
    know no collation, so strings are picked by those. Raises :class:`CannotNarrow`.
    """
    wanted = list(ids)
    if not collated or not any(map(_has_strings, wanted)):
        return both(query, in_filter(wanted))
    choices = []
    for doc_id in wanted:
        if doc_id.kind == STRING:
            choices.append((REGEX, _exactly(doc_id.value[4:-1])))
        elif _has_strings(doc_id):
            raise CannotNarrow("an _id holds strings inside a document")
        else:
            choices.append((doc_id.kind, doc_id.value))
    return both(query, wrap(b"\x03_id\0" + wrap(b"\x04$in\0" + array(choices))))


def _exactly(text: bytes) -> bytes:
    """The raw value of a regular expression that matches this UTF-8 string alone."""
    try:
        characters = text.decode()
    except UnicodeDecodeError as error:
        raise CannotNarrow("an _id isn't valid UTF-8") from error
    escaped = "".join(
        c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in characters
    )
    return f"\\A{escaped}\\z".encode() + b"\0\0"


def not_matching(query: bytes, doc_id: DocId) -> bytes:
    """A filter that finds the document exactly if it is there and ``query`` does not match it."""
    nor = b"\x04$nor\0" + array([(DOCUMENT, query)])
    return both(in_filter([doc_id]), wrap(nor))

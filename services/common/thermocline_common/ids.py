"""Document ids as raw BSON, and a key under which MongoDB's equal ids are equal.

MongoDB's ``_id`` index compares by value across numeric types: ``Int64(5)``, ``5.0`` and
``Decimal128("5.00")`` are one id, inside documents and arrays too; strings equal symbols.
Ids travel as raw bytes, so that what Python cannot represent survives.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

from bson.decimal128 import Decimal128

_EXACT = Context(prec=12_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_INT = struct.Struct("<i")
_LONG = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")

DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, OBJECT_ID, DATE = 0x01, 0x02, 0x03, 0x04, 0x05, 0x07, 0x09
REGEX, DBPOINTER, CODE, SYMBOL, CODE_W_SCOPE, INT32, TIMESTAMP, INT64, DECIMAL = (
    0x0B, 0x0C, 0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12, 0x13,
)  # fmt: skip
_FIXED = {
    0x01: 8,
    0x06: 0,
    0x07: 12,
    0x08: 1,
    0x09: 8,
    0x0A: 0,
    0x10: 4,
    0x11: 8,
    0x12: 8,
    0x13: 16,
    0xFF: 0,
    0x7F: 0,
}


_KINDS = [bytes((kind,)) for kind in range(256)]
_NAMES = [b"%d\0" % i for i in range(3_000)]
"""Names of array elements, made once."""


class InvalidElement(ValueError):
    """The bytes are not a BSON element of a type that MongoDB stores."""


def value_end(data: bytes | memoryview, kind: int, start: int) -> int:
    """The offset just behind the value of BSON type ``kind`` that begins at ``start``."""
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return start + fixed
    if kind in (STRING, CODE, SYMBOL):
        return start + 4 + int(_INT.unpack_from(data, start)[0])
    if kind in (DOCUMENT, ARRAY, CODE_W_SCOPE):
        return start + int(_INT.unpack_from(data, start)[0])
    if kind == BINARY:
        return start + 5 + int(_INT.unpack_from(data, start)[0])
    if kind == DBPOINTER:
        return start + 4 + int(_INT.unpack_from(data, start)[0]) + 12
    if kind == REGEX:
        raw = bytes(data)
        return raw.index(b"\0", raw.index(b"\0", start) + 1) + 1
    raise InvalidElement(f"unknown BSON type 0x{kind:02x}")


def elements(document: bytes) -> Iterable[tuple[bytes, int, int, int, int]]:
    """The elements of a BSON document, in order: (name, type, element start, value start, value end).

    Raises :class:`InvalidElement`, ``struct.error`` or ``ValueError`` where the bytes are not BSON.
    """
    return elements_within(document, 0, len(document))


def elements_within(
    document: bytes, start: int, end: int
) -> Iterable[tuple[bytes, int, int, int, int]]:
    """:func:`elements` of the document at these offsets within others' bytes."""
    pos = start + 4
    last = end - 1
    while pos < last:
        kind = document[pos]
        stop = document.index(b"\0", pos + 1)
        behind = value_end(document, kind, stop + 1)
        if behind > last:
            raise InvalidElement("a value runs past the end of its document")
        yield document[pos + 1 : stop], kind, pos, stop + 1, behind
        pos = behind


def _number(kind: int, raw: bytes) -> bytes:
    if kind == INT32:
        return b"n%d" % _INT.unpack(raw)[0]
    if kind == INT64:
        return b"n%d" % _LONG.unpack(raw)[0]
    if kind == DOUBLE:
        value = _DOUBLE.unpack(raw)[0]
        if math.isnan(value):
            return b"nNaN"
        if math.isinf(value):
            return b"nInf" if value > 0 else b"n-Inf"
        if value.is_integer():
            return b"n%d" % int(value)
        exact = Decimal(value)
    else:
        exact = Decimal128.from_bid(raw).to_decimal()
        if exact.is_nan():
            return b"nNaN"
        if exact.is_infinite():
            return b"nInf" if exact > 0 else b"n-Inf"
        if not exact:
            return b"n0"
    exact = exact.normalize(_EXACT)
    sign, digits, exponent = exact.as_tuple()
    if isinstance(exponent, int) and 0 <= exponent <= 40:
        return b"n%d" % int(exact)
    return b"n%s%s|%s" % (
        b"-" if sign else b"",
        "".join(map(str, digits)).encode(),
        str(exponent).encode(),
    )


def value_key(kind: int, raw: bytes) -> bytes:
    """A key for one BSON value: two values have the same key exactly where MongoDB calls them equal."""
    if kind in (INT32, INT64, DOUBLE, DECIMAL):
        return _number(kind, raw)
    if kind in (DOCUMENT, ARRAY):
        parts = [bytes((kind,))]
        for name, inner, _, start, end in elements(raw):
            key = value_key(inner, raw[start:end])
            parts.append((b"" if kind == ARRAY else name + b"\0") + _INT.pack(len(key)) + key)
        return b"".join(parts) + b"."
    if kind == SYMBOL:
        kind = STRING
    return bytes((kind,)) + raw


@dataclass(
    slots=True, eq=False
)  # not frozen: one is made for every document, and frozen costs thrice
class DocId:
    """One document's ``_id``: ``kind`` and ``value`` are its BSON type and raw bytes, ``key`` its identity.

    Two ids that MongoDB's ``_id`` index calls equal compare and hash equal here.
    """

    kind: int
    value: bytes
    key: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DocId) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def of_value(cls, kind: int, value: bytes) -> "DocId":
        """From a BSON type and the raw bytes of the value."""
        return cls(kind, value, value_key(kind, value))

    @classmethod
    def of_document(cls, raw: bytes) -> "DocId":
        """The id of a whole raw document. Raises ``KeyError`` if it has no ``_id``."""
        for name, kind, _, start, end in elements(raw):
            if name == b"_id":
                return cls.of_value(kind, raw[start:end])
        raise KeyError("_id")

    def element(self, name: bytes = b"_id") -> bytes:
        """The value as a BSON element called ``name``."""
        return _KINDS[self.kind] + name + b"\0" + self.value

    def document(self, name: bytes = b"_id") -> bytes:
        """A raw BSON document with the value as its only field, such as ``{_id: value}``."""
        return wrap(self.element(name))


def wrap(*parts: bytes) -> bytes:
    """A raw BSON document of these raw elements."""
    body = b"".join(parts)
    return _INT.pack(len(body) + 5) + body + b"\0"


def array(documents: Iterable[tuple[int, bytes]]) -> bytes:
    """A raw BSON array's value bytes, of (type, value bytes) pairs."""
    return wrap(
        *(
            bytes((kind,)) + str(i).encode() + b"\0" + value
            for i, (kind, value) in enumerate(documents)
        )
    )


def string(name: bytes, text: str) -> bytes:
    """A raw BSON string element."""
    raw = text.encode()
    return b"\x02" + name + b"\0" + _INT.pack(len(raw) + 1) + raw + b"\0"


def id_list(ids: Sequence[DocId]) -> bytes:
    """A raw BSON array's value bytes: these ids."""
    kinds = _KINDS
    return wrap(
        b"".join(
            [
                part
                for i, name in zip(ids, index_names(len(ids)), strict=True)
                for part in (kinds[i.kind], name, i.value)
            ]
        )
    )


def index_names(count: int) -> list[bytes]:
    """The names of an array's first elements, each with the zero byte behind it."""
    names = _NAMES[:count]
    return names if len(names) == count else [b"%d\0" % i for i in range(count)]


def in_filter(ids: Iterable[DocId]) -> bytes:
    """The raw filter ``{_id: {$in: [...]}}``."""
    return wrap(b"\x03_id\0", wrap(b"\x04$in\0", id_list(list(ids))))


def record_id(namespace: str, doc_id: DocId) -> bytes:
    """The raw value of a removal record's ``_id``: ``{ns, id}``."""
    return wrap(string(b"ns", namespace), doc_id.element(b"id"))


def records_filter(namespace: str, ids: Iterable[DocId]) -> bytes:
    """The raw filter that finds the removal records of these ids in ``thermocline.removed``."""
    inner = wrap(b"\x04$in\0" + array((DOCUMENT, record_id(namespace, i)) for i in ids))
    return wrap(b"\x03_id\0" + inner)

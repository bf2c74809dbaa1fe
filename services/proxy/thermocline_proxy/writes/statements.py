"""The statements of a write command as values, and commands made of some of them. Pure."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

from bson.decimal128 import Decimal128

from thermocline_common.ids import ARRAY, DECIMAL, DOCUMENT, DocId, array, elements, wrap
from thermocline_proxy.commands.command import Command, raw_element
from thermocline_proxy.writes.filters import id_equality, is_simple_collation

_BOOL, _INT32, _INT64, _DOUBLE = 0x08, 0x10, 0x12, 0x01
_FALSE: Final = b"\0"
_FLAGS: Final = frozenset({_BOOL, _INT32, _INT64, _DOUBLE, DECIMAL, 0x06, 0x0A})
EMPTY: Final = wrap()


class Kind(Enum):
    """The write commands with statements; the value is the field that holds the statements."""

    INSERT = "documents"
    UPDATE = "updates"
    DELETE = "deletes"


KINDS: Final = {"insert": Kind.INSERT, "update": Kind.UPDATE, "delete": Kind.DELETE}
MAX_STATEMENTS: Final = 100_000


def truth(field: tuple[int, bytes] | None) -> bool:
    """MongoDB's reading of a flag: a bool, or any number but zero."""
    if field is None:
        return False
    kind, raw = field
    if kind == _BOOL:
        return raw != _FALSE
    if kind == _DOUBLE:
        return bool(struct.unpack("<d", raw)[0] != 0)  # so is NaN
    if kind == DECIMAL:
        return bool(Decimal128.from_bid(raw).to_decimal() != 0)
    return kind in (_INT32, _INT64) and number(field) != 0


def is_flag(field: tuple[int, bytes] | None) -> bool:
    """Whether a server may take the field for a flag; it refuses a command with anything else there."""
    return field is None or field[0] in _FLAGS


def number(field: tuple[int, bytes] | None, default: int = 0) -> int:
    """A whole number of any of the number types; ``default`` where there is none."""
    if field is None:
        return default
    kind, raw = field
    if kind == _INT32:
        return int(struct.unpack("<i", raw)[0])
    if kind == _INT64:
        return int(struct.unpack("<q", raw)[0])
    if kind == _DOUBLE:
        value = struct.unpack("<d", raw)[0]
        return int(value) if value == value and abs(value) < 1e15 else default
    if kind == DECIMAL:
        exact = Decimal128.from_bid(raw).to_decimal()
        return int(exact) if exact.is_finite() and abs(exact) < 10**15 else default
    return default


def fields_of(raw: bytes) -> dict[bytes, tuple[int, bytes]]:
    """The fields of a raw document: name -> (BSON type, raw value)."""
    return {name: (kind, raw[start:end]) for name, kind, _, start, end in elements(raw)}


def replaced(raw: bytes, changes: dict[bytes, bytes | None]) -> bytes:
    """A document with these raw elements in place of, or behind, its own; None takes a field out."""
    left = dict(changes)
    parts: list[bytes] = []
    for name, _, begin, _, end in elements(raw):
        if name in left:
            new = left.pop(name)
            if new is not None:
                parts.append(new)
        else:
            parts.append(raw[begin:end])
    parts += [new for new in left.values() if new is not None]
    return wrap(*parts)


class Statement:
    """One update or delete statement: ``raw`` as the client sent it, read on demand."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @cached_property
    def fields(self) -> dict[bytes, tuple[int, bytes]]:
        """The statement's fields."""
        return fields_of(self.raw)

    @property
    def query(self) -> bytes:
        """The raw filter."""
        return self.fields[b"q"][1]

    @property
    def multi(self) -> bool:
        """Whether it is meant for every match (``multi: true``, ``limit: 0``)."""
        if b"limit" in self.fields:
            return number(self.fields[b"limit"]) == 0
        return truth(self.fields.get(b"multi"))

    @property
    def upsert(self) -> bool:
        """Whether it inserts where nothing matches."""
        return truth(self.fields.get(b"upsert"))

    @property
    def collated(self) -> bool:
        """Whether a collation other than the simple one is in force."""
        collation = self.fields.get(b"collation")
        return collation is not None and not is_simple_collation(collation[1])

    @cached_property
    def doc_id(self) -> DocId | None:
        """The one ``_id`` it is about, if the filter says so."""
        return id_equality(self.query, collated=self.collated)

    @property
    def well_formed(self) -> bool:
        """Whether it has what the server demands before it executes anything."""
        query = self.fields.get(b"q")
        return (
            query is not None
            and query[0] == DOCUMENT
            and bool({b"u", b"limit"} & set(self.fields))
            and all(is_flag(self.fields.get(name)) for name in (b"upsert", b"multi"))
        )

    def changed(
        self,
        *,
        query: bytes | None = None,
        upsert: bool | None = None,
        update: tuple[int, bytes] | None = None,
    ) -> bytes:
        """The raw statement with another filter or update; ``upsert=False`` takes that flag out."""
        changes: dict[bytes, bytes | None] = {}
        if update is not None:
            changes[b"u"] = raw_element("u", *update)
        if query is not None:
            changes[b"q"] = raw_element("q", DOCUMENT, query)
        if upsert is False and b"upsert" in self.fields:
            changes[b"upsert"] = None
        return replaced(self.raw, changes) if changes else self.raw


@dataclass(frozen=True, slots=True)
class Batch:
    """A write command taken apart. ``documents``: the raw statements (inserts: the documents)."""

    command: Command
    kind: Kind
    documents: tuple[bytes, ...]
    statements: tuple[Statement, ...]
    """The same, of updates and deletes; empty for inserts."""
    ordered: bool
    retryable: bool
    stmt_ids: tuple[int, ...] | None
    """The statements' ids within the ``txnNumber``, where the command has one."""

    def part(self, indexes: Sequence[int], documents: Sequence[bytes] | None = None) -> Command:
        """A command of these statements only; ``documents`` in place of what the client sent.

        The statements keep their ids, so that F knows those that it executed before.
        """
        whole = len(indexes) == len(self.documents)
        if whole and documents is None:
            return self.command
        chosen = [self.documents[i] for i in indexes] if documents is None else list(documents)
        changes: dict[str, bytes | None] = {}
        if self.kind.value in self.command.fields:
            changes[self.kind.value] = None
        if not whole and self.stmt_ids is not None:
            numbers = array((_INT32, struct.pack("<i", self.stmt_ids[i])) for i in indexes)
            changes["stmtId"] = None
            changes["stmtIds"] = raw_element("stmtIds", ARRAY, numbers)
        sequences = {**self.command.sequences, self.kind.value: chosen}
        return self.command.changed(changes, sequences)


def parse_batch(command: Command) -> Batch | None:
    """The command's statements; None where the server is going to refuse the command as a whole."""
    kind = KINDS[command.name]
    documents = command.documents(kind.value)
    listed = command.fields.get(kind.value)
    if listed is not None and kind.value in command.sequences:
        return None
    if listed is not None and len(documents) != sum(1 for _ in _entries(listed)):
        return None
    if not 0 < len(documents) <= MAX_STATEMENTS:
        return None
    statements = () if kind is Kind.INSERT else tuple(map(Statement, documents))
    if not all(statement.well_formed for statement in statements):
        return None
    ordered = truth(command.fields["ordered"]) if "ordered" in command.fields else True
    retryable = "txnNumber" in command.fields
    return Batch(
        command,
        kind,
        tuple(documents),
        statements,
        ordered,
        retryable,
        _statement_ids(command, len(documents)) if retryable else None,
    )


def _entries(field: tuple[int, bytes]) -> Iterator[bytes]:
    kind, raw = field
    if kind == ARRAY:
        for name, *_ in elements(raw):
            yield name


def _statement_ids(command: Command, count: int) -> tuple[int, ...]:
    given = command.fields.get("stmtIds")
    if given is not None and given[0] == ARRAY:
        values = [number((k, given[1][s:e])) for _, k, _, s, e in elements(given[1])]
        if len(values) == count:
            return tuple(values)
    first = number(command.fields.get("stmtId"))
    return tuple(range(first, first + count))

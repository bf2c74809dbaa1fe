"""Replies of write commands: read, and merged into the one that a single MongoDB would give. Pure."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import bson

from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import ARRAY, DOCUMENT, array, elements, wrap
from thermocline_proxy.commands.command import raw_element
from thermocline_proxy.writes.statements import Kind, fields_of, number, replaced, truth

_INT32: Final = 0x10
_KEPT: Final = (b"electionId", b"opTime")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reply of insert, update or delete says; indexes are those of the command sent."""

    ok: bool
    n: int = 0
    modified: int | None = None
    upserted: tuple[tuple[int, bytes], ...] = ()
    """(index, raw ``{index, _id}`` document)"""
    errors: tuple[tuple[int, bytes], ...] = ()
    """(index, raw error document)"""
    retried: tuple[int, ...] = ()
    concern_error: bytes | None = None

    @property
    def failed(self) -> bool:
        """Whether the command, or a statement of it, met an error."""
        return not self.ok or bool(self.errors)

    @property
    def settled(self) -> bool:
        """Whether there is nothing to look for: something matched, was executed before, or failed."""
        return self.failed or self.n > 0 or bool(self.retried)


def _documents(field: tuple[int, bytes] | None) -> list[bytes]:
    if field is None or field[0] != ARRAY:
        return []
    raw = field[1]
    return [raw[start:end] for _, kind, _, start, end in elements(raw) if kind == DOCUMENT]


def _indexed(field: tuple[int, bytes] | None) -> tuple[tuple[int, bytes], ...]:
    return tuple((number(fields_of(d).get(b"index")), d) for d in _documents(field))


def parse_outcome(raw: bytes) -> Outcome:
    """Read a reply of insert, update or delete."""
    fields = fields_of(raw)
    if not truth(fields.get(b"ok")):
        return Outcome(ok=False)
    retried = fields.get(b"retriedStmtIds")
    concern = fields.get(b"writeConcernError")
    modified = fields.get(b"nModified")
    return Outcome(
        ok=True,
        n=number(fields.get(b"n")),
        modified=None if modified is None else number(modified),
        upserted=_indexed(fields.get(b"upserted")),
        errors=_indexed(fields.get(b"writeErrors")),
        retried=()
        if retried is None
        else tuple(number((k, retried[1][s:e])) for _, k, _, s, e in elements(retried[1])),
        concern_error=None if concern is None else concern[1],
    )


def find_and_modify_settled(raw: bytes) -> bool:
    """The same question of a findAndModify's reply: matched, executed before, or failed."""
    fields = fields_of(raw)
    if not truth(fields.get(b"ok")) or b"retriedStmtId" in fields:
        return True
    last = fields.get(b"lastErrorObject")
    return last is not None and number(fields_of(last[1]).get(b"n")) > 0


def duplicate_of_id(raw: bytes) -> bool:
    """Whether the (first) error is a duplicate ``_id``."""
    errors = parse_outcome(raw).errors
    fields = fields_of(errors[0][1] if errors else raw)
    pattern = fields.get(b"keyPattern")
    return (
        number(fields.get(b"code")) == Code.DuplicateKey
        and pattern is not None
        and list(fields_of(pattern[1])) == [b"_id"]
    )


def error_codes(raw: bytes) -> list[int]:
    """Codes of what failed: the command as a whole, or its statements."""
    entries = [entry for _, entry in parse_outcome(raw).errors] if succeeded(raw) else [raw]
    return [number(fields_of(entry).get(b"code")) for entry in entries]


def succeeded(raw: bytes) -> bool:
    """Whether the command as a whole was accepted (``ok: 1``)."""
    return truth(fields_of(raw).get(b"ok"))


def write_error(error: CommandError, kind: Kind) -> bytes:
    """The reply of a command whose only statement met this error, and wasn't executed."""
    fields: dict[str, object] = {
        "n": 0,
        "writeErrors": [{"index": 0, "code": error.code, "errmsg": error.message}],
    }
    if kind is Kind.UPDATE:
        fields["nModified"] = 0
    return bytes(bson.encode({**fields, "ok": 1.0}))


def _int(name: str, value: int) -> bytes:
    return raw_element(name, _INT32, struct.pack("<i", value))


def _reindexed(entries: Sequence[bytes], indexes: Sequence[int]) -> bytes:
    moved = [
        (DOCUMENT, replaced(raw, {b"index": _int("index", index)}))
        for raw, index in zip(entries, indexes, strict=True)
    ]
    return array(moved)


def merge(parts: Sequence[tuple[Sequence[int], bytes]]) -> bytes:
    """One reply of several: (the statements' indexes in the client's command, the reply) each.

    A part that failed as a whole (``ok: 0``) is the answer. ``electionId`` and ``opTime`` are the
    last part's; of several writeConcernErrors the last is kept.
    """
    if len(parts) == 1 and list(parts[0][0]) == list(range(len(parts[0][0]))):
        return parts[0][1]
    for _, raw in parts:
        if not succeeded(raw):
            return raw
    total = 0
    modified: int | None = None
    errors: list[tuple[int, bytes]] = []
    upserted: list[tuple[int, bytes]] = []
    retried: list[int] = []
    concern: bytes | None = None
    for indexes, raw in parts:
        outcome = parse_outcome(raw)
        total += outcome.n
        if outcome.modified is not None:
            modified = (modified or 0) + outcome.modified
        errors += [(indexes[i], error) for i, error in outcome.errors]
        upserted += [(indexes[i], entry) for i, entry in outcome.upserted]
        retried += outcome.retried
        concern = outcome.concern_error or concern
    last = fields_of(parts[-1][1])
    out = [_int("n", total)]
    out += [raw_element(name.decode(), *last[name]) for name in _KEPT if name in last]
    if errors:
        errors.sort(key=lambda pair: pair[0])
        out.append(
            raw_element(
                "writeErrors", ARRAY, _reindexed([e for _, e in errors], [i for i, _ in errors])
            )
        )
    if retried:
        numbers = array((_INT32, struct.pack("<i", i)) for i in retried)
        out.append(raw_element("retriedStmtIds", ARRAY, numbers))
    if upserted:
        raws, moved = [e for _, e in upserted], [i for i, _ in upserted]
        out.append(raw_element("upserted", ARRAY, _reindexed(raws, moved)))
    if modified is not None:
        out.append(_int("nModified", modified))
    if concern is not None:
        out.append(raw_element("writeConcernError", DOCUMENT, concern))
    out.append(bytes(bson.encode({"ok": 1.0})[4:-1]))
    return wrap(*out)


def combined(replies: Sequence[bytes]) -> bytes:
    """One statement that was carried out in several sends: the sums, the first error.

    As in MongoDB, a statement that fails half-way counts nothing.
    """
    outcomes = [parse_outcome(raw) for raw in replies]
    for raw, outcome in zip(replies, outcomes, strict=True):
        if outcome.failed:
            return raw
    return merge([((0,), raw) for raw in replies])

"""What F gets of a command that changes collections or indexes, and how A's part is undone. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from thermocline_common.ids import ARRAY, DOCUMENT, wrap
from thermocline_proxy.commands.command import Command, raw_element
from thermocline_proxy.wire.decoding import decoded
from thermocline_proxy.writes.filters import is_simple_collation
from thermocline_proxy.writes.refusal import Refused
from thermocline_proxy.writes.statements import fields_of, number, replaced, truth

_NOT_TIERED: Final = {
    "capped": "capped collections",
    "timeseries": "time-series collections",
    "clusteredIndex": "clustered collections",
    "viewOn": "views under a tiered name",
    "encryptedFields": "encrypted collections",
    "expireAfterSeconds": "time-series collections",
}
_EXPIRE: Final = b"expireAfterSeconds"
_FORMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "changeStreamPreAndPostImages": {"enabled": False},
}
_NO_CHANGE: Final = frozenset(
    {"collMod", "$db", "lsid", "writeConcern", "$clusterTime", "maxTimeMS", "comment",
     "collectionUUID", "$readPreference", "apiVersion", "apiStrict", "apiDeprecationErrors"}
)  # fmt: skip


def no_check(command: Command) -> None:
    """Nothing of it is refused."""


def same(command: Command) -> Command:
    """F gets it as it is."""
    return command


def refuse_untierable(command: Command) -> None:
    """Raise ``Refused`` for options of ``create`` that a tiered collection can't have."""
    for name, what in _NOT_TIERED.items():
        if name in command.fields and (name != "capped" or truth(command.fields[name])):
            raise Refused(f"{what} can't be tiered: take {command.namespace} out of the policies")
    collation = command.fields.get("collation")
    if collation is not None and not is_simple_collation(collation[1]):
        raise Refused(
            "a tiered collection can't have a default collation: give the collation with each "
            "statement, or to an index"
        )


def indexes_without_expiry(command: Command) -> Command:
    """``createIndexes`` for F: TTL rules are A's, and the evictor's for F; so is a ``commitQuorum``, which
    counts and names A's members."""
    specs = [
        replaced(raw, {_EXPIRE: None}) if _EXPIRE in fields_of(raw) else raw
        for raw in command.documents("indexes")
    ]
    listed = wrap(*(b"\x03" + str(i).encode() + b"\0" + raw for i, raw in enumerate(specs)))
    changes: dict[str, bytes | None] = {"indexes": raw_element("indexes", ARRAY, listed)}
    if "commitQuorum" in command.fields:
        changes["commitQuorum"] = None
    return command.changed(changes, {})


def options_without_expiry(command: Command) -> Command | None:
    """``collMod`` for F; None where nothing is left of it."""
    kind, raw = command.fields.get("index", (0, b""))
    if kind == DOCUMENT and _EXPIRE in fields_of(raw):
        rest = replaced(raw, {_EXPIRE: None})
        named = {b"name", b"keyPattern"}
        left = raw_element("index", DOCUMENT, rest) if fields_of(rest).keys() - named else None
        command = command.changed({"index": left})
    return command if command.fields.keys() - _NO_CHANGE else None


def built_by(command: Command, reply: bytes) -> list[str]:
    """Names of the indexes that this command built in A, if it built all that it names; else none."""
    fields = fields_of(reply)
    specs = command.documents("indexes")
    built = number(fields.get(b"numIndexesAfter")) - number(fields.get(b"numIndexesBefore"))
    if built != len(specs):
        return []
    return [str(decoded(raw)["name"]) for raw in specs]


def dropped_by(command: Command, seen: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of the indexes that A had, those that this command dropped there."""
    index = decoded(wrap(raw_element("index", *command.fields["index"])))["index"]
    found: list[Mapping[str, Any]] = []
    for spec in seen:
        if list(spec["key"]) == ["_id"]:
            continue
        if isinstance(index, Mapping):
            dropped = list(spec["key"].items()) == list(index.items())
        else:
            names = [index] if isinstance(index, str) else index
            dropped = "*" in names or spec["name"] in names
        if dropped:
            found.append({name: value for name, value in spec.items() if name != "ns"})
    return found


def former_options(command: Command, reply: bytes, seen: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``collMod`` that brings back what A had; empty: nothing can be brought back."""
    fields: dict[str, Any] = {
        name: seen.get(name, default)
        for name, default in _FORMER_DEFAULTS.items()
        if name in command.fields
    }
    kind, raw = command.fields.get("index", (0, b""))
    if kind == DOCUMENT:
        answer = decoded(reply)
        index = {
            name: value for name, value in decoded(raw).items() if name in ("name", "keyPattern")
        }
        former = {
            name: answer[f"{name}_old"]
            for name in ("expireAfterSeconds", "hidden")
            if f"{name}_old" in answer
        }
        if former:
            fields["index"] = {**index, **former}
    return fields

"""Which indexes a command is about, and whether documents are refused or expire by them. Pure.

A rule by which documents expire is followed in each tier at its own time: while the archive's copies are gone
and the fast tier's are due, or the other way round, it can't be dropped or put off in both at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from thermocline_common.ids import ARRAY, DOCUMENT, STRING
from thermocline_proxy.commands.command import Command
from thermocline_proxy.wire.decoding import decoded

Listed = Sequence[Mapping[str, Any]]
"""The archive's indexes as ``listIndexes`` shows them."""

_CONSTRAINTS: Final = ("unique", "prepareUnique")
_NO_MATTER: Final = frozenset({"v", "ns", "background", "name"})
_EXPIRE: Final = "expireAfterSeconds"
_OFF_BY_DEFAULT: Final = frozenset({"unique", "prepareUnique", "sparse", "hidden"})


def constrains(spec: Mapping[str, Any]) -> bool:
    """Whether an index (not ``_id``'s) refuses documents for their neighbours."""
    return list(spec.get("key", {})) != ["_id"] and any(spec.get(name) for name in _CONSTRAINTS)


def builds_constraint(command: Command, listed: Listed) -> bool:
    """Whether a ``createIndexes`` builds a unique index that isn't there yet, just as it is asked for.

    In doubt True: then the archive itself says that there is nothing to do.
    """
    there = {spec["name"]: _essence(spec) for spec in listed}
    for raw in command.documents("indexes"):
        spec = decoded(raw)
        if constrains(spec) and there.get(spec.get("name")) != _essence(spec):
            return True
    return False


def drops_rule(command: Command, listed: Listed) -> bool:
    """Whether a ``dropIndexes`` drops an index that is unique, or one by which documents expire."""
    kind, raw = command.fields.get("index", (0, b""))
    rules = [spec for spec in listed if constrains(spec) or _EXPIRE in spec]
    if kind == DOCUMENT:
        key = list(decoded(raw).items())
        return any(list(spec["key"].items()) == key for spec in rules)
    if kind == ARRAY:
        names = set(decoded(raw).values())
        return any(spec["name"] in names for spec in rules)
    if kind == STRING:
        name = raw[4:-1].decode("utf-8", "replace")
        return any(name in ("*", spec["name"]) for spec in rules)
    return False


def changes_rule(command: Command, listed: Listed) -> bool:
    """Whether a ``collMod`` is about an index's uniqueness, or lets documents live longer than before."""
    kind, raw = command.fields.get("index", (0, b""))
    if kind != DOCUMENT:
        return False
    change = decoded(raw)
    if any(name in change for name in _CONSTRAINTS):
        return True
    if _EXPIRE not in change:
        return False
    key = change.get("keyPattern")
    former = [
        spec[_EXPIRE]
        for spec in listed
        if _EXPIRE in spec
        and (
            spec["name"] == change.get("name")
            or (isinstance(key, Mapping) and list(spec["key"].items()) == list(key.items()))
        )
    ]
    return not all(_no_longer(change[_EXPIRE], before) for before in former)


def _no_longer(now: Any, before: Any) -> bool:
    """Whether what expires ``before`` seconds after its date surely expires ``now`` seconds after it, too."""
    numbers = all(isinstance(each, int | float) for each in (now, before))
    return numbers and bool(now <= before)


def _essence(spec: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """What makes two specifications the same index: the key in order, and the options."""
    options = {
        name: value
        for name, value in spec.items()
        if name != "key" and name not in _NO_MATTER and (value or name not in _OFF_BY_DEFAULT)
    }
    for name in _OFF_BY_DEFAULT & options.keys():
        options[name] = True
    return (list(spec.get("key", {}).items()), options)

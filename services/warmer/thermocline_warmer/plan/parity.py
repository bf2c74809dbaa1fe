"""What differs between the tiers' indexes and collection options, and how to mend F.

F only ever follows the archive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_INDEX_IGNORED: Final = frozenset({"ns", "background", "expireAfterSeconds", "buildUUID"})
_COLL_MOD: Final = ("validator", "validationLevel", "validationAction")
_COLL_MOD_DEFAULTS: Final[Mapping[str, Any]] = {
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
}
_OPTIONS_IGNORED: Final = frozenset({"uuid", "expireAfterSeconds", "flags", "autoIndexId"})
IMAGES: Final = "changeStreamPreAndPostImages"


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """``drop`` (names) comes before ``create`` (specs for ``createIndexes``)."""

    drop: tuple[str, ...] = ()
    create: tuple[Mapping[str, Any], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every index that differs."""
        return tuple(dict.fromkeys([*self.drop, *(str(spec["name"]) for spec in self.create)]))


def index_spec(index: Mapping[str, Any]) -> dict[str, Any]:
    """An index of the archive as F should have it: without expiry, which is the evictor's business."""
    return {name: value for name, value in index.items() if name not in _INDEX_IGNORED}


def _same_index(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    one, other = index_spec(left), index_spec(right)
    # The order of the key's fields is part of an index, that of its options isn't.
    return list(one["key"].items()) == list(other["key"].items()) and one == other


def plan_indexes(
    archive: Sequence[Mapping[str, Any]], fast: Sequence[Mapping[str, Any]]
) -> IndexPlan:
    """Indexes as ``listIndexes`` gives them; ``_id``'s own is left alone."""
    wanted = {i["name"]: i for i in archive if list(i["key"]) != ["_id"]}
    have = {i["name"]: i for i in fast if list(i["key"]) != ["_id"]}
    drop = [
        name
        for name, index in have.items()
        if name not in wanted
        or not _same_index(index, wanted[name])
        or "expireAfterSeconds" in index
    ]
    create = [
        index_spec(index) for name, index in wanted.items() if name not in have or name in drop
    ]
    return IndexPlan(tuple(sorted(drop)), tuple(create))


@dataclass(frozen=True, slots=True)
class OptionsPlan:
    """``coll_mod``: fields of a ``collMod`` on F; ``differ``: options that only a new activation mends."""

    coll_mod: Mapping[str, Any] = field(default_factory=dict)
    differ: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every option that differs."""
        return (*self.coll_mod, *self.differ)


def plan_options(archive: Mapping[str, Any], fast: Mapping[str, Any]) -> OptionsPlan:
    """Collection options as ``listCollections`` gives them."""
    change: dict[str, Any] = {}
    for name in _COLL_MOD:
        default = _COLL_MOD_DEFAULTS[name]
        wanted = archive.get(name, default)
        if fast.get(name, default) != wanted:
            change[name] = wanted
    off = {"enabled": False}
    if fast.get(IMAGES, off) != archive.get(IMAGES, off):
        change[IMAGES] = archive.get(IMAGES, off)
    rest = (archive.keys() | fast.keys()) - _OPTIONS_IGNORED - {*_COLL_MOD, IMAGES}
    differ = sorted(name for name in rest if archive.get(name) != fast.get(name))
    return OptionsPlan(change, tuple(differ))

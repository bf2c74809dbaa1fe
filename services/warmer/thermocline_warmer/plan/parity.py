"""What differs between the tiers' users, roles, indexes and collection options, and how to mend F.

F only ever follows the archive. Users and roles that Thermocline didn't bring to F itself are never
touched there, or somebody could be locked out of F.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

OWN_PREFIX: Final = "thermocline"
"""Roles and users of the services begin with it; they belong to their own tier alone."""

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
class AccountPlan:
    """Ids (``db.name``) of users or roles. ``foreign``: F has one of its own that differs."""

    write: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    copied: frozenset[str] = frozenset()
    """What is in F because of us once this is carried out."""

    @property
    def changes(self) -> bool:
        """Whether F is to be changed."""
        return bool(self.write or self.remove)


def plan_accounts(
    archive: Mapping[str, bytes],
    fast: Mapping[str, bytes],
    copied: Iterable[str],
    protected: Iterable[str],
) -> AccountPlan:
    """Users, or roles, as raw documents by ``_id``. ``copied``: what was brought to F before."""
    known = frozenset(copied)
    own = frozenset(protected)
    write, foreign, now_copied = [], [], set()
    for name, document in sorted(archive.items()):
        if name in own:
            continue
        there = fast.get(name)
        if there == document:
            now_copied.add(name)
        elif there is None or name in known:
            write.append(name)
            now_copied.add(name)
        else:
            foreign.append(name)
    remove = sorted(name for name in known if name in fast and name not in archive) if known else []
    remove = [name for name in remove if name not in own]
    return AccountPlan(tuple(write), tuple(remove), tuple(foreign), frozenset(now_copied))


def is_own_user(user: Mapping[str, Any], own: Iterable[str]) -> bool:
    """Whether a user document is one of the services' (``own``: ids of those we are logged in as)."""
    if user["_id"] in set(own) or user.get("db") == "local":
        return True
    return any(str(role.get("role", "")).startswith(OWN_PREFIX) for role in user.get("roles", ()))


def is_own_role(role: Mapping[str, Any]) -> bool:
    """Whether a role document is one of the services'."""
    return str(role.get("role", "")).startswith(OWN_PREFIX)


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

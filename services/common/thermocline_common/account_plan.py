"""What differs between the tiers' users and roles, and how to mend F. Pure.

F only ever follows the archive. Users and roles that Thermocline didn't bring to F itself are never
touched there, or somebody could be locked out of F.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

OWN_PREFIX: Final = "thermocline"
"""Roles and users of the services begin with it; they belong to their own tier alone."""


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

"""How a command that changes collections or indexes is served. Pure."""

from enum import Enum
from typing import Final

from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.indexes import (
    Listed,
    builds_constraint,
    changes_rule,
    drops_rule,
)
from thermocline_proxy.routing.snapshot import Snapshot


class Way(Enum):
    """The ways there are."""

    BOTH = "on both tiers, the archive first"
    ALONE = "on the archive alone, while the namespaces are in Passthrough"
    ARCHIVE = "on the archive: it changes nothing that the tiers have in common"
    REFUSED = "not at all"


_WAYS: Final = {
    "create": Way.BOTH,
    "drop": Way.ALONE,
    "dropDatabase": Way.ALONE,
    "renameCollection": Way.ALONE,
    "compact": Way.ARCHIVE,
    "reIndex": Way.ARCHIVE,
    "setIndexCommitQuorum": Way.ARCHIVE,
    "compactStructuredEncryptionData": Way.ARCHIVE,
}
DEPENDS_ON_INDEXES: Final = frozenset({"createIndexes", "dropIndexes", "deleteIndexes", "collMod"})
"""Commands whose way depends on the indexes that the archive has, or is to have."""


def way(command: Command, indexes: Listed) -> Way:
    """``indexes``: the archive's, where the command's name is in :data:`DEPENDS_ON_INDEXES`."""
    name = command.name
    if name == "createIndexes":
        alone = builds_constraint(command, indexes)
    elif name in ("dropIndexes", "deleteIndexes"):
        alone = drops_rule(command, indexes)
    elif name == "collMod":
        alone = changes_rule(command, indexes)
    else:
        return _WAYS.get(name, Way.REFUSED)
    return Way.ALONE if alone else Way.BOTH


def concerned(command: Command, touched: frozenset[str], snapshot: Snapshot) -> frozenset[str]:
    """Every namespace under a policy that the command is about, whatever its state."""
    known = snapshot.listed | snapshot.tierings.keys()
    if command.name == "dropDatabase":
        prefix = f"{command.database}."
        return frozenset(namespace for namespace in known if namespace.startswith(prefix))
    return touched & known


def is_tiered(namespace: str, snapshot: Snapshot) -> bool:
    """Whether the collection itself is tiered now; a view on one isn't, for these commands."""
    found = snapshot.tiering(namespace)
    return found is not None or (
        namespace in snapshot.listed and namespace not in snapshot.tierings
    )


def refusal(command: Command, touched: frozenset[str], snapshot: Snapshot) -> str | None:
    """Why it can't be served, with what to do instead; None: it can."""
    tiered = ", ".join(sorted(ns for ns in touched if is_tiered(ns, snapshot)))
    if command.name == "renameCollection":
        return _rename_refusal(touched, tiered, snapshot)
    if command.name == "convertToCapped":
        return (
            f"{tiered} is tiered, and a capped collection can't be: take its policy out of the "
            "resource, and convert it then"
        )
    if command.name == "cloneCollectionAsCapped":
        return (
            f"{tiered} is tiered: create the capped collection under a name without a policy, and insert "
            "there what is read from the other one"
        )
    return None


def _rename_refusal(touched: frozenset[str], tiered: str, snapshot: Snapshot) -> str | None:
    if len({namespace.partition(".")[0] for namespace in touched}) > 1:
        return (
            f"{tiered} is tiered and can't be renamed to another database: take its policy out of the "
            "resource, rename it, and put a policy for the new name in"
        )
    if any(ns not in snapshot.listed and ns not in snapshot.tierings for ns in touched):
        return (
            f"{tiered} is tiered, and the other name of this rename has no policy: put a policy for it into "
            "the resource first, or take this one out; a rename works between two names that both have "
            "one, or both have none"
        )
    return None

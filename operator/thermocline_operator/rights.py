"""What the operator asks of the API server: the one place from which the chart's roles are checked.

A test compares this table with the calls that a run of the operator really made.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Place(Enum):
    """Where a right is needed."""

    WATCHED = "in every namespace that is watched"
    LEASE = "in the namespace of the operator's lease"
    ENDING = (
        "in a namespace that is being deleted, where Roles go before the resource does: everywhere"
    )


@dataclass(frozen=True, slots=True)
class Right:
    """``verbs`` on one resource. ``resource`` is a plural, with its subresource behind a slash."""

    group: str
    resource: str
    verbs: frozenset[str]
    reason: str
    place: Place = Place.WATCHED


def _right(
    group: str, resource: str, verbs: str, reason: str, place: Place = Place.WATCHED
) -> Right:
    return Right(group, resource, frozenset(verbs.split()), reason, place)


RIGHTS: Final = (
    _right("thermocline.io", "tieredreplicasets", "get list watch patch", "patch: the finalizer"),
    _right("thermocline.io", "tieredreplicasets/status", "update", "what it found"),
    _right("", "namespaces", "get", "whether it is being deleted"),
    _right(
        "", "configmaps", "get list watch create patch", "the manifest that the services follow"
    ),
    _right("", "services", "get list watch create patch", "where applications connect"),
    _right("", "secrets", "get create patch", "credentials for a drain; the binding Secret"),
    _right("", "pods", "list watch patch", "patch: so that a kubelet updates files at once"),
    _right("", "events", "create patch", "what happened, for people"),
    _right("apps", "deployments", "get list watch create patch", "the services"),
    _right(
        "policy",
        "poddisruptionbudgets",
        "get list watch create patch delete",
        "budget of the proxies",
    ),
    _right(
        "networking.k8s.io",
        "networkpolicies",
        "get list watch create patch delete",
        "who may reach the services",
    ),
    _right(
        "thermocline.io", "tieredreplicasets", "get list watch patch", "to let it go", Place.ENDING
    ),
    _right(
        "thermocline.io",
        "tieredreplicasets/status",
        "update",
        "to say what it waits for",
        Place.ENDING,
    ),
    _right("", "namespaces", "get", "whether it is being deleted", Place.ENDING),
    _right("", "pods", "list", "whether a feeder still runs", Place.ENDING),
    Right(
        "coordination.k8s.io",
        "leases",
        frozenset({"get", "create", "update"}),
        "one operator works at a time",
        Place.LEASE,
    ),
)
"""By place. The rest is what every account may do: discovery and the served schema."""

WITHOUT_CALL: Final = (
    Right(
        "thermocline.io",
        "tieredreplicasets/finalizers",
        frozenset({"update"}),
        "asked for by the admission plugin OwnerReferencesPermissionEnforcement, not by a call",
    ),
)
"""Rights that no recorded call shows."""

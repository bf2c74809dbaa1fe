"""When a resource may go: not while the archive may lack an acknowledged write.

A timeout alone never releases. What releases: proof that the archive has everything, a policy or a
person that says to go on without, or the end of a tier that lived in the same namespace.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from thermocline_common.spec.models import DeletionPolicy, Mode
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place
from thermocline_operator.plan.labels import FINALIZER, FORCE_DELETE
from thermocline_operator.plan.source import Resource

WAIT_FOR_POD_SECONDS: Final = 20.0
"""So long the feeder's pod may be silent before the operator drains by itself."""
SILENT_SECONDS: Final = 60.0
"""A drain that hasn't got anywhere for so long is shown as blocked; nothing else follows from it."""


def has_finalizer(body: Mapping[str, Any]) -> bool:
    """Whether our finalizer stands in an object."""
    return FINALIZER in (body["metadata"].get("finalizers") or [])


def forced(body: Mapping[str, Any]) -> bool:
    """Whether a person forces the deletion of this very resource: a copied manifest can't."""
    annotations = body["metadata"].get("annotations") or {}
    return bool(annotations.get(FORCE_DELETE) == body["metadata"]["uid"])


def drained_by(report: Mapping[str, Any] | None, generation: int) -> bool:
    """Whether a feeder's report proves that nothing is tiered, by a manifest of this generation."""
    own = (report or {}).get("feeder") or {}
    return bool(own.get("drained")) and own.get("settledGeneration") == generation


def agrees(report: Mapping[str, Any] | None, generation: int) -> bool:
    """Whether a feeder works by the manifest of this generation, and so begins nothing new."""
    return report is not None and report.get("appliedGeneration") == generation


class Guard(Enum):
    """What to do with a living resource's finalizer."""

    KEEP = "leave it as it is"
    ADD = "put it there, before services learn that anything is to be tiered"
    REMOVE = "nothing is tiered, as the feeder has proven"


def wants_tiering(resource: Resource) -> bool:
    """Whether anything is to be tiered."""
    return resource.spec.mode is Mode.ACTIVE and bool(resource.spec.collections)


def guard(
    resource: Resource, *, has: bool, report: Mapping[str, Any] | None, served: bool = False
) -> Guard:
    """The finalizer stands while unsent writes may exist. ``report``: the feeder's fresh one.

    ``served``: services follow a manifest already by which something is tiered.

    Before a feeder has reached both tiers nothing can be tiered: a resource that never worked
    can be deleted at once.
    """
    own = (report or {}).get("feeder") or {}
    if wants_tiering(resource):
        if has or resource.spec.deletion_policy is DeletionPolicy.ABANDON:
            return Guard.KEEP
        return Guard.ADD if served or own.get("role") == "owner" else Guard.KEEP
    return Guard.REMOVE if has and drained_by(report, resource.generation) else Guard.KEEP


def may_tier(resource: Resource, *, has: bool) -> bool:
    """Whether services may learn that something is to be tiered."""
    return has or resource.spec.deletion_policy is DeletionPolicy.ABANDON


class Outcome(Enum):
    """How a drain by the operator itself ended."""

    DRAINED = "everything was brought to the archive"
    REFUSED = "the archive refuses some documents"
    FAILED = "it ended without a result"


@dataclass(frozen=True, slots=True)
class Deletion:
    """What is known of a resource that is being deleted.

    ``proven``: the archive has everything. ``unsent``: operations that aren't replayed, as last heard;
    None: not known. ``lost_tier``: a tier that ended with its namespace, or None. ``silent``: seconds
    since a feeder in a pod was heard of. ``stuck``: seconds since the drain got anywhere.
    ``waits``: what feeder or tiers say that holds it up. ``outcome``: of the operator's own drain.
    """

    name: str
    namespace: str
    uid: str
    policy: DeletionPolicy
    forced: bool
    proven: bool
    unsent: int | None
    lost_tier: str | None
    silent: float
    stuck: float
    waits: tuple[str, ...] = ()
    outcome: Outcome | None = None
    terminating: bool = False


class Why(Enum):
    """Why a resource is released."""

    DRAINED = "the archive has everything"
    ABANDONED = "spec.deletionPolicy is Abandon"
    FORCED = "a person forced it"
    TIER_LOST = "a tier ended with its namespace"


@dataclass(frozen=True, slots=True)
class Release:
    """The finalizer goes."""

    why: Why
    text: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The finalizer stays. ``alone``: the operator drains by itself, as no pod does."""

    text: str
    blocked: bool
    alone: bool


def decide(deletion: Deletion) -> Release | Hold:
    """What to do now."""
    unsent = _unsent(deletion.unsent)
    if deletion.proven:
        return Release(Why.DRAINED, "the archive has every acknowledged write")
    if deletion.policy is DeletionPolicy.ABANDON:
        return Release(Why.ABANDONED, f"spec.deletionPolicy is Abandon: {unsent}")
    if deletion.forced:
        return Release(Why.FORCED, f"the annotation {FORCE_DELETE} asks for it: {unsent}")
    if deletion.lost_tier is not None:
        return Release(
            Why.TIER_LOST, f"{deletion.lost_tier} was deleted with the namespace: {unsent}"
        )
    alone = deletion.terminating or deletion.silent >= WAIT_FOR_POD_SECONDS
    blocked = deletion.outcome is Outcome.REFUSED or deletion.stuck >= SILENT_SECONDS
    waits = "; ".join(deletion.waits)
    if not blocked:
        text = f"the archive gets what it lacks ({unsent})"
        return Hold(f"{text}; {waits}" if waits else text, False, alone)
    refused = deletion.outcome is Outcome.REFUSED
    why = waits or (Outcome.REFUSED.value if refused else "nothing has moved for a minute")
    command = force_command(deletion.name, deletion.namespace, deletion.uid)
    return Hold(
        f"deletion waits until the archive has everything ({unsent}): {why}. To delete all the same, "
        f"and lose what wasn't replayed: {command}",
        True,
        alone,
    )


def force_command(name: str, namespace: str, uid: str) -> str:
    """The exact command that forces a deletion."""
    return f"kubectl annotate tieredreplicaset {name} -n {namespace} {FORCE_DELETE}={uid}"


def _unsent(count: int | None) -> str:
    if count is None:
        return "how many operations weren't replayed isn't known"
    return f"{count} operations weren't replayed when last heard of"


def local_tiers(resource: Resource, services: frozenset[str]) -> list[str]:
    """The tiers whose servers are all in the resource's own namespace: ``archive``, ``fastTier``.

    ``services``: names of Services that were seen there.
    """
    return [
        field
        for field, tier in (
            ("archive", resource.spec.archive),
            ("fastTier", resource.spec.fast_tier),
        )
        if all(
            _is_local(host.name, resource.namespace, services)
            for host in check(tier.uri, Place.MANIFEST).uri.hosts
        )
    ]


def short_services(resource: Resource) -> frozenset[str]:
    """Services that the tiers' hosts may name in the resource's own namespace."""
    hosts = [
        host.name.split(".")
        for tier in (resource.spec.archive, resource.spec.fast_tier)
        for host in check(tier.uri, Place.MANIFEST).uri.hosts
    ]
    return frozenset(parts[-1] for parts in hosts if len(parts) <= 2)


def _is_local(host: str, namespace: str, services: frozenset[str]) -> bool:
    """What can't be told is not local: a tier that lives elsewhere must never count as lost."""
    parts = host.split(".")
    if len(parts) <= 2:
        # service, pod.service or service.namespace: names of the own namespace are looked up first.
        return parts[-1] in services or (len(parts) == 2 and parts[1] == namespace)
    return "svc" in parts and parts[parts.index("svc") - 1] == namespace

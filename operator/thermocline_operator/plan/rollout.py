"""Whether pods may be rolled for the operator's own sake.

A pod template changes because the resource changed, which its author asked for, or because the
operator did: another image, another layout. The second is told by an id, a digest of what this
operator makes of a fixed resource.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from thermocline_common.spec.models import RolloutPolicy
from thermocline_operator.plan import labels, pods
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.plan.source import Resource, resource_of

_REFERENCE: Final = resource_of(
    {
        "apiVersion": "thermocline.io/v1alpha1",
        "kind": "TieredReplicaSet",
        "metadata": {"name": "reference", "namespace": "reference", "uid": "", "generation": 0},
        "spec": {
            "archive": {"uri": "mongodb://archive:27017/?replicaSet=archive"},
            "fastTier": {"uri": "mongodb://fast:27017/?replicaSet=fast"},
        },
    }
)


@functools.cache
def rollout_id(component: Component, settings: PodSettings) -> str:
    """What this operator makes of a service's pods, as a short digest."""
    text = json.dumps(pods.template(_REFERENCE, component, settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@functools.cache
def whole_id(settings: PodSettings) -> str:
    """One id for all services: the value of the annotation that approves."""
    text = ",".join(rollout_id(component, settings) for component in Component)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Hold:
    """A Deployment that keeps the pods it has. ``images``: of its pods now, and of those to come."""

    component: Component
    images: tuple[str, str]


def hold(
    resource: Resource,
    component: Component,
    settings: PodSettings,
    live: Mapping[str, Any] | None,
) -> Hold | None:
    """Whether a Deployment (as it is now; None: there is none) waits for an approval."""
    if live is None or resource.spec.rollout_policy is RolloutPolicy.AUTO:
        return None
    annotations = live["metadata"].get("annotations") or {}
    made_by = annotations.get(labels.ROLLOUT)
    if made_by is None or made_by == rollout_id(component, settings):
        return None
    if resource.annotations.get(labels.APPROVED_ROLLOUT) == whole_id(settings):
        return None
    containers = live["spec"]["template"]["spec"]["containers"]
    now = next((c["image"] for c in containers if c["name"] == component.value), "unknown")
    return Hold(component, (now, settings.image))


def held_back(desired: dict[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """``desired`` with the pod template that is there already, and its id."""
    made_by = live["metadata"]["annotations"][labels.ROLLOUT]
    metadata = {**desired["metadata"], "annotations": {labels.ROLLOUT: made_by}}
    spec = {**desired["spec"], "template": live["spec"]["template"]}
    return {**desired, "metadata": metadata, "spec": spec}


def describe(holds: list[Hold], settings: PodSettings) -> str | None:
    """``status.pendingRollout``: the id to approve, then what it is about."""
    if not holds:
        return None
    images = {h.images for h in holds if h.images[0] != h.images[1]}
    what = ", ".join(f"{old} -> {new}" for old, new in sorted(images)) or "another pod layout"
    services = ", ".join(h.component.value for h in holds)
    return f"{whole_id(settings)}: {what} ({services})"

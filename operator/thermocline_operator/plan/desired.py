"""Everything that should be there for one resource."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thermocline_operator.plan import labels, rollout
from thermocline_operator.plan.effective import MANIFEST_KEY, Intent, render
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.networking import binding, network_policy, services
from thermocline_operator.plan.objects import KINDS, Ref, make, ref_of
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.plan.source import Resource
from thermocline_operator.plan.workloads import budget, deployment


@dataclass(frozen=True, slots=True)
class Desired:
    """``objects`` in the order in which they are applied; ``pending`` is ``status.pendingRollout``."""

    objects: tuple[dict[str, Any], ...]
    pending: str | None = None

    @property
    def refs(self) -> frozenset[Ref]:
        """Which objects there should be."""
        return frozenset(ref_of(body) for body in self.objects)


def config_map(resource: Resource, intent: Intent) -> dict[str, Any]:
    """The ConfigMap with the manifest."""
    body = make(resource, "ConfigMap", labels.config_map(resource.name), "manifest")
    body["data"] = {MANIFEST_KEY: render(resource, intent)}
    return body


def plan(
    resource: Resource,
    intent: Intent,
    settings: PodSettings,
    live: Mapping[Ref, Mapping[str, Any]],
) -> Desired:
    """``live``: the resource's Deployments as they are, to hold back what isn't approved."""
    objects = [
        config_map(resource, intent),
        binding(resource),
        *services(resource),
    ]
    if resource.spec.proxy.replicas >= 2:
        objects.append(budget(resource))
    if settings.network_policies:
        objects.append(network_policy(resource, settings))
    holds = []
    for component in Component:
        wanted = deployment(resource, component, settings, rollout.rollout_id(component, settings))
        existing = live.get(ref_of(wanted))
        held = rollout.hold(resource, component, settings, existing)
        if held is not None and existing is not None:
            holds.append(held)
            wanted = rollout.held_back(wanted, existing)
        objects.append(wanted)
    order = list(KINDS)
    objects.sort(key=lambda body: order.index(body["kind"]))
    return Desired(tuple(objects), rollout.describe(holds, settings))


def surplus(desired: Desired, live: Mapping[Ref, Mapping[str, Any]], uid: str) -> list[Ref]:
    """Objects of ours that should be there no longer, of the kinds that can become needless."""
    return sorted(
        ref
        for ref, body in live.items()
        if ref[0] in ("PodDisruptionBudget", "NetworkPolicy")
        and ref not in desired.refs
        and any(r.get("uid") == uid for r in body["metadata"].get("ownerReferences") or [])
    )

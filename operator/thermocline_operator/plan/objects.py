"""Kubernetes objects as plain values, and how they are told apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from thermocline_operator.plan import labels
from thermocline_operator.plan.source import Resource


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that the operator owns."""

    name: str
    group_version: str
    plural: str

    @property
    def prefix(self) -> str:
        """The first part of its paths at the API server."""
        return "/api/v1" if self.group_version == "v1" else f"/apis/{self.group_version}"


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("ConfigMap", "v1", "configmaps"),
        Kind("Secret", "v1", "secrets"),
        Kind("Service", "v1", "services"),
        Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
        Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
        Kind("Deployment", "apps/v1", "deployments"),
    )
}
"""In the order in which they are applied: pods come last."""

Ref = tuple[str, str]
"""Kind and name, within the resource's namespace."""


def make(resource: Resource, kind: str, name: str, component: str) -> dict[str, Any]:
    """An owned object without its content."""
    return {
        "apiVersion": KINDS[kind].group_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": resource.namespace,
            "labels": labels.labels(resource.name, component),
            "ownerReferences": [labels.owner_reference(resource.name, resource.uid)],
        },
    }


def ref_of(body: Mapping[str, Any]) -> Ref:
    """Which object it is."""
    return str(body["kind"]), str(body["metadata"]["name"])


def owned_by(body: Mapping[str, Any], uid: str) -> bool:
    """Whether the object belongs to the resource with this uid."""
    references = (body.get("metadata") or {}).get("ownerReferences") or []
    return any(reference.get("uid") == uid for reference in references)

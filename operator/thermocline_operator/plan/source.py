"""The resource as the planner sees it: checked, and as its author wrote it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thermocline_common.spec.manifest import find_problems, parse_manifest
from thermocline_common.spec.models import Spec, TieredReplicaSet
from thermocline_common.spec.problems import Problem


@dataclass(frozen=True, slots=True)
class Resource:
    """``raw_spec`` is the spec as the API server holds it, from which manifests are rendered."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
    raw_spec: Mapping[str, Any]
    annotations: Mapping[str, str] = field(default_factory=dict)


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = body.get("metadata") or {}
    return {
        "apiVersion": body.get("apiVersion"),
        "kind": body.get("kind"),
        "metadata": {k: metadata[k] for k in _METADATA if k in metadata},
        "spec": body.get("spec"),
    }


_METADATA = ("name", "namespace", "uid", "generation")


def problems_of(body: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with an object of the API server; none: :func:`resource_of` takes it."""
    return find_problems(_plain(body))


def resource_of(body: Mapping[str, Any]) -> Resource:
    """From an object of the API server. Raises ``ManifestError`` with every problem."""
    checked: TieredReplicaSet = parse_manifest(_plain(body))
    metadata = checked.metadata
    return Resource(
        metadata.name,
        metadata.namespace,
        metadata.uid,
        metadata.generation,
        checked.spec,
        body["spec"],
        dict((body.get("metadata") or {}).get("annotations") or {}),
    )

"""The manifest that the services follow: the resource's, with what deletion makes of it."""

import copy
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import yaml

from thermocline_common import names
from thermocline_common.spec.models import DeletionPolicy
from thermocline_common.spec.problems import ManifestError
from thermocline_common.spec.reading import read_text
from thermocline_operator.plan import labels
from thermocline_operator.plan.source import Resource, resource_of

Ref = tuple[str, str]

MANIFEST_KEY: Final = "manifest.yaml"


class Intent(Enum):
    """What the services are for now."""

    SERVE = "as the resource says"
    WAIT = "tier nothing yet: no feeder has reached both tiers"
    DRAIN = "bring everything to the archive"


def manifest(resource: Resource, intent: Intent) -> dict[str, Any]:
    """A manifest as plain values.

    It is the resource's own spec and no dump of the models: a default that is written out can
    contradict what stands in a connection string.
    """
    spec: dict[str, Any] = copy.deepcopy(dict(resource.raw_spec))
    if intent is not Intent.SERVE:
        spec["mode"] = "Passthrough"
    if intent is Intent.DRAIN:
        # Whoever deletes a resource that holds still wants it to move.
        spec["paused"] = False
        spec["feeder"] = {**(spec.get("feeder") or {}), "mode": "Running"}
    metadata: dict[str, Any] = {
        "name": resource.name,
        "namespace": resource.namespace,
        "uid": resource.uid,
        "generation": resource.generation,
    }
    if intent is Intent.DRAIN and resource.spec.deletion_policy is DeletionPolicy.RETAIN:
        metadata["retain"] = True
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": metadata,
        "spec": spec,
    }


def render(resource: Resource, intent: Intent) -> str:
    """The manifest as YAML; equal resources give equal bytes."""
    text: str = yaml.safe_dump(
        manifest(resource, intent), sort_keys=True, width=100, allow_unicode=True
    )
    return text


def _rendered(live: Mapping[Ref, Mapping[str, Any]], name: str) -> Resource | None:
    """The resource that the live ConfigMap describes; None: there is none, or it can't be read."""
    data = live.get(("ConfigMap", labels.config_map(name)), {}).get("data") or {}
    try:
        return resource_of(read_text(str(data.get(MANIFEST_KEY) or "")))
    except ManifestError:
        return None


def served_mode(live: Mapping[Ref, Mapping[str, Any]], name: str) -> str | None:
    """The mode that services follow now, by the live ConfigMap."""
    found = _rendered(live, name)
    return None if found is None else found.spec.mode.value


def recovered(live: Mapping[Ref, Mapping[str, Any]], name: str) -> Resource | None:
    """The last valid resource, where the operator has started anew and the present spec is invalid."""
    return _rendered(live, name)

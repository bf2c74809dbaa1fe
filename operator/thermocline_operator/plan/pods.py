"""The pods of a service: restricted, without API token, with the resource's overrides."""

import hashlib
import json
import math
from typing import Any, Final

from thermocline_common.names import ZONE_VARIABLE
from thermocline_common.spec.models import PodTemplate, Resources, ServiceSpec
from thermocline_common.spec.reads import connection_key
from thermocline_operator.plan import labels
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.plan.source import Resource
from thermocline_operator.plan.volumes import CREDENTIALS_DIR, MANIFEST_PATH, MOUNTS, volumes

MONGODB_PORT: Final = 27017
ADMIN_PORT: Final = 8080
GRACE_SECONDS: Final = 15
"""Beyond ``proxy.drainTimeout``: two seconds of accepting, five for commands in hand, the rest to end."""
WORKER_GRACE_SECONDS: Final = 30


def service_spec(resource: Resource, component: Component) -> ServiceSpec:
    """The resource's part about one service."""
    spec = resource.spec
    found: dict[Component, ServiceSpec] = {
        Component.PROXY: spec.proxy,
        Component.FEEDER: spec.feeder,
        Component.EVICTOR: spec.evictor,
        Component.WARMER: spec.warmer,
    }
    return found[component]


def connections_digest(resource: Resource) -> str:
    """A digest of what services' connections to both tiers are made of, which they read at their start only."""
    tiers = (resource.spec.archive, resource.spec.fast_tier)
    text = json.dumps([connection_key(tier) for tier in tiers])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def workers(resource: Resource, component: Component) -> int:
    """How many processes of a service a pod has: proxies share a port, each in a container of its own."""
    return resource.spec.proxy.workers if component is Component.PROXY else 1


def template(resource: Resource, component: Component, settings: PodSettings) -> dict[str, Any]:
    """The pod template of a service's Deployment."""
    own = service_spec(resource, component)
    overrides = own.pod_template
    return {
        "metadata": {
            "labels": {**overrides.labels, **labels.labels(resource.name, component.value)},
            "annotations": {
                **overrides.annotations,
                labels.CONNECTIONS: connections_digest(resource),
            },
        },
        "spec": _pod(resource, component, settings, overrides, own.resources),
    }


def _pod(
    resource: Resource,
    component: Component,
    settings: PodSettings,
    overrides: PodTemplate,
    resources: Resources,
) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": _grace(resource, component),
        "containers": [
            _container(resource, component, settings, resources, worker)
            for worker in range(workers(resource, component))
        ],
        "volumes": volumes(resource, component),
    }
    tolerations = [*_tolerations(component), *overrides.tolerations]
    if tolerations:
        pod["tolerations"] = tolerations
    spread = overrides.topology_spread_constraints or _spread(resource, component)
    if spread:
        pod["topologySpreadConstraints"] = spread
    if overrides.affinity is not None:
        pod["affinity"] = overrides.affinity
    if overrides.priority_class_name is not None:
        pod["priorityClassName"] = overrides.priority_class_name
    if overrides.service_account_name is not None:
        pod["serviceAccountName"] = overrides.service_account_name
    if settings.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return pod


def _grace(resource: Resource, component: Component) -> int:
    if component is not Component.PROXY:
        return WORKER_GRACE_SECONDS
    return math.ceil(resource.spec.proxy.drain_timeout.total_seconds()) + GRACE_SECONDS


def _container(
    resource: Resource,
    component: Component,
    settings: PodSettings,
    resources: Resources,
    worker: int,
) -> dict[str, Any]:
    port = ADMIN_PORT + worker
    args = [
        f"--manifest={MANIFEST_PATH}",
        f"--credentials={CREDENTIALS_DIR}",
        f"--admin=:{port}",
    ]
    ports = [{"name": "admin", "containerPort": port, "protocol": "TCP"}]
    if component is Component.PROXY:
        args.append(f"--listen=:{MONGODB_PORT}")
        if worker == 0:
            ports.insert(0, {"name": "mongodb", "containerPort": MONGODB_PORT, "protocol": "TCP"})
    if workers(resource, component) > 1:
        args.append("--share-port")
    container: dict[str, Any] = {
        "name": component.value if worker == 0 else f"{component.value}-{worker + 1}",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": [f"thermocline-{component}"],
        "args": args,
        "ports": ports,
        # Python takes seconds to start on a busy node; only then does liveness count.
        "startupProbe": _probe("/healthz", period=1, failures=300),
        "livenessProbe": _probe("/healthz", period=10, failures=3),
        "readinessProbe": _probe("/readyz", period=2, failures=3),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": MOUNTS,
    }
    locality = resource.spec.proxy.locality
    if component is Component.PROXY and locality is not None:
        # From Kubernetes 1.35 on, a pod gets its node's zone and region as labels; before, the proxy
        # shows the problem "locality" unless somebody else labels it.
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{locality.zone_label}']"}}
        container["env"] = [{"name": ZONE_VARIABLE, "valueFrom": source}]
    wanted = resources.model_dump(mode="json", exclude_defaults=True)
    if wanted:
        container["resources"] = wanted
    return container


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "admin"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _tolerations(component: Component) -> list[dict[str, Any]]:
    if component is Component.PROXY:
        return []
    # A gap of the feeder makes reads of the archive wait: five minutes, the default, is too long.
    return [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 30,
        }
        for key in ("not-ready", "unreachable")
    ]


def _spread(resource: Resource, component: Component) -> list[dict[str, Any]]:
    if component is not Component.PROXY:
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels.selector(resource.name, component)},
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]

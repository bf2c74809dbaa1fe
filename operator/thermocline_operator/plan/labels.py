"""Names of the objects of one resource, their labels and annotations: each written once."""

from enum import StrEnum
from typing import Any, Final

from thermocline_common import names

MANAGER: Final = "thermocline-operator"
"""Field manager of everything that is applied, and the value of ``managed-by``."""

RESOURCE_LABEL: Final = f"{names.GROUP}/resource"
"""On every owned object: the name of its resource. Watches select by it."""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"

FINALIZER: Final = f"{names.GROUP}/drain"
FORCE_DELETE: Final = f"{names.GROUP}/force-delete"
"""Annotation of the resource; counts only with its own uid as value."""
APPROVED_ROLLOUT: Final = f"{names.GROUP}/approved-rollout"
"""Annotation of the resource: the id of the rollout that may go on."""
ROLLOUT: Final = f"{names.GROUP}/rollout"
"""Annotation of a Deployment: what this operator makes of pods, apart from the resource."""
FILES: Final = f"{names.GROUP}/files"
"""Annotation of a pod, touched after a change of its files: its kubelet then updates them at once."""
CONNECTIONS: Final = f"{names.GROUP}/connections"
"""Annotation of a pod template: what a service reads only at its start."""


class Component(StrEnum):
    """The services."""

    PROXY = "proxy"
    FEEDER = "feeder"
    EVICTOR = "evictor"
    WARMER = "warmer"


def config_map(name: str) -> str:
    """The ConfigMap with the manifest."""
    return f"{name}-config"


def deployment(name: str, component: Component) -> str:
    """A service's Deployment; the proxy's Service and budget have the same name."""
    return f"{name}-{component}"


def nodes_service(name: str) -> str:
    """The headless Service of the proxies."""
    return f"{name}-proxy-nodes"


def admin_service(name: str) -> str:
    """The headless Service of every admin port."""
    return f"{name}-admin"


def binding_secret(name: str) -> str:
    """The Secret with the connection string."""
    return f"{name}-binding"


def selector(name: str, component: Component | None = None) -> dict[str, str]:
    """The labels that select a resource's pods, or one service's."""
    labels = {
        "app.kubernetes.io/name": "thermocline",
        "app.kubernetes.io/instance": name,
    }
    return labels if component is None else {**labels, COMPONENT_LABEL: component.value}


def labels(name: str, component: str) -> dict[str, str]:
    """The labels of an object."""
    return {
        "app.kubernetes.io/name": "thermocline",
        "app.kubernetes.io/instance": name,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": MANAGER,
        RESOURCE_LABEL: name,
    }


def owner_reference(name: str, uid: str) -> dict[str, Any]:
    """The reference by which the garbage collector knows what belongs to the resource."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }

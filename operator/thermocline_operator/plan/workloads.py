"""Deployments, and the budget of the proxies."""

from typing import Any

from thermocline_operator.plan import labels, pods
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.objects import make
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.plan.source import Resource


def deployment(
    resource: Resource, component: Component, settings: PodSettings, rollout: str
) -> dict[str, Any]:
    """A service's Deployment; ``rollout``: see :mod:`thermocline_operator.plan.rollout`."""
    name = resource.name
    body = make(resource, "Deployment", labels.deployment(name, component), component.value)
    body["metadata"]["annotations"] = {labels.ROLLOUT: rollout}
    body["spec"] = {
        # Two of a background service can do no harm; a gap of the feeder makes readers wait.
        "replicas": resource.spec.proxy.replicas if component is Component.PROXY else 1,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": 300,
        "selector": {"matchLabels": labels.selector(name, component)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "template": pods.template(resource, component, settings),
    }
    return body


def budget(resource: Resource) -> dict[str, Any]:
    """The proxies' PodDisruptionBudget; only with two or more of them, or no node could be drained."""
    name = labels.deployment(resource.name, Component.PROXY)
    body = make(resource, "PodDisruptionBudget", name, Component.PROXY.value)
    body["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": labels.selector(resource.name, Component.PROXY)},
    }
    return body

"""Reads everything that one turn decides on, and makes facts of it."""

import datetime as dt
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from thermocline_common.clock import monotonic
from thermocline_operator.api import NAMESPACES, PODS, Api, ApiError
from thermocline_operator.certificates import certificate_ends
from thermocline_operator.memory import Body, Memory, Told
from thermocline_operator.plan import deletion, labels
from thermocline_operator.plan.drift import digest
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.objects import KINDS
from thermocline_operator.plan.source import Resource
from thermocline_operator.plan.volumes import secret_names
from thermocline_operator.reports import Reporter
from thermocline_operator.status import objects
from thermocline_operator.status.facts import Ending, Facts, Pod
from thermocline_operator.workqueue import Key

T = TypeVar("T")

EXPIRY_DAYS: Final = 14
RESTART_SECONDS: Final = 60.0
"""A feeder that replaces a dead one waits for the end of that one's ownership; until then what was said holds."""
_LISTED: Final = ("ConfigMap", "Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment")


async def read_world(api: Api, memory: Memory, key: Key) -> None:
    """The owned objects, pods, named Secrets and the namespace, as they are now."""
    namespace, name = key
    selector = f"{labels.RESOURCE_LABEL}={name}"
    own = await api.get(NAMESPACES, None, namespace)
    memory.terminating = own is None or own["metadata"].get("deletionTimestamp") is not None
    live: dict[tuple[str, str], Body] = {}
    for kind in _LISTED:
        found = await _unless_ending(memory, api.list_labelled(KINDS[kind], namespace, selector))
        for body in found or ():
            live[kind, body["metadata"]["name"]] = body
    binding = labels.binding_secret(name)
    secret = await _unless_ending(memory, api.get(KINDS["Secret"], namespace, binding))
    if secret is not None:
        live["Secret", binding] = {"apiVersion": "v1", "kind": "Secret", **secret}
    memory.live = live
    # Pods always: whether a feeder still runs must be known.
    memory.pods = await api.list_labelled(PODS, namespace, selector)


async def _unless_ending(memory: Memory, call: Awaitable[T]) -> T | None:
    """The answer; None where the operator's Role has gone before the rest of the namespace that is ending."""
    try:
        return await call
    except ApiError as error:
        if error.status != 403 or not memory.terminating:
            raise
        return None


async def read_inputs(api: Api, memory: Memory, resource: Resource) -> None:
    """The Secrets that the resource names; and what tells where its tiers live."""
    secrets: dict[str, Body | None] = {}
    for name in secret_names(resource):
        call = api.get(KINDS["Secret"], resource.namespace, name)
        secrets[name] = await _unless_ending(memory, call)
    memory.secrets = secrets
    credentials = objects.credential_files(resource, secrets)
    if all(body is not None for body in secrets.values()):
        memory.credentials = credentials
    seen = set(memory.services)
    for name in deletion.short_services(resource) - seen:
        call = api.get(KINDS["Service"], resource.namespace, name)
        if await _unless_ending(memory, call) is not None:
            seen.add(name)
    memory.services = frozenset(seen)


def files_digest(memory: Memory, resource: Resource) -> str:
    """What the pods' files are made of."""
    manifest = memory.live.get(("ConfigMap", labels.config_map(resource.name)), {}).get("data")
    versions = {
        name: None if body is None else body["metadata"]["resourceVersion"]
        for name, body in memory.secrets.items()
    }
    return digest([manifest, versions])


def pods_of(memory: Memory, reporter: Reporter) -> tuple[Pod, ...]:
    """The pods with their last reports, and the operator's own drain as one of them."""
    found = [
        pod
        for body in memory.pods
        if (pod := objects.pod_of(body, *reporter.last(body))) is not None
    ]
    if memory.outside is not None:
        found.append(
            Pod("the operator itself", Component.FEEDER, ready=True, report=memory.outside)
        )
    return tuple(found)


def facts_of(
    memory: Memory,
    body: Body,
    reporter: Reporter,
    ending: Ending = Ending.NONE,
    ending_text: str = "",
) -> Facts:
    """Everything that the status is decided from."""
    resource = memory.resource
    generation = int(body["metadata"].get("generation", 0))
    deployments = [
        found
        for (kind, _), item in sorted(memory.live.items())
        if kind == "Deployment" and (found := objects.deployment_of(item)) is not None
    ]
    ends = {} if resource is None else certificate_ends(memory.secrets)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(days=EXPIRY_DAYS)
    facts = Facts(
        name=body["metadata"]["name"],
        generation=generation,
        spec=None if resource is None else resource.spec,
        problems=memory.problems,
        pods=pods_of(memory, reporter),
        deployments=tuple(deployments),
        secrets=() if resource is None else objects.secret_troubles(resource, memory.secrets),
        conflicts=tuple(memory.conflicts),
        refused=tuple((kind, name, why) for (kind, name), why in memory.refused.items()),
        applied=memory.complete,
        pending=memory.pending,
        ending=ending,
        ending_text=ending_text,
        not_after={name: end.strftime("%Y-%m-%dT%H:%M:%SZ") for name, end in ends.items()},
        expiring=tuple(sorted(name for name, end in ends.items() if end < soon)),
    )
    return replace(facts, before=_told_before(memory, facts))


def _told_before(memory: Memory, facts: Facts) -> dict[Component, Mapping[str, Mapping[str, Any]]]:
    """What services said of collections that have just been started anew, and are silent about them yet."""
    now = monotonic()
    for component in Component:
        told = facts.own(component).get("namespaces")
        if isinstance(told, Mapping):
            memory.namespaces[component] = Told(told, now)
    return {
        component: told.namespaces
        for component, told in memory.namespaces.items()
        if now - told.at <= RESTART_SECONDS
    }

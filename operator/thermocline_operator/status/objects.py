"""Objects of the API server -> facts."""

import base64
import binascii
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from thermocline_operator.plan import labels
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.pods import ADMIN_PORT
from thermocline_operator.plan.source import Resource
from thermocline_operator.plan.volumes import secret_files
from thermocline_operator.status.facts import Deployment, Pod, SecretTrouble

_TROUBLE: Final = frozenset(
    {
        "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "CrashLoopBackOff",
        "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
    }
)  # fmt: skip


def component_of(body: Mapping[str, Any]) -> Component | None:
    """Which service an object belongs to."""
    found = (body["metadata"].get("labels") or {}).get(labels.COMPONENT_LABEL)
    return Component(found) if found in set(Component) else None


def pod_of(body: Mapping[str, Any], report: Mapping[str, Any] | None, age: float) -> Pod | None:
    """One pod and what its ``/status`` said ``age`` seconds ago; None: it isn't one of a service."""
    component = component_of(body)
    if component is None:
        return None
    status = body.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    return Pod(
        name=body["metadata"]["name"],
        component=component,
        ready=conditions.get("Ready", {}).get("status") == "True",
        leaving=body["metadata"].get("deletionTimestamp") is not None
        or status.get("phase") in ("Succeeded", "Failed"),
        trouble=_trouble(status, conditions),
        report=report,
        age=age,
    )


def admin_ports(body: Mapping[str, Any]) -> list[int]:
    """Where a pod's processes can be asked; a proxy's pod may have several."""
    ports = [
        port["containerPort"]
        for container in (body.get("spec") or {}).get("containers") or []
        for port in container.get("ports") or []
        if port.get("name") == "admin"
    ]
    return ports or [ADMIN_PORT]


def as_one(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The reports of a pod's processes as one: what any of them lacks, the pod lacks."""
    if len(reports) == 1:
        return reports[0]
    late = min(reports, key=lambda report: report.get("appliedGeneration") or 0)
    problems: dict[str, Any] = {}
    for report in reports:
        problems |= report.get("problems") or {}
    found = {**late, "problems": problems}
    counted = [(r.get("proxy") or {}).get("namespaces") or {} for r in reports]
    namespaces = {
        name: _together([one.get(name) or {} for one in counted])
        for name in sorted(set().union(*counted))
    }
    return {**found, "proxy": {**(late.get("proxy") or {}), "namespaces": namespaces}}


def _together(reads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    archive: Counter[str] = Counter()
    for one in reads:
        archive.update(one.get("archive") or {})
    return {"fast": sum(one.get("fast", 0) for one in reads), "archive": dict(archive)}


def _trouble(
    status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]
) -> tuple[str, str] | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason") or "Unscheduled"), str(scheduled.get("message") or "")
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _TROUBLE:
            return str(waiting["reason"]), str(waiting.get("message") or "")
    return None


def deployment_of(body: Mapping[str, Any]) -> Deployment | None:
    """One Deployment; None: it isn't one of a service."""
    component = component_of(body)
    if component is None:
        return None
    status = body.get("status") or {}
    replicas = body["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= body["metadata"].get("generation", 0)
    counts = [status.get(k, 0) for k in ("replicas", "updatedReplicas", "availableReplicas")]
    failure = next(
        (
            str(c.get("message") or c.get("reason"))
            for c in status.get("conditions") or []
            if c.get("type") == "ReplicaFailure" and c.get("status") == "True"
        ),
        None,
    )
    return Deployment(
        component=component,
        replicas=replicas,
        ready=status.get("readyReplicas", 0),
        rolled_out=seen and all(count == replicas for count in counts),
        failure=failure,
    )


def secret_troubles(
    resource: Resource, secrets: Mapping[str, Mapping[str, Any] | None]
) -> tuple[SecretTrouble, ...]:
    """Named Secrets that aren't there or lack a key; those that nobody could ask for are passed over."""
    found: dict[str, SecretTrouble] = {}
    files = secret_files(resource, Component.PROXY)
    for name in dict.fromkeys(name for name, _, _ in files):
        if name not in secrets:
            continue
        paths = {path: key for secret, key, path in files if secret == name}
        secret = secrets[name]
        tls = not any(path.endswith(("/username", "/password")) for path in paths)
        if secret is None:
            found[name] = SecretTrouble(name, tls=tls)
            continue
        there = {key for key, value in (secret.get("data") or {}).items() if value}
        missing = tuple(sorted(_missing(paths, there)))
        if missing:
            found[name] = SecretTrouble(name, missing, tls)
    return tuple(found.values())


def _missing(paths: Mapping[str, str], there: set[str]) -> set[str]:
    wanted = set(paths.values())
    if "tls.pem" in wanted and ("tls.pem" in there or {"tls.crt", "tls.key"} <= there):
        wanted -= {"tls.pem", "tls.crt", "tls.key"}
    else:
        wanted.discard("tls.pem")
    return wanted - there


def credential_files(
    resource: Resource, secrets: Mapping[str, Mapping[str, Any] | None]
) -> dict[str, bytes]:
    """The files of a service's credentials directory, by path; what isn't there is left out."""
    found: dict[str, bytes] = {}
    for name, key, path in secret_files(resource, Component.FEEDER):
        value = ((secrets.get(name) or {}).get("data") or {}).get(key)
        if value is None:
            continue
        try:
            found[path] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            continue
    return found

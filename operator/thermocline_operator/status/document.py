"""The whole ``status``, and when it is written."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from thermocline_common.spec.models import Mode
from thermocline_common.spec.resource_status import (
    Blocked,
    ComponentStatus,
    Condition,
    ProxyStatus,
    ResourceStatus,
)
from thermocline_operator.plan import labels
from thermocline_operator.plan.labels import Component
from thermocline_operator.status import policies
from thermocline_operator.status.conditions import decide
from thermocline_operator.status.facts import Ending, Facts
from thermocline_operator.status.reasons import ConditionType, Phase, Reason
from thermocline_operator.status.verdicts import Verdict

NUMBERS_SECONDS: Final = 15.0
"""Numbers and texts alone are written at most this often."""

Status = Mapping[str, Any]


class Due(Enum):
    """Whether a new status has to be written."""

    NOW = "phase, condition or something waited for has changed"
    LATER = "only numbers or texts have changed"
    NEVER = "nothing has changed"


def build(facts: Facts, previous: Status, now: str) -> dict[str, Any]:
    """``previous``: the status as it stands; ``now``: RFC 3339."""
    verdicts = decide(facts)
    status = ResourceStatus(
        observed_generation=facts.generation,
        phase=_phase(facts, verdicts, previous).value,
        conditions=[
            _condition(kind, verdict, previous, facts.generation, now)
            for kind, verdict in verdicts.items()
        ],
        blocked_on=_since(blocked_on(facts, verdicts), previous, now),
        collections=policies.statuses(facts),
        components=[c for component in Component if (c := _component(facts, component))],
        proxy=_proxy(facts),
        warm=policies.overall_warm(facts),
        lag=policies.overall_lag(facts),
        coverage=policies.coverage(facts),
        pending_rollout=facts.pending,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _phase(facts: Facts, verdicts: Mapping[ConditionType, Verdict], previous: Status) -> Phase:
    if facts.ending is not Ending.NONE:
        return Phase.DRAINING
    stalled = verdicts[ConditionType.STALLED]
    if stalled.reason in (Reason.INVALID_SPEC, Reason.NAME_CONFLICT, Reason.API_REFUSED):
        return Phase.FAILED
    if facts.spec is not None and facts.spec.paused:
        return Phase.PAUSED
    ready = verdicts[ConditionType.READY]
    if ready.status is not True:
        first = previous.get("phase") in (None, Phase.PENDING.value, Phase.FAILED.value)
        on_its_way = ready.reason is Reason.SWITCHING
        return Phase.PENDING if first or on_its_way else Phase.DEGRADED
    if verdicts[ConditionType.DEGRADED].status:
        return Phase.DEGRADED
    if facts.spec is not None and facts.spec.mode is Mode.PASSTHROUGH:
        return Phase.PASSTHROUGH
    warm = verdicts[ConditionType.WARMUP_COMPLETE]
    return Phase.ACTIVE if warm.status else Phase.WARMING


def _condition(
    kind: ConditionType, verdict: Verdict, previous: Status, generation: int, now: str
) -> Condition:
    old: dict[str, Any] = next(
        (c for c in previous.get("conditions") or [] if c.get("type") == kind.value), {}
    )
    same = old.get("status") == verdict.text
    return Condition(
        type=kind.value,
        status=verdict.text,
        reason=verdict.reason.value,
        message=verdict.message,
        last_transition_time=old["lastTransitionTime"] if same else now,
        observed_generation=generation,
    )


def blocked_on(facts: Facts, verdicts: Mapping[ConditionType, Verdict]) -> list[Blocked]:
    """Everything that is waited for, without ``since``."""
    found = [
        Blocked(
            kind="Secret",
            name=trouble.name,
            reason="it isn't there"
            if not trouble.missing_keys
            else f"it lacks {', '.join(trouble.missing_keys)}",
        )
        for trouble in facts.secrets
    ]
    found += [
        Blocked(kind=kind, name=name, reason="it belongs to somebody else; delete or rename it")
        for kind, name in facts.conflicts
    ]
    found += [Blocked(kind=kind, name=name, reason=why) for kind, name, why in facts.refused]
    found += [
        Blocked(kind="Pod", name=pod.name, reason=f"{pod.trouble[0]}: {pod.trouble[1]}")
        for pod in facts.pods
        if pod.trouble is not None and not pod.leaving
    ]
    found += [
        Blocked(
            kind="Deployment",
            name=labels.deployment(facts.name, d.component),
            reason=f"its pods can't be made: {d.failure}",
        )
        for d in facts.deployments
        if d.failure is not None
    ]
    for kind, tier in (
        (ConditionType.ARCHIVE_REACHABLE, "archive"),
        (ConditionType.FAST_TIER_REACHABLE, "fastTier"),
    ):
        if verdicts[kind].status is False:
            found.append(Blocked(kind="Tier", name=tier, reason=verdicts[kind].message))
    found += [
        Blocked(kind="Collection", name=namespace, reason=text or "its state is being changed")
        for namespace, text in policies.unreached(facts).items()
    ]
    if facts.ending is Ending.BLOCKED:
        found.append(Blocked(kind="Drain", name=facts.name, reason=facts.ending_text))
    if facts.pending is not None:
        found.append(Blocked(kind="Rollout", name=facts.pending.partition(":")[0], reason="it waits for approval"))  # fmt: skip
    ready = verdicts[ConditionType.READY]
    if not found and ready.status is not True and not facts.problems:
        # Never "Pending" without saying for what.
        name = labels.deployment(facts.name, Component.PROXY)
        found.append(Blocked(kind="Deployment", name=name, reason=ready.message))
    return found


def _since(found: list[Blocked], previous: Status, now: str) -> list[Blocked]:
    known = {
        (b.get("kind"), b.get("name")): b.get("since") for b in previous.get("blockedOn") or []
    }
    return [b.model_copy(update={"since": known.get((b.kind, b.name)) or now}) for b in found]


def _component(facts: Facts, component: Component) -> ComponentStatus | None:
    reports = facts.reports(component)
    if not reports:
        return None
    generations = [g for r in reports if isinstance(g := r.get("appliedGeneration"), int)]
    own = [r.get("credentials") or {} for r in reports]
    ends = [
        str(certificate["notAfter"])
        for credentials in own
        for certificate in credentials.get("certificates") or []
        if certificate.get("notAfter")
    ]
    taken = [g for credentials in own if isinstance(g := credentials.get("generation"), int)]
    versions = sorted({str(r.get("version")) for r in reports})
    return ComponentStatus(
        name=component.value,
        version=", ".join(versions),
        applied_generation=min(generations) if generations else None,
        credentials_generation=str(min(taken)) if taken else None,
        not_after=min(ends) if ends else None,
    )


def _proxy(facts: Facts) -> ProxyStatus:
    found = next((d for d in facts.deployments if d.component is Component.PROXY), None)
    selector = labels.selector(facts.name, Component.PROXY)
    return ProxyStatus(
        replicas=0 if found is None else found.replicas,
        ready_replicas=0 if found is None else found.ready,
        selector=",".join(f"{key}={value}" for key, value in selector.items()),
    )


def due(written: Status, wanted: Status) -> Due:
    """``written``: as it stands in the API server; ``wanted``: as :func:`build` made it."""
    if written == wanted:
        return Due.NEVER
    return Due.NOW if _grave(written) != _grave(wanted) else Due.LATER


def _grave(status: Status) -> Any:
    """The part that people and programs wait for."""
    return (
        status.get("observedGeneration"),
        status.get("phase"),
        status.get("pendingRollout"),
        [(c["type"], c["status"], c["reason"]) for c in status.get("conditions") or []],
        [(b["kind"], b["name"]) for b in status.get("blockedOn") or []],
        [(c["namespace"], c.get("state")) for c in status.get("collections") or []],
        [(c["name"], c.get("appliedGeneration")) for c in status.get("components") or []],
        status.get("proxy"),
    )

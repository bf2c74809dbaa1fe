"""What is shown of each collection, and of all of them together."""

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from typing import Any

from thermocline_common.spec.models import CollectionPolicy, Mode, Spec
from thermocline_common.spec.resource_status import CollectionStatus
from thermocline_operator.plan.labels import Component
from thermocline_operator.status.facts import Ending, Facts

WARM_PERCENT = 99.95
"""From here on a policy counts as covered: services round to a tenth."""


def namespaces(facts: Facts, component: Component) -> Mapping[str, Mapping[str, Any]]:
    """A service's reports by namespace; empty where it wasn't heard of."""
    found = facts.own(component).get("namespaces")
    return found if isinstance(found, Mapping) else {}


def wanted_state(spec: Spec, facts: Facts) -> str:
    """The state that every collection of the policies should be in."""
    active = spec.mode is Mode.ACTIVE and facts.ending is Ending.NONE
    return "Active" if active else "Passthrough"


def unreached(facts: Facts) -> dict[str, str | None]:
    """Collections that aren't in the state that they should be in, and what each waits for (None: time)."""
    if facts.spec is None:
        return {}
    reports = namespaces(facts, Component.FEEDER)
    active = {c.namespace for c in facts.spec.collections} if _active(facts) else set()
    found: dict[str, str | None] = {}
    for namespace in sorted(active | reports.keys()):
        report = reports.get(namespace, {})
        state = report.get("state", "Passthrough")
        if (state == "Active") != (namespace in active) or state == "Pausing":
            blocked = report.get("blockedOn")
            found[namespace] = None if blocked is None else str(blocked)
    return found


def _active(facts: Facts) -> bool:
    return facts.spec is not None and wanted_state(facts.spec, facts) == "Active"


def warm(facts: Facts) -> dict[str, float | None]:
    """How warm each policy is, in percent; None: not known."""
    if facts.spec is None or not _active(facts):
        return {}
    reports = namespaces(facts, Component.WARMER)
    found: dict[str, float | None] = {}
    for policy in facts.spec.collections:
        report = reports.get(policy.namespace, {})
        percent = report.get("warmPercent")
        if report.get("complete"):
            percent = 100.0
        found[policy.namespace] = float(percent) if isinstance(percent, int | float) else None
    return found


def statuses(facts: Facts) -> list[CollectionStatus]:
    """Every collection of the policies, and those that are still on their way out."""
    if facts.spec is None:
        return []
    feeder = namespaces(facts, Component.FEEDER)
    leaving = {n for n, r in feeder.items() if r.get("state", "Passthrough") != "Passthrough"}
    policies = {policy.namespace: policy for policy in facts.spec.collections}
    return [
        _status(facts, namespace, policies.get(namespace))
        for namespace in [*policies, *sorted(leaving - policies.keys())]
    ]


def _status(facts: Facts, namespace: str, policy: CollectionPolicy | None) -> CollectionStatus:
    feeder = namespaces(facts, Component.FEEDER).get(namespace, {})
    warmer = namespaces(facts, Component.WARMER).get(namespace, {})
    evictor = namespaces(facts, Component.EVICTOR).get(namespace, {})
    state = feeder.get("state")
    active = state == "Active"
    percent = warm(facts).get(namespace) if policy is not None else None
    dry = evictor.get("mode") == "DryRun"
    return CollectionStatus(
        namespace=namespace,
        state=state,
        floor=whole_minute(warmer.get("floor") or evictor.get("floor")) if active else None,
        warm_percent=None if percent is None else int(percent),
        documents_copied=warmer.get("copied"),
        time_left=time_left(warmer.get("secondsLeft")),
        oldest_resident=whole_minute(evictor.get("oldestResident")),
        lag=lag_text(feeder.get("lagSeconds")) if active else None,
        unsent_operations=facts.own(Component.FEEDER).get("backlog") if active else None,
        evicted=evictor.get("evicted"),
        confirmed=evictor.get("confirmed"),
        would_evict=evictor.get("wouldEvict") if dry else None,
        **_reads(facts, namespace),
    )


def _reads(facts: Facts, namespace: str) -> dict[str, Any]:
    """Who answered reads since the proxies started: the fast tier's share, and why not it where it wasn't."""
    reports = [
        (report.get("proxy") or {}).get("namespaces", {}).get(namespace) or {}
        for report in facts.reports(Component.PROXY)
    ]
    fast = sum(report.get("fast", 0) for report in reports)
    reasons: Counter[str] = Counter()
    for report in reports:
        reasons.update(report.get("archive", {}))
    total = fast + reasons.total()
    if not total:
        return {}
    # The same of equals each time: a status must come to rest.
    main = min(reasons, key=lambda reason: (-reasons[reason], reason), default=None)
    return {"fast_read_percent": 100 * fast // total, "archive_reason": main}


def whole_minute(text: Any) -> str | None:
    """An ISO time without its seconds, so that it doesn't change at every look."""
    if not isinstance(text, str):
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:00Z")


def lag_text(seconds: Any) -> str | None:
    """``<1s``, ``12s``, ``3m``: coarse, so that an idle system shows the same text."""
    if not isinstance(seconds, int | float):
        return None
    if seconds < 1:
        return "<1s"
    if seconds < 60:
        return f"{int(seconds)}s"
    return f"{int(seconds // 60)}m" if seconds < 7200 else f"{int(seconds // 3600)}h"


def time_left(seconds: Any) -> str | None:
    """A rough span: to ten seconds, minutes, or hours."""
    if not isinstance(seconds, int | float):
        return None
    if seconds < 60:
        return f"{max(10, 10 * round(seconds / 10))}s"
    return f"{round(seconds / 60)}m" if seconds < 7200 else f"{round(seconds / 3600)}h"


def overall_warm(facts: Facts) -> str | None:
    """The least of all policies, such as ``97%``; None: none, or not known."""
    found = [percent for percent in warm(facts).values() if percent is not None]
    return f"{int(min(found))}%" if found else None


def coverage(facts: Facts) -> str | None:
    """Covered policies of all, such as ``2/3``."""
    if facts.spec is None or not facts.spec.collections:
        return None
    covered = sum(1 for p in warm(facts).values() if p is not None and p >= WARM_PERCENT)
    return f"{covered}/{len(facts.spec.collections)}"


def overall_lag(facts: Facts) -> str | None:
    """How far the archive is behind; None: not known."""
    return lag_text(facts.own(Component.FEEDER).get("lagSeconds"))

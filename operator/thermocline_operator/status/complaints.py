"""What needs attention though traffic is served: condition ``Degraded``."""

from typing import Final

from thermocline_common.spec.models import EvictorMode, WorkMode
from thermocline_operator.plan.labels import Component
from thermocline_operator.status import policies
from thermocline_operator.status.facts import Facts
from thermocline_operator.status.reasons import Reason
from thermocline_operator.status.verdicts import LAG_LIMIT_SECONDS, Verdict


def degraded(facts: Facts, eviction: Verdict) -> Verdict:
    """Condition ``Degraded``; the gravest complaint gives the reason."""
    found = _complaints(facts, eviction)
    if not found:
        return Verdict(False, Reason.NOTHING_WRONG, "nothing needs attention")
    reason = found[0][0]
    return Verdict(True, reason, "; ".join(dict.fromkeys(text for _, text in found)))


def _complaints(facts: Facts, eviction: Verdict) -> list[tuple[Reason, str]]:
    """What needs attention, the gravest first."""
    found: list[tuple[Reason, str]] = []
    if eviction.status is False:
        found.append((eviction.reason, eviction.message))
    feeder_own = facts.own(Component.FEEDER)
    if feeder_own.get("quarantined"):
        found.append(
            (Reason.QUARANTINE, f"the archive refuses {feeder_own['quarantined']} documents")
        )
    found += _told(facts)
    lag = feeder_own.get("lagSeconds")
    if isinstance(lag, int | float) and lag > LAG_LIMIT_SECONDS:
        found.append((Reason.LAGGING, f"the archive is {policies.lag_text(lag)} behind"))
    foreign = {n: c for n, c in (feeder_own.get("foreignWrites") or {}).items() if c}
    if foreign:
        text = ", ".join(f"{n}: {c}" for n, c in sorted(foreign.items()))
        found.append((Reason.FOREIGN_WRITES, f"writes that reached the archive directly: {text}"))
    if facts.expiring:
        found.append((Reason.CERTIFICATE_EXPIRES, f"renew {', '.join(facts.expiring)}"))
    found += [
        (Reason.POD_FAILS, f"{pod.name}: {pod.trouble[0]}: {pod.trouble[1]}")
        for pod in facts.pods
        if pod.trouble is not None and not pod.leaving
    ]
    found += [
        (Reason.POD_FAILS, f"pods of {d.component} can't be made: {d.failure}")
        for d in facts.deployments
        if d.failure is not None
    ]
    if facts.spec is not None and not facts.spec.paused:
        found += [
            (Reason.SERVICE_PAUSED, f"spec.{name}.mode is Paused")
            for name, paused in (
                ("feeder", facts.spec.feeder.mode is WorkMode.PAUSED),
                ("warmer", facts.spec.warmer.mode is WorkMode.PAUSED),
                ("evictor", facts.spec.evictor.mode is EvictorMode.PAUSED),
            )
            if paused
        ]
    return found


_OWN_REASONS: Final = (
    ("verify ", Reason.ANSWERS_DIFFER),
    ("window", Reason.WRITES_SLOWED),
    ("topology", Reason.TAGS_UNMATCHED),
    ("replay", Reason.NOT_REPLAYING),
    ("barrier", Reason.LAGGING),
)
_ELSEWHERE: Final = ("state ", "mismatch ", "foreign ", "paused", "archive", "fast")
"""Problems of services that have a condition of their own."""


def _told(facts: Facts) -> list[tuple[Reason, str]]:
    found: list[tuple[Reason, str]] = []
    for component in Component:
        for report in facts.reports(component):
            for key, text in sorted((report.get("problems") or {}).items()):
                if key.startswith(_ELSEWHERE):
                    continue
                reason = next(
                    (r for start, r in _OWN_REASONS if key.startswith(start)),
                    Reason.SERVICE_PROBLEM,
                )
                found.append((reason, f"{component}: {text}"))
    return sorted(found, key=lambda item: item[0] is Reason.SERVICE_PROBLEM)

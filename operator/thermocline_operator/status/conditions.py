"""Every condition, by its table: each function answers one, without a look at the others but where it says so."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from thermocline_common.spec.models import Mode, Spec, TierSpec, WorkMode
from thermocline_operator.plan.labels import Component
from thermocline_operator.status import policies
from thermocline_operator.status.complaints import degraded
from thermocline_operator.status.facts import Ending, Facts
from thermocline_operator.status.reasons import ConditionType, Reason
from thermocline_operator.status.verdicts import LAG_LIMIT_SECONDS, MAX_MESSAGE, Verdict

_NOT_HEARD: Final = "no service has told about it in the last 30 s"
UNKNOWN: Final = Verdict(None, Reason.NOT_HEARD, _NOT_HEARD)


def decide(facts: Facts) -> dict[ConditionType, Verdict]:
    """Every condition, in the order in which they are shown."""
    found = {kind: decider(facts) for kind, decider in _DECIDERS.items()}
    found[ConditionType.READY] = _ready(facts, found)
    found[ConditionType.DEGRADED] = degraded(facts, found[ConditionType.EVICTION_SAFE])
    return {kind: _bounded(found[kind]) for kind in ConditionType}


def _bounded(verdict: Verdict) -> Verdict:
    text = verdict.message
    if len(text) <= MAX_MESSAGE:
        return verdict
    return Verdict(verdict.status, verdict.reason, text[: MAX_MESSAGE - 4] + " ...")


def _ready(facts: Facts, others: Mapping[ConditionType, Verdict]) -> Verdict:
    config = others[ConditionType.CONFIG_VALID]
    if config.status is False:
        return config
    if facts.conflicts or facts.refused:
        stalled = others[ConditionType.STALLED]
        return Verdict(False, stalled.reason, stalled.message)
    proxies = [p for p in facts.pods if p.component is Component.PROXY and not p.leaving]
    ready = [p for p in proxies if p.ready]
    if facts.spec is not None and facts.spec.proxy.replicas == 0:
        return Verdict(False, Reason.NO_PROXY_WANTED, "spec.proxy.replicas is 0")
    if not ready:
        return Verdict(False, Reason.NO_PROXY_READY, f"none of {len(proxies)} proxies is ready")
    for kind in (ConditionType.ARCHIVE_REACHABLE, ConditionType.FAST_TIER_REACHABLE):
        if others[kind].status is not True:
            verdict = others[kind]
            return Verdict(verdict.status, verdict.reason, verdict.message)
    lacking = [(r.get("problems") or {}).get("lease") for r in facts.reports(Component.PROXY)]
    if lacking and all(lacking):
        return Verdict(False, Reason.NOT_SERVING, str(lacking[0]))
    if facts.ending is not Ending.NONE:
        return Verdict(False, Reason.DRAINING, facts.ending_text or "it is being deleted")
    waiting = policies.unreached(facts)
    if facts.own(Component.FEEDER).get("namespaces") is None:
        if facts.spec is not None and facts.spec.collections and facts.spec.mode is Mode.ACTIVE:
            return Verdict(None, Reason.NOT_HEARD, "the feeder hasn't told where collections are")
    elif waiting:
        refused = [f"{n}: {text}" for n, text in waiting.items() if text is not None]
        reason = Reason.COLLECTION_REFUSED if refused else Reason.SWITCHING
        return Verdict(False, reason, "; ".join(refused) or f"on their way: {', '.join(waiting)}")
    mode = "Active" if facts.spec is None else facts.spec.mode.value
    return Verdict(
        True, Reason.SERVING, f"{_count(len(ready), 'ready proxy', 'ready proxies')} in mode {mode}"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _reconciling(facts: Facts) -> Verdict:
    if facts.ending is Ending.DRAINING:
        return Verdict(True, Reason.DRAINING, facts.ending_text)
    if facts.ending is Ending.BLOCKED:
        return Verdict(False, Reason.WAITS_FOR_PERSON, "it waits for a person, see Stalled")
    if facts.problems or facts.conflicts or facts.refused:
        return Verdict(False, Reason.WAITS_FOR_PERSON, "it waits for a person, see Stalled")
    if not facts.applied:
        return Verdict(True, Reason.APPLYING, "objects are being created or changed")
    rolling = [d for d in facts.deployments if not d.rolled_out]
    if rolling:
        text = ", ".join(f"{d.component} {d.ready}/{d.replicas}" for d in rolling)
        return Verdict(True, Reason.ROLLING_OUT, f"pods that are ready: {text}")
    late = [
        component.value
        for component in Component
        for report in facts.reports(component)
        if _applied(report) < facts.generation
    ]
    if late:
        text = ", ".join(sorted(set(late)))
        return Verdict(
            True,
            Reason.SERVICES_FOLLOW,
            f"not yet working with generation {facts.generation}: {text}",
        )
    waiting = [n for n, text in policies.unreached(facts).items() if text is None]
    if waiting and not _held(facts.spec):
        return Verdict(True, Reason.SWITCHING, f"on their way: {', '.join(waiting)}")
    return Verdict(
        False, Reason.UP_TO_DATE, f"every service works with generation {facts.generation}"
    )


def _held(spec: Spec | None) -> bool:
    return spec is not None and (spec.paused or spec.feeder.mode is WorkMode.PAUSED)


def _applied(report: Mapping[str, Any]) -> int:
    found = report.get("appliedGeneration")
    return found if isinstance(found, int) else 0


def _stalled(facts: Facts) -> Verdict:
    if facts.ending is Ending.BLOCKED:
        return Verdict(True, Reason.DRAIN_BLOCKED, facts.ending_text)
    if facts.problems:
        return Verdict(True, Reason.INVALID_SPEC, "; ".join(map(str, facts.problems)))
    if facts.conflicts:
        text = ", ".join(f"{kind} {name}" for kind, name in facts.conflicts)
        return Verdict(
            True,
            Reason.NAME_CONFLICT,
            f"not ours, and never overwritten: {text}; delete or rename what is there",
        )
    if facts.refused:
        text = "; ".join(f"{kind} {name}: {why}" for kind, name, why in facts.refused)
        return Verdict(True, Reason.API_REFUSED, text)
    if any(not trouble.missing_keys for trouble in facts.secrets):
        found = _secrets(facts, tls=None)
        return Verdict(True, found.reason, found.message)
    refused = {n: text for n, text in policies.unreached(facts).items() if text is not None}
    if refused and not _held(facts.spec):
        return Verdict(
            True,
            Reason.COLLECTION_REFUSED,
            "; ".join(f"{n}: {text}" for n, text in refused.items()),
        )
    if facts.pending is not None:
        return Verdict(
            True,
            Reason.APPROVAL_NEEDED,
            f"rollout {facts.pending}; approve it with the annotation "
            f"thermocline.io/approved-rollout: {facts.pending.partition(':')[0]}",
        )
    return Verdict(False, Reason.NOTHING_STALLED, "nothing waits for a person")


def _config_valid(facts: Facts) -> Verdict:
    if facts.problems:
        return Verdict(False, Reason.INVALID_SPEC, "; ".join(map(str, facts.problems)))
    return Verdict(True, Reason.VALID, "checked and found good")


def _secrets(facts: Facts, tls: bool | None) -> Verdict:
    """``tls``: only certificates, only credentials, or (None) both."""
    found = [t for t in facts.secrets if tls is None or t.tls is tls]
    missing = [t for t in found if not t.missing_keys]
    if missing:
        names = ", ".join(t.name for t in missing)
        return Verdict(False, Reason.SECRET_MISSING, f"create the Secret {names}")
    text = "; ".join(f"Secret {t.name} lacks {', '.join(t.missing_keys)}" for t in found)
    return Verdict(False, Reason.SECRET_INCOMPLETE, text)


def _credentials(facts: Facts) -> Verdict:
    if any(not t.tls for t in facts.secrets):
        return _secrets(facts, tls=False)
    refused = {
        f"{tier}: {status['error']}"
        for component in Component
        for report in facts.reports(component)
        for tier, status in (report.get("tiers") or {}).items()
        if "log-in was refused" in str(status.get("error"))
    }
    refused |= {
        f"{component}: {text}"
        for component in Component
        for report in facts.reports(component)
        for text in (report.get("problems") or {}).values()
        if "Authentication failed" in str(text)
    }
    if refused:
        return Verdict(False, Reason.LOG_IN_REFUSED, "; ".join(sorted(refused)))
    if facts.spec is None or not any(t.credentials_secret_ref for t in _tiers(facts.spec)):
        return Verdict(True, Reason.NOT_NEEDED, "no credentials are named")
    if not any(facts.reports(component) for component in Component):
        return UNKNOWN
    return Verdict(True, Reason.VALID, "the Secrets are there, and no tier refuses them")


def _tiers(spec: Spec) -> tuple[TierSpec, TierSpec]:
    return spec.archive, spec.fast_tier


def _tls(facts: Facts) -> Verdict:
    if any(t.tls for t in facts.secrets):
        return _secrets(facts, tls=True)
    ends = ", ".join(f"{name} until {end}" for name, end in sorted(facts.not_after.items()))
    if facts.expiring:
        names = ", ".join(facts.expiring)
        return Verdict(False, Reason.CERTIFICATE_EXPIRES, f"renew {names}; {ends}")
    if facts.spec is None or not _names_certificates(facts.spec):
        return Verdict(True, Reason.NOT_NEEDED, "no certificates are named")
    return Verdict(True, Reason.VALID, ends or "the Secrets are there")


def _names_certificates(spec: Spec) -> bool:
    proxy = spec.proxy.tls
    return any(t.tls.ca_secret_ref or t.tls.certificate_secret_ref for t in _tiers(spec)) or bool(
        proxy.certificate_secret_ref or proxy.client_ca_secret_ref
    )


def _topology(facts: Facts) -> Verdict:
    reports = facts.reports(Component.PROXY)
    for report in reports:
        text = (report.get("problems") or {}).get("topology")
        if text is not None:
            return Verdict(False, Reason.TAGS_UNMATCHED, str(text))
    if facts.spec is None or not any(t.read_preference_tags for t in _tiers(facts.spec)):
        return Verdict(True, Reason.NOT_NEEDED, "no tags are asked for")
    if not reports:
        return UNKNOWN
    return Verdict(True, Reason.VALID, "no proxy misses a member with the tags")


def _reachable(tier: str, name: str, wrong: Reason) -> Callable[[Facts], Verdict]:
    def decider(facts: Facts) -> Verdict:
        seen = [(r.get("tiers") or {}).get(tier) for r in facts.reports(Component.PROXY)]
        told = [s for s in seen if isinstance(s, Mapping)]
        if not told:
            return UNKNOWN
        good = [s for s in told if s.get("reachable")]
        if good:
            version = good[0].get("version")
            return Verdict(True, Reason.REACHABLE, f"{name}'s primary answers ({version})")
        return Verdict(False, wrong, str(told[0].get("error") or f"{name} doesn't answer"))

    return decider


def _feeder(facts: Facts) -> Verdict:
    if facts.spec is not None and facts.spec.feeder.mode is WorkMode.PAUSED:
        return Verdict(False, Reason.SERVICE_PAUSED, "spec.feeder.mode is Paused")
    if not facts.reports(Component.FEEDER):
        return UNKNOWN
    for report in facts.reports(Component.FEEDER):
        # The lag of a replay that is interrupted says nothing: nobody reads what there is to replay.
        text = (report.get("problems") or {}).get("replay")
        if text is not None:
            return Verdict(False, Reason.NOT_REPLAYING, str(text))
    for report in facts.reports(Component.PROXY):
        # Whatever the feeder says of itself: readers wait for it in vain.
        text = (report.get("problems") or {}).get("barrier")
        if text is not None:
            return Verdict(False, Reason.LAGGING, str(text))
    own = facts.own(Component.FEEDER)
    lag = own.get("lagSeconds")
    if not isinstance(lag, int | float):
        return Verdict(False, Reason.NOT_REPLAYING, f"the feeder's role is {own.get('role')}")
    if lag > LAG_LIMIT_SECONDS:
        return Verdict(False, Reason.LAGGING, f"the archive is {policies.lag_text(lag)} behind")
    if not own.get("caughtUp") and own.get("checkpoint") is None:
        return Verdict(False, Reason.NOT_REPLAYING, "replay hasn't begun yet")
    return Verdict(True, Reason.CAUGHT_UP, "the archive follows")


def _warm(facts: Facts) -> Verdict:
    percents = policies.warm(facts)
    if not percents:
        return Verdict(True, Reason.NOT_NEEDED, "nothing is to be warm")
    known = {n: p for n, p in percents.items() if p is not None}
    if not known and not facts.reports(Component.WARMER):
        return UNKNOWN
    cold = {n: p for n, p in percents.items() if p is None or p < policies.WARM_PERCENT}
    if cold:
        # Numbers stand in collections[]: here they would make a new message at every look.
        return Verdict(False, Reason.WARMING, f"not warm yet: {', '.join(sorted(cold))}")
    return Verdict(True, Reason.WARM, "every policy is covered")


def _eviction(facts: Facts) -> Verdict:
    reports = policies.namespaces(facts, Component.EVICTOR)
    if not reports:
        if facts.spec is not None and not facts.spec.collections:
            return Verdict(True, Reason.NOT_NEEDED, "there are no policies")
        return UNKNOWN
    wrong = {n: r["mismatches"] for n, r in reports.items() if r.get("mismatches")}
    if wrong:
        text = ", ".join(f"{n}: {count}" for n, count in sorted(wrong.items()))
        return Verdict(False, Reason.MISMATCH, f"documents that differ between the tiers: {text}")
    over = [n for n, r in reports.items() if (r.get("evicted") or 0) > (r.get("confirmed") or 0)]
    if over:
        return Verdict(False, Reason.UNCONFIRMED, ", ".join(sorted(over)))
    return Verdict(True, Reason.CONFIRMED, "nothing differed")


_DECIDERS: Final[dict[ConditionType, Callable[[Facts], Verdict]]] = {
    ConditionType.RECONCILING: _reconciling,
    ConditionType.STALLED: _stalled,
    ConditionType.CONFIG_VALID: _config_valid,
    ConditionType.CREDENTIALS_VALID: _credentials,
    ConditionType.TLS_VALID: _tls,
    ConditionType.TOPOLOGY_SATISFIABLE: _topology,
    ConditionType.ARCHIVE_REACHABLE: _reachable(
        "archive", "the archive", Reason.ARCHIVE_UNREACHABLE
    ),
    ConditionType.FAST_TIER_REACHABLE: _reachable(
        "fast", "the fast tier", Reason.FAST_TIER_UNREACHABLE
    ),
    ConditionType.FEEDER_CAUGHT_UP: _feeder,
    ConditionType.WARMUP_COMPLETE: _warm,
    ConditionType.EVICTION_SAFE: _eviction,
}

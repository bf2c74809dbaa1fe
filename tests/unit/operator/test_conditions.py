"""Conditions, phase and the rest of the status, by tables of what was observed."""

from dataclasses import replace
from typing import Any

import pytest

from thermocline_common.spec.problems import Problem
from thermocline_common.spec.resource_status import ResourceStatus
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.source import resource_of
from thermocline_operator.status.conditions import decide
from thermocline_operator.status.document import Due, build, due
from thermocline_operator.status.events import of_change
from thermocline_operator.status.facts import Deployment, Ending, Facts, Pod, SecretTrouble
from thermocline_operator.status.reasons import ConditionType as C, Phase, Reason

GENERATION = 3
SPEC: dict[str, Any] = {
    "archive": {
        "uri": "mongodb://archive:27017/?replicaSet=a",
        "credentialsSecretRef": {"name": "a"},
    },
    "fastTier": {"uri": "mongodb://fast:27017/?replicaSet=f"},
    "collections": [
        {"namespace": "shop.orders", "ageField": "at", "maxAge": "30d"},
        {"namespace": "shop.products", "keep": "All"},
    ],
}
REACHED = {"reachable": True, "version": "6.0.5"}
LOST = {"reachable": False, "error": "the log-in was refused; check username and password"}


def spec(**change: Any) -> Any:
    body = {
        "apiVersion": "thermocline.io/v1alpha1",
        "kind": "TieredReplicaSet",
        "metadata": {"name": "shop", "namespace": "shops", "uid": "u", "generation": GENERATION},
        "spec": {**SPEC, **change},
    }
    return resource_of(body).spec


def report(service: str, own: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {
        "service": service,
        "version": "1.0",
        "appliedGeneration": GENERATION,
        "problems": {},
        "tiers": {"archive": REACHED, "fast": REACHED},
        service: own,
        **change,
    }


FEEDER: dict[str, Any] = {
    "role": "owner",
    "lagSeconds": 0.02,
    "caughtUp": True,
    "backlog": 0,
    "quarantined": 0,
    "foreignWrites": {},
    "namespaces": {
        "shop.orders": {"state": "Active", "target": "Active", "lagSeconds": 0.02},
        "shop.products": {"state": "Active", "target": "Active", "lagSeconds": 0.02},
    },
}
WARMER: dict[str, Any] = {
    "namespaces": {
        "shop.orders": {"warmPercent": 100.0, "copied": 10, "floor": "2026-06-01T10:20:30+00:00"},
        "shop.products": {"warmPercent": 100.0, "complete": True, "copied": 5},
    }
}
EVICTOR: dict[str, Any] = {
    "namespaces": {
        "shop.orders": {"mode": "DryRun", "evicted": 0, "confirmed": 0, "wouldEvict": 4, "mismatches": 0},
        "shop.products": {"mode": "DryRun", "evicted": 0, "confirmed": 0, "wouldEvict": 0, "mismatches": 0},
    }
}  # fmt: skip


def pod(component: Component, found: dict[str, Any] | None, **change: Any) -> Pod:
    return replace(Pod(f"shop-{component}-x", component, ready=True, report=found), **change)


PROXY_POD = pod(Component.PROXY, report("proxy", {}))
FEEDER_POD = pod(Component.FEEDER, report("feeder", FEEDER))
EVICTOR_POD = pod(Component.EVICTOR, report("evictor", EVICTOR))
WARMER_POD = pod(Component.WARMER, report("warmer", WARMER))
PODS = (PROXY_POD, FEEDER_POD, EVICTOR_POD, WARMER_POD)
WELL = Facts(
    name="shop",
    generation=GENERATION,
    spec=spec(),
    pods=PODS,
    deployments=tuple(Deployment(c, 1, 1, rolled_out=True) for c in Component),
)
GOOD = {
    C.READY: (True, Reason.SERVING),
    C.RECONCILING: (False, Reason.UP_TO_DATE),
    C.STALLED: (False, Reason.NOTHING_STALLED),
    C.DEGRADED: (False, Reason.NOTHING_WRONG),
    C.CONFIG_VALID: (True, Reason.VALID),
    C.CREDENTIALS_VALID: (True, Reason.VALID),
    C.TLS_VALID: (True, Reason.NOT_NEEDED),
    C.TOPOLOGY_SATISFIABLE: (True, Reason.NOT_NEEDED),
    C.ARCHIVE_REACHABLE: (True, Reason.REACHABLE),
    C.FAST_TIER_REACHABLE: (True, Reason.REACHABLE),
    C.FEEDER_CAUGHT_UP: (True, Reason.CAUGHT_UP),
    C.WARMUP_COMPLETE: (True, Reason.WARM),
    C.EVICTION_SAFE: (True, Reason.CONFIRMED),
}


def with_pods(*pods: Pod) -> dict[str, Any]:
    """The pods of the well one, some of them replaced."""
    return {"pods": (*pods, *(p for p in PODS if p.component not in {q.component for q in pods}))}


def feeder(**own: Any) -> Pod:
    return pod(Component.FEEDER, report("feeder", {**FEEDER, **own}))


def namespaces(found: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {**found["namespaces"], "shop.orders": {**found["namespaces"]["shop.orders"], **change}}


def told(component: Component, own: dict[str, Any], **problems: str) -> Pod:
    return pod(component, report(component.value, own, problems=problems))


ARCHIVE_LOST = report("proxy", {}, tiers={"archive": LOST, "fast": REACHED})
BLOCKED = "create an index that starts with at"
CASES: dict[str, tuple[dict[str, Any], dict[C, tuple[bool | None, Reason]], Phase]] = {
    "all is well": ({}, {}, Phase.ACTIVE),
    "nothing heard": (
        {"pods": tuple(replace(p, report=None) for p in PODS)},
        {
            C.READY: (None, Reason.NOT_HEARD),
            C.CREDENTIALS_VALID: (None, Reason.NOT_HEARD),
            C.ARCHIVE_REACHABLE: (None, Reason.NOT_HEARD),
            C.FAST_TIER_REACHABLE: (None, Reason.NOT_HEARD),
            C.FEEDER_CAUGHT_UP: (None, Reason.NOT_HEARD),
            C.WARMUP_COMPLETE: (None, Reason.NOT_HEARD),
            C.EVICTION_SAFE: (None, Reason.NOT_HEARD),
            C.RECONCILING: (True, Reason.SWITCHING),
        },
        Phase.DEGRADED,
    ),
    "warming": (
        with_pods(
            pod(
                Component.WARMER,
                report("warmer", {"namespaces": namespaces(WARMER, warmPercent=40.2)}),
            )
        ),
        {C.WARMUP_COMPLETE: (False, Reason.WARMING)},
        Phase.WARMING,
    ),
    "no proxy": (
        with_pods(replace(PROXY_POD, ready=False)),
        {C.READY: (False, Reason.NO_PROXY_READY)},
        Phase.DEGRADED,
    ),
    "archive lost": (
        with_pods(pod(Component.PROXY, ARCHIVE_LOST)),
        {
            C.READY: (False, Reason.ARCHIVE_UNREACHABLE),
            C.ARCHIVE_REACHABLE: (False, Reason.ARCHIVE_UNREACHABLE),
            C.CREDENTIALS_VALID: (False, Reason.LOG_IN_REFUSED),
        },
        Phase.DEGRADED,
    ),
    "one of two proxies lost the archive": (
        with_pods(pod(Component.PROXY, ARCHIVE_LOST), replace(PROXY_POD, name="other")),
        {C.CREDENTIALS_VALID: (False, Reason.LOG_IN_REFUSED)},
        Phase.ACTIVE,
    ),
    "lag": (
        with_pods(feeder(lagSeconds=95.0)),
        {
            C.FEEDER_CAUGHT_UP: (False, Reason.LAGGING),
            C.DEGRADED: (True, Reason.LAGGING),
        },
        Phase.DEGRADED,
    ),
    "switching": (
        with_pods(feeder(namespaces=namespaces(FEEDER, state="Pausing"))),
        {C.READY: (False, Reason.SWITCHING), C.RECONCILING: (True, Reason.SWITCHING)},
        Phase.PENDING,
    ),
    "refused": (
        with_pods(feeder(namespaces=namespaces(FEEDER, state="Passthrough", blockedOn=BLOCKED))),
        {
            C.READY: (False, Reason.COLLECTION_REFUSED),
            C.STALLED: (True, Reason.COLLECTION_REFUSED),
        },
        Phase.DEGRADED,
    ),
    "a mismatch": (
        with_pods(
            pod(
                Component.EVICTOR,
                report("evictor", {"namespaces": namespaces(EVICTOR, mismatches=2)}),
            )
        ),
        {C.EVICTION_SAFE: (False, Reason.MISMATCH), C.DEGRADED: (True, Reason.MISMATCH)},
        Phase.DEGRADED,
    ),
    "foreign writes": (
        with_pods(feeder(foreignWrites={"shop.orders": 3})),
        {C.DEGRADED: (True, Reason.FOREIGN_WRITES)},
        Phase.DEGRADED,
    ),
    "quarantine before all else": (
        with_pods(feeder(quarantined=2, foreignWrites={"shop.orders": 3})),
        {C.DEGRADED: (True, Reason.QUARANTINE)},
        Phase.DEGRADED,
    ),
    "a problem of a service": (
        with_pods(told(Component.WARMER, WARMER, parity="indexes can't be compared")),
        {C.DEGRADED: (True, Reason.SERVICE_PROBLEM)},
        Phase.DEGRADED,
    ),
    "the self-check": (
        with_pods(told(Component.PROXY, {}, **{"verify shop.orders": "documents differ"})),
        {C.DEGRADED: (True, Reason.ANSWERS_DIFFER)},
        Phase.DEGRADED,
    ),
    "replay is interrupted": (
        with_pods(told(Component.FEEDER, FEEDER, replay="tried again: Authentication failed.")),
        {
            C.FEEDER_CAUGHT_UP: (False, Reason.NOT_REPLAYING),
            C.CREDENTIALS_VALID: (False, Reason.LOG_IN_REFUSED),
            C.DEGRADED: (True, Reason.NOT_REPLAYING),
        },
        Phase.DEGRADED,
    ),
    "readers wait in vain": (
        with_pods(told(Component.PROXY, {}, barrier="the archive didn't catch up within 60 s")),
        {C.FEEDER_CAUGHT_UP: (False, Reason.LAGGING), C.DEGRADED: (True, Reason.LAGGING)},
        Phase.DEGRADED,
    ),
    "tags that no member has": (
        with_pods(told(Component.PROXY, {}, topology="no member of the archive has rack=9")),
        {
            C.TOPOLOGY_SATISFIABLE: (False, Reason.TAGS_UNMATCHED),
            C.DEGRADED: (True, Reason.TAGS_UNMATCHED),
        },
        Phase.DEGRADED,
    ),
    "a paused service": (
        {"spec": spec(warmer={"mode": "Paused"})},
        {C.DEGRADED: (True, Reason.SERVICE_PAUSED)},
        Phase.DEGRADED,
    ),
    "paused as a whole": ({"spec": spec(paused=True)}, {}, Phase.PAUSED),
    "a Secret is missing": (
        {"secrets": (SecretTrouble("a"),)},
        {
            C.CREDENTIALS_VALID: (False, Reason.SECRET_MISSING),
            C.STALLED: (True, Reason.SECRET_MISSING),
        },
        Phase.ACTIVE,
    ),
    "a Secret lacks its key": (
        {"secrets": (SecretTrouble("a", ("password",)),)},
        {C.CREDENTIALS_VALID: (False, Reason.SECRET_INCOMPLETE)},
        Phase.ACTIVE,
    ),
    "a certificate ends": (
        {"not_after": {"tls": "2026-01-01T00:00:00Z"}, "expiring": ("tls",)},
        {
            C.TLS_VALID: (False, Reason.CERTIFICATE_EXPIRES),
            C.DEGRADED: (True, Reason.CERTIFICATE_EXPIRES),
        },
        Phase.DEGRADED,
    ),
    "a foreign object": (
        {"conflicts": (("Service", "shop-proxy"),)},
        {
            C.READY: (False, Reason.NAME_CONFLICT),
            C.STALLED: (True, Reason.NAME_CONFLICT),
            C.RECONCILING: (False, Reason.WAITS_FOR_PERSON),
        },
        Phase.FAILED,
    ),
    "rolling": (
        {"deployments": (Deployment(Component.PROXY, 2, 1, rolled_out=False),)},
        {C.RECONCILING: (True, Reason.ROLLING_OUT)},
        Phase.ACTIVE,
    ),
    "a service that follows an older spec": (
        {"generation": GENERATION + 1},
        {C.RECONCILING: (True, Reason.SERVICES_FOLLOW)},
        Phase.ACTIVE,
    ),
    "a pod that doesn't start": (
        {"pods": (*PODS, replace(PROXY_POD, name="new", ready=False, report=None, trouble=("ImagePullBackOff", "no")))},
        {C.DEGRADED: (True, Reason.POD_FAILS)},
        Phase.DEGRADED,
    ),
    "a rollout waits": (
        {"pending": "0123456789: a -> b (proxy)"},
        {C.STALLED: (True, Reason.APPROVAL_NEEDED)},
        Phase.ACTIVE,
    ),
    "deleted": (
        {
            "ending": Ending.DRAINING,
            "ending_text": "the archive gets what it lacks",
            **with_pods(feeder(namespaces=namespaces(FEEDER, state="Pausing"))),
        },
        {
            C.READY: (False, Reason.DRAINING),
            C.RECONCILING: (True, Reason.DRAINING),
            C.WARMUP_COMPLETE: (True, Reason.NOT_NEEDED),
        },
        Phase.DRAINING,
    ),
    "deleted and blocked": (
        {"ending": Ending.BLOCKED, "ending_text": "the archive can't be used"},
        {
            C.READY: (False, Reason.DRAINING),
            C.STALLED: (True, Reason.DRAIN_BLOCKED),
            C.WARMUP_COMPLETE: (True, Reason.NOT_NEEDED),
            C.RECONCILING: (False, Reason.WAITS_FOR_PERSON),
        },
        Phase.DRAINING,
    ),
    "passthrough": (
        {
            "spec": spec(mode="Passthrough"),
            **with_pods(feeder(namespaces={})),
        },
        {C.WARMUP_COMPLETE: (True, Reason.NOT_NEEDED)},
        Phase.PASSTHROUGH,
    ),
}  # fmt: skip
EARLIER = {"phase": "Active"}


@pytest.mark.parametrize("case", CASES)
def test_conditions_and_phase(case: str) -> None:
    change, differing, phase = CASES[case]
    facts = replace(WELL, **change)
    found = {kind: (v.status, v.reason) for kind, v in decide(facts).items()}
    assert found == {**GOOD, **differing}
    status = build(facts, EARLIER, "2026-06-01T00:00:00Z")
    assert status["phase"] == phase.value
    ResourceStatus.model_validate(status)
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    # Never "not ready" without saying what is waited for.
    assert ready["status"] == "True" or status["blockedOn"]


def test_a_resource_that_never_served_is_pending() -> None:
    facts = replace(WELL, pods=(), deployments=())
    status = build(facts, {}, "2026-06-01T00:00:00Z")
    assert status["phase"] == "Pending"
    assert status["observedGeneration"] == GENERATION


def test_an_invalid_spec_is_told_with_path_and_remedy() -> None:
    problem = Problem("spec.collections[0].maxAge", "has no unit", "write 30d", "'30'")
    facts = Facts("shop", 1, None, problems=(problem,), applied=False)
    status = build(facts, {}, "2026-06-01T00:00:00Z")
    assert status["phase"] == "Failed"
    found = {c["type"]: c for c in status["conditions"]}
    for kind in ("Ready", "ConfigValid"):
        assert found[kind]["status"] == "False"
        assert "spec.collections[0].maxAge ('30'): has no unit; write 30d" in found[kind]["message"]


def test_shows_what_people_look_for() -> None:
    status = build(WELL, {}, "2026-06-01T00:00:00Z")
    assert (status["warm"], status["lag"], status["coverage"]) == ("100%", "<1s", "2/2")
    orders = status["collections"][0]
    assert orders["floor"] == "2026-06-01T10:20:00Z"
    assert orders["wouldEvict"] == 4
    assert [c["name"] for c in status["components"]] == ["proxy", "feeder", "evictor", "warmer"]


@pytest.mark.parametrize(
    ("reads", "percent", "reason"),
    [
        ([], None, None),
        ([{"fast": 0, "archive": {}}], None, None),
        ([{"fast": 7, "archive": {}}], 100, None),
        ([{"fast": 0, "archive": {"no-bound": 2}}], 0, "no-bound"),
        ([{"fast": 2, "archive": {"no-bound": 1}}], 66, "no-bound"),
        # Of all proxies together; of equally frequent ones the same each time.
        ([{"fast": 3, "archive": {"join": 2}}, {"fast": 1, "archive": {"join": 1, "view": 3}}], 40, "join"),
    ],
)  # fmt: skip
def test_shows_who_answers_reads_and_why_the_archive(
    reads: list[dict[str, Any]], percent: int | None, reason: str | None
) -> None:
    proxies = [
        pod(Component.PROXY, report("proxy", {"namespaces": {"shop.orders": found}}), name=f"p{n}")
        for n, found in enumerate(reads)
    ]
    facts = replace(WELL, pods=(*proxies, FEEDER_POD, EVICTOR_POD, WARMER_POD))
    orders, products = build(facts, {}, "2026-06-01T00:00:00Z")["collections"]
    assert (orders.get("fastReadPercent"), orders.get("archiveReason")) == (percent, reason)
    assert "fastReadPercent" not in products


def test_time_of_transition_stays_while_the_status_of_a_condition_does() -> None:
    first = build(WELL, {}, "2026-06-01T00:00:00Z")
    again = build(WELL, first, "2026-06-01T00:00:09Z")
    assert again == first
    assert due(first, again) is Due.NEVER
    worse = build(
        replace(WELL, **with_pods(feeder(lagSeconds=99.0))), first, "2026-06-01T00:00:09Z"
    )
    changed = {c["type"] for c in worse["conditions"] if c["lastTransitionTime"].endswith("09Z")}
    assert changed == {"FeederCaughtUp", "Degraded"}
    assert due(first, worse) is Due.NOW


def test_noise_of_an_idle_system_changes_nothing() -> None:
    first = build(WELL, {}, "2026-06-01T00:00:00Z")
    noisy = replace(WELL, **with_pods(replace(feeder(lagSeconds=0.7, appliedPerSecond=3.1), age=4)))
    assert due(first, build(noisy, first, "2026-06-01T00:10:00Z")) is Due.NEVER


def test_numbers_alone_can_wait() -> None:
    first = build(WELL, {}, "2026-06-01T00:00:00Z")
    busier = replace(WELL, **with_pods(feeder(lagSeconds=7.0, backlog=90)))
    assert due(first, build(busier, first, "2026-06-01T00:00:09Z")) is Due.LATER


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        ({}, {}, ["SpecApplied", "WarmupComplete", "Ready"]),
        ({}, with_pods(feeder(lagSeconds=99.0)), ["FeederBehind", "Degraded"]),
        (with_pods(feeder(lagSeconds=99.0)), {}, ["Recovered"]),
        ({}, with_pods(pod(Component.PROXY, ARCHIVE_LOST)), ["NotReady", "TierUnreachable"]),
        (with_pods(pod(Component.PROXY, ARCHIVE_LOST)), {}, ["Ready", "TierReachable"]),
        ({}, {"conflicts": (("Service", "x"),)}, ["NotReady", "NameConflict"]),
        ({}, {"spec": spec(paused=True)}, ["Paused"]),
        ({"spec": spec(paused=True)}, {}, ["Resumed"]),
        (
            with_pods(feeder(namespaces=namespaces(FEEDER, state="Pausing"))),
            {},
            ["SpecApplied", "Ready", "CollectionState"],
        ),
    ],
    ids=range(9),
)
def test_events_follow_from_what_turned(
    before: dict[str, Any], after: dict[str, Any], reasons: list[str]
) -> None:
    old = build(replace(WELL, **before), {}, "2026-06-01T00:00:00Z")
    new = build(replace(WELL, **after), old, "2026-06-01T00:00:09Z")
    first = reasons[0] == "SpecApplied" and not before
    found = [e.reason.value for e in of_change({} if first else old, new)]
    assert sorted(found) == sorted(reasons)
    assert of_change(new, new) == []


def test_a_service_that_starts_anew_moves_no_collection() -> None:
    """Its predecessor told where they are, a moment ago."""
    anew = pod(Component.FEEDER, report("feeder", {"role": "standby"}))
    idle = pod(Component.WARMER, report("warmer", {}))
    facts = replace(WELL, pods=(PROXY_POD, anew, EVICTOR_POD, idle))
    lost = build(facts, {}, "2026-06-01T00:00:00Z")
    ready = next(c for c in lost["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "Unknown"
    told = {Component.FEEDER: FEEDER["namespaces"], Component.WARMER: WARMER["namespaces"]}
    kept = build(replace(facts, before=told), {}, "2026-06-01T00:00:00Z")
    found = {c["type"]: (c["status"], c["reason"]) for c in kept["conditions"]}
    assert found["Ready"] == ("True", "Serving")
    assert found["WarmupComplete"] == ("True", "Warm")
    assert found["FeederCaughtUp"] == ("False", "NotReplaying"), "that is no secret"
    assert (kept["phase"], kept["coverage"]) == ("Active", "2/2")
    assert not kept.get("blockedOn")
    assert [c["state"] for c in kept["collections"]] == ["Active", "Active"]


@pytest.mark.parametrize(
    ("proxies", "status", "reason"),
    [
        ([{}], "True", "Serving"),
        ([{"lease": "no lease: the data belongs to shop/other"}], "False", "NotServing"),
        ([{"lease": "no lease"}, {}], "True", "Serving"),
        ([{"lease": "no lease"}, {"lease": "no lease"}], "False", "NotServing"),
        ([{"topology": "nobody has the tags"}], "True", "Serving"),
    ],
)
def test_proxies_that_serve_nothing_are_not_ready(
    proxies: list[dict[str, str]], status: str, reason: str
) -> None:
    """Though their ports are open, and both tiers answer: the data may belong to another resource."""
    found = [
        pod(Component.PROXY, report("proxy", {}, problems=problems), name=f"p{number}")
        for number, problems in enumerate(proxies)
    ]
    facts = replace(WELL, pods=(*found, FEEDER_POD, EVICTOR_POD, WARMER_POD))
    ready = decide(facts)[C.READY]
    assert (ready.text, ready.reason) == (status, reason)
    if status == "False":
        assert ready.message == proxies[0]["lease"]

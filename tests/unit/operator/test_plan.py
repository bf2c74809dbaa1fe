"""What is created for a resource: golden files, and rules that every pod keeps."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from thermocline_common.spec.manifest import parse_text
from thermocline_operator.plan.desired import Desired, plan, surplus
from thermocline_operator.plan.effective import MANIFEST_KEY, Intent
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.objects import ref_of
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.plan.source import Resource, resource_of
from thermocline_operator.status.objects import admin_ports, as_one

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = PodSettings("registry.example/thermocline:1.0")
EVERYTHING = PodSettings(
    "registry.example/thermocline:1.0", "Always", ("pull-me",), True, ("10.0.0.0/8",)
)

MINIMAL: dict[str, Any] = {
    "archive": {"uri": "mongodb://archive-0.archive:27017/?replicaSet=archive"},
    "fastTier": {"uri": "mongodb://fast-0.fast:27018/?replicaSet=fast"},
}
WHOLE: dict[str, Any] = {
    "mode": "Active",
    "paused": True,
    "archive": {
        "uri": "mongodb://archive-0.archive:27017,archive-1.archive:27017/?replicaSet=rs0&tls=true",
        "credentialsSecretRef": {"name": "archive-thermocline"},
        "tls": {
            "caSecretRef": {"name": "archive-ca"},
            "certificateSecretRef": {"name": "thermocline-client"},
        },
    },
    "fastTier": {
        "uri": "mongodb://fast-0.fast:27017/?replicaSet=fast",
        "credentialsSecretRef": {"name": "fast-thermocline"},
        "localThresholdMS": 15,
    },
    "collections": [
        {"namespace": "shop.orders", "ageField": "createdAt", "maxAge": "30d"},
        {"namespace": "shop.products", "keep": "All"},
    ],
    "proxy": {
        "replicas": 3,
        "port": 27100,
        "serviceType": "NodePort",
        "drainTimeout": "90s",
        "tls": {
            "certificateSecretRef": {"name": "proxy-tls"},
            "clientCASecretRef": {"name": "clients-ca"},
        },
        "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}},
        "podTemplate": {
            "labels": {"team": "shop", "app.kubernetes.io/component": "mine"},
            "annotations": {"note": "kept"},
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "priorityClassName": "high",
            "serviceAccountName": "shop",
        },
    },
    "feeder": {"mode": "Paused", "podTemplate": {"tolerations": [{"operator": "Exists"}]}},
}


def resource(spec: dict[str, Any], **metadata: Any) -> Resource:
    found = {"name": "shop", "namespace": "shops", "uid": "u-1", "generation": 7, **metadata}
    return resource_of(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": found,
            "spec": spec,
        }
    )


def text(desired: Desired) -> str:
    return yaml.safe_dump_all(desired.objects, sort_keys=True, width=100)


RETAIN = {**MINIMAL, "deletionPolicy": "Retain"}
CASES = {
    "minimal": (MINIMAL, Intent.SERVE, SETTINGS),
    "whole": (WHOLE, Intent.SERVE, EVERYTHING),
    "draining": (WHOLE, Intent.DRAIN, SETTINGS),
    "retaining": (RETAIN, Intent.DRAIN, SETTINGS),
}


@pytest.mark.parametrize("name", CASES)
def test_creates_what_the_golden_file_says(name: str) -> None:
    spec, intent, settings = CASES[name]
    found = text(plan(resource(spec), intent, settings, {}))
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(found, "utf-8")
    # To write them anew: GOLDEN=write pytest tests/unit/operator, then read the difference.
    assert found == path.read_text("utf-8")


@pytest.mark.parametrize("name", CASES)
def test_two_runs_give_the_same_bytes(name: str) -> None:
    spec, intent, settings = CASES[name]
    assert text(plan(resource(spec), intent, settings, {})) == text(
        plan(resource(spec), intent, settings, {})
    )


@pytest.mark.parametrize("name", CASES)
def test_services_take_the_rendered_manifest(name: str) -> None:
    spec, intent, settings = CASES[name]
    rendered = objects(plan(resource(spec), intent, settings, {}))["ConfigMap", "shop-config"]
    manifest = parse_text(rendered["data"][MANIFEST_KEY])
    assert manifest.metadata.generation == 7
    assert manifest.metadata.uid == "u-1"
    drains = intent is Intent.DRAIN
    assert (manifest.spec.mode == "Passthrough") is drains
    assert manifest.spec.paused is (bool(spec.get("paused")) and not drains)
    assert manifest.metadata.retain is (drains and spec.get("deletionPolicy") == "Retain")
    assert not (drains and manifest.spec.feeder.mode == "Paused")


def objects(desired: Desired) -> dict[tuple[str, str], Any]:
    return {ref_of(body): body for body in desired.objects}


def pods(desired: Desired) -> dict[str, Any]:
    return {
        name.rpartition("-")[2]: body["spec"]["template"]
        for (kind, name), body in objects(desired).items()
        if kind == "Deployment"
    }


@pytest.mark.parametrize("name", CASES)
def test_every_pod_is_restricted_and_follows_its_files(name: str) -> None:
    spec, intent, settings = CASES[name]
    found = pods(plan(resource(spec), intent, settings, {}))
    assert sorted(found) == sorted(Component)
    for template in found.values():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert "runAsUser" not in pod["securityContext"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert not any("subPath" in mount for mount in container["volumeMounts"])
        (projected,) = [v["projected"] for v in pod["volumes"] if "projected" in v]
        assert all(source["secret"]["optional"] for source in projected["sources"])


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "Passthrough"},
        {"collections": [{"namespace": "a.b", "keep": "All"}]},
        {"evictor": {"mode": "Running"}},
        {"proxy": {**WHOLE["proxy"], "verify": 0.5, "lease": "2s", "replicas": 5}},
        {"warmer": {"mode": "Paused", "pace": 100}},
        {"fastTier": {**WHOLE["fastTier"], "readPreference": "nearest", "readPreferenceTags": [{"dc": "a"}]}},
        {"archive": {**WHOLE["archive"], "uri": WHOLE["archive"]["uri"] + "&readPreference=secondary"}},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_no_pod_is_rolled_for_what_is_followed(change: dict[str, Any]) -> None:
    before = pods(plan(resource(WHOLE), Intent.SERVE, SETTINGS, {}))
    after = pods(plan(resource({**WHOLE, **change}, generation=8), Intent.DRAIN, SETTINGS, {}))
    assert before == after


@pytest.mark.parametrize(
    "change",
    [
        {"uri": "mongodb://other:27017/?replicaSet=fast"},
        {"uri": "mongodb://fast-0.fast:27017/?replicaSet=fast&tls=true"},
        {"credentialsSecretRef": {"name": "another"}},
        {"localThresholdMS": 20},
        {
            "uri": "mongodb://fast-0.fast:27017/?replicaSet=fast&tls=true",
            "tls": {"caSecretRef": {"name": "fast-ca"}},
        },
    ],
    ids=str,
)
def test_pods_are_rolled_for_what_services_read_at_their_start_only(change: dict[str, Any]) -> None:
    fast = {**WHOLE["fastTier"], **change}
    before = pods(plan(resource(WHOLE), Intent.SERVE, SETTINGS, {}))
    after = pods(plan(resource({**WHOLE, "fastTier": fast}), Intent.SERVE, SETTINGS, {}))
    assert all(before[component] != after[component] for component in Component)


def test_overrides_never_replace_what_selects_the_pods() -> None:
    proxy = pods(plan(resource(WHOLE), Intent.SERVE, SETTINGS, {}))["proxy"]
    assert proxy["metadata"]["labels"]["app.kubernetes.io/component"] == "proxy"
    assert proxy["metadata"]["labels"]["team"] == "shop"


def test_a_budget_goes_when_one_proxy_is_left() -> None:
    two = plan(resource(MINIMAL), Intent.SERVE, SETTINGS, {})
    one = plan(resource({**MINIMAL, "proxy": {"replicas": 1}}), Intent.SERVE, SETTINGS, {})
    live = objects(two)
    foreign = {**live["PodDisruptionBudget", "shop-proxy"], "metadata": {"name": "x"}}
    assert surplus(two, live, "u-1") == []
    assert surplus(one, live, "u-1") == [("PodDisruptionBudget", "shop-proxy")]
    assert surplus(one, {("PodDisruptionBudget", "x"): foreign}, "u-1") == []


def test_the_grace_period_is_above_the_time_for_cursors() -> None:
    proxy = pods(plan(resource(WHOLE), Intent.SERVE, SETTINGS, {}))["proxy"]
    assert proxy["spec"]["terminationGracePeriodSeconds"] >= 90 + 10


NEWER = PodSettings("registry.example/thermocline:2.0")


def live_deployments(settings: PodSettings, spec: dict[str, Any]) -> dict[tuple[str, str], Any]:
    found = objects(plan(resource(spec), Intent.SERVE, settings, {}))
    return {ref: body for ref, body in found.items() if ref[0] == "Deployment"}


ON_APPROVAL = {**MINIMAL, "rolloutPolicy": "OnApproval"}


def test_an_upgrade_waits_for_approval() -> None:
    live = live_deployments(SETTINGS, ON_APPROVAL)
    held = plan(resource(ON_APPROVAL), Intent.SERVE, NEWER, live)
    assert pods(held) == pods(plan(resource(ON_APPROVAL), Intent.SERVE, SETTINGS, {}))
    assert held.pending is not None
    approval, _, rest = held.pending.partition(": ")
    assert "thermocline:1.0 -> registry.example/thermocline:2.0" in rest
    approved = {"thermocline.io/approved-rollout": approval}
    gone_on = plan(resource(ON_APPROVAL, annotations=approved), Intent.SERVE, NEWER, live)
    assert gone_on.pending is None
    images = {p["spec"]["containers"][0]["image"] for p in pods(gone_on).values()}
    assert images == {NEWER.image}


def test_an_older_approval_approves_nothing() -> None:
    live = live_deployments(SETTINGS, ON_APPROVAL)
    old = {"thermocline.io/approved-rollout": "0123456789"}
    held = plan(resource(ON_APPROVAL, annotations=old), Intent.SERVE, NEWER, live)
    assert held.pending is not None


@pytest.mark.parametrize("policy", ["Auto", "OnApproval"])
def test_nothing_waits_where_the_operator_changes_nothing(policy: str) -> None:
    spec = {**MINIMAL, "rolloutPolicy": policy}
    live = live_deployments(SETTINGS, spec)
    changed = {**spec, "proxy": {"resources": {"limits": {"cpu": "2"}}}}
    found = plan(resource(changed), Intent.SERVE, SETTINGS, live)
    assert found.pending is None
    limits = pods(found)["proxy"]["spec"]["containers"][0]["resources"]
    assert limits == {"limits": {"cpu": "2"}}


def test_an_upgrade_rolls_by_itself_where_the_policy_says_so() -> None:
    live = live_deployments(SETTINGS, MINIMAL)
    found = plan(resource(MINIMAL), Intent.SERVE, NEWER, live)
    assert found.pending is None
    images = {p["spec"]["containers"][0]["image"] for p in pods(found).values()}
    assert images == {NEWER.image}


def test_proxies_alone_learn_their_zone_and_only_where_it_matters() -> None:
    wanted = {**MINIMAL, "proxy": {"locality": {"tag": "dc", "zoneLabel": "example.com/rack"}}}
    found = pods(plan(resource(wanted), Intent.SERVE, SETTINGS, {}))
    path = "metadata.labels['example.com/rack']"
    assert found["proxy"]["spec"]["containers"][0]["env"] == [
        {"name": "THERMOCLINE_ZONE", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    ]
    for name, pod in found.items():
        assert name == "proxy" or "env" not in pod["spec"]["containers"][0]
    plain = pods(plan(resource(MINIMAL), Intent.SERVE, SETTINGS, {}))
    assert "env" not in plain["proxy"]["spec"]["containers"][0]


def test_workers_are_containers_that_share_the_port_and_nothing_else() -> None:
    proxy = {**WHOLE["proxy"], "workers": 3}
    found = pods(plan(resource({**WHOLE, "proxy": proxy}), Intent.SERVE, SETTINGS, {}))
    containers = found["proxy"]["spec"]["containers"]
    assert [c["name"] for c in containers] == ["proxy", "proxy-2", "proxy-3"]
    assert [a for c in containers for a in c["args"] if a.startswith("--admin")] == [
        "--admin=:8080", "--admin=:8081", "--admin=:8082",
    ]  # fmt: skip
    for container in containers:
        assert {"--share-port", "--listen=:27017"} <= set(container["args"])
        assert container["resources"] == proxy["resources"]
    assert [p for c in containers for p in c["ports"] if p["name"] == "mongodb"] == [
        {"name": "mongodb", "containerPort": 27017, "protocol": "TCP"}
    ]
    assert all(len(found[c]["spec"]["containers"]) == 1 for c in Component if c != "proxy")
    alone = pods(plan(resource(WHOLE), Intent.SERVE, SETTINGS, {}))["proxy"]["spec"]["containers"]
    assert "--share-port" not in alone[0]["args"]


def test_whoever_may_ask_one_worker_may_ask_all() -> None:
    wanted = {**MINIMAL, "proxy": {"workers": 4}}
    found = objects(plan(resource(wanted), Intent.SERVE, EVERYTHING, {}))
    (rule,) = found["NetworkPolicy", "shop"]["spec"]["ingress"]
    assert rule["ports"][1] == {"protocol": "TCP", "port": 8080, "endPort": 8083}


def test_the_reports_of_workers_are_one_report() -> None:
    def told(generation: int, reads: dict[str, Any], **problems: str) -> dict[str, Any]:
        own = {"namespaces": reads}
        return {"appliedGeneration": generation, "problems": problems, "proxy": own}

    one = told(7, {})
    assert as_one([one]) is one
    found = as_one(
        [
            told(7, {"a.b": {"fast": 3, "archive": {"join": 1}}}, topology="nobody"),
            told(6, {"a.b": {"fast": 2, "archive": {"join": 2, "view": 1}}}),
            told(7, {}, barrier="waits"),
        ]
    )
    assert found == told(
        6,
        {"a.b": {"fast": 5, "archive": {"join": 3, "view": 1}}},
        topology="nobody",
        barrier="waits",
    )
    body = {"spec": pods(plan(resource({**MINIMAL, "proxy": {"workers": 2}}), Intent.SERVE, SETTINGS, {}))["proxy"]["spec"]}  # fmt: skip
    assert admin_ports(body) == [8080, 8081]
    assert admin_ports({}) == [8080]

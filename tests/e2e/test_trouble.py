"""What a person is told where something is wrong: Secrets, specs, names, nodes. One resource never holds up another."""

import json
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from support import accounts
from support.e2e.cluster import CHART, Cluster, wait_until
from support.e2e.tiered import Resource, chart_values, secret
from support.e2e.tiers import Tiers

OPERATOR: Final = "ops"
NAMESPACE: Final = "trouble"
USER: Final = "thermocline-trouble"


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: Cluster, tiers: Tiers) -> Iterator[None]:
    cluster.kubectl("create", "namespace", NAMESPACE)
    for member in tiers:
        member.create_services_user(accounts.Login(USER, "right"))
        with member.client() as client:  # another resource's, which is gone for good
            client.drop_database("thermocline")
    # --take-ownership: the CRD may be left from a release that was uninstalled.
    cluster.helm(
        "install", "second", CHART, "-n", OPERATOR, "--create-namespace", "--take-ownership", "--wait",
        *chart_values(watchNamespaces="{trouble}"),
    )  # fmt: skip
    yield
    cluster.kubectl("-n", NAMESPACE, "delete", "trs", "--all", "--timeout=120s", timeout=130)
    cluster.helm("uninstall", "second", "-n", OPERATOR, "--wait")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s", timeout=130)


@pytest.fixture(scope="module")
def trouble(cluster: Cluster) -> Resource:
    return Resource(cluster, NAMESPACE, "trouble")


def login(name: str, **values: str) -> dict[str, Any]:
    return secret(f"{name}-user", NAMESPACE, **values)


def says(resource: Resource, kind: str, reason: str, *texts: str, seconds: float = 60) -> None:
    """Wait until a condition gives this reason, in words that hold these texts."""

    def look() -> Mapping[str, Any]:
        found = resource.condition(kind)
        return found if found.get("reason") == reason else {}

    found = wait_until(f"{kind} says {reason}", look, seconds)
    for text in texts:
        assert text in found["message"], found
    assert reason in resource.described()


def test_a_secret_that_is_missing_is_named(
    cluster: Cluster, tiers: Tiers, trouble: Resource
) -> None:
    ca = secret("tiers-ca", NAMESPACE, ca_crt=tiers.authority.certificate)
    cluster.apply(ca, login("fast", username=USER, password="right"))
    cluster.apply(trouble.manifest(tiers, proxy={"replicas": 1}, collections=[]))
    says(trouble, "CredentialsValid", "SecretMissing", "archive-user")
    blocked = trouble.status()["blockedOn"]
    assert [b for b in blocked if (b["kind"], b["name"]) == ("Secret", "archive-user")]
    assert trouble.row()["READY"] == "False"
    # No pod hangs for it: each runs, and says what it lacks.
    wait_until(
        "all pods run",
        lambda: (
            {p["status"]["phase"] for p in cluster.pods(NAMESPACE, trouble.all_pods)} == {"Running"}
        ),
        60,
    )


def test_a_secret_with_other_keys(cluster: Cluster, trouble: Resource) -> None:
    cluster.apply(login("archive", user=USER, password="right"))
    says(trouble, "CredentialsValid", "SecretIncomplete", "archive-user", "username")


def test_a_wrong_password(cluster: Cluster, trouble: Resource) -> None:
    cluster.apply(login("archive", username=USER, password="geheim"))
    says(trouble, "CredentialsValid", "LogInRefused", seconds=90)
    assert "geheim" not in trouble.described()


def test_the_right_one_is_enough(cluster: Cluster, trouble: Resource) -> None:
    cluster.apply(login("archive", username=USER, password="right"))
    trouble.wait("Ready", seconds=90)
    trouble.wait("CredentialsValid", seconds=90)  # the evictor may try again last


def test_what_only_the_validator_sees(cluster: Cluster, trouble: Resource) -> None:
    uri = (trouble.get() or {})["spec"]["fastTier"]["uri"]
    before = cluster.get("configmap", "trouble-config", NAMESPACE)
    trouble.patch({"fastTier": {"uri": f"{uri}&readPrefrence=nearest"}})
    says(trouble, "ConfigValid", "InvalidSpec", "spec.fastTier.uri", "readPreference")
    assert trouble.row()["READY"] == "False"
    assert cluster.get("configmap", "trouble-config", NAMESPACE) == before, (
        "the last good one stays"
    )
    trouble.patch({"fastTier": {"uri": uri}})
    trouble.wait("ConfigValid", seconds=60)
    trouble.wait("Ready", seconds=60)


def test_somebody_else_s_object_is_left_alone(
    cluster: Cluster, tiers: Tiers, trouble: Resource
) -> None:
    other = Resource(cluster, NAMESPACE, "other")
    mine = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "other-config", "namespace": NAMESPACE},
        "data": {"mine": "yes"},
    }
    cluster.apply(mine)
    cluster.apply(other.manifest(tiers, proxy={"replicas": 1}, collections=[]))
    says(other, "Ready", "NameConflict", "other-config")
    found = cluster.get("configmap", "other-config", NAMESPACE)
    assert found is not None
    assert found["data"] == {"mine": "yes"}
    assert trouble.row()["READY"] == "True", "one resource doesn't hold up another"
    cluster.kubectl("-n", NAMESPACE, "delete", "trs", "other", "--timeout=60s")
    assert cluster.get("configmap", "other-config", NAMESPACE)


def test_a_pod_that_fits_nowhere(cluster: Cluster, trouble: Resource) -> None:
    trouble.patch({"warmer": {"resources": {"requests": {"cpu": "100"}}}})
    blocked = wait_until(
        "the pod is named",
        lambda: [b for b in trouble.status().get("blockedOn", ()) if b["kind"] == "Pod"],
        60,
    )
    assert "nsufficient cpu" in blocked[0]["reason"]
    assert trouble.row()["READY"] == "True", "proxies serve all the same"
    trouble.patch({"warmer": {"resources": {"requests": {"cpu": "10m"}}}})
    wait_until("nothing is waited for", lambda: not trouble.status().get("blockedOn"), 90)


@pytest.mark.whole
def test_workers_share_a_port(cluster: Cluster, trouble: Resource) -> None:
    trouble.patch({"proxy": {"workers": 2}})

    def address() -> str | None:
        found = cluster.ready_pods(NAMESPACE, trouble.selector("proxy"))
        both = [p for p in found if len(p["spec"]["containers"]) == 2]
        return str(both[0]["status"]["podIP"]) if len(found) == len(both) == 1 else None

    pod = wait_until("a pod of two is ready", address, 120)
    trouble.wait("Ready", seconds=60)

    def accepted() -> list[int]:
        for _ in range(20):
            socket.create_connection((str(pod), 27017), timeout=20).close()
        return [
            json.load(urllib.request.urlopen(f"http://{pod}:{port}/status"))["proxy"]["accepted"]
            for port in (8080, 8081)
        ]

    wait_until("both get connections", lambda: all(accepted()), 60)


def test_drift_is_repaired_and_told(cluster: Cluster, trouble: Resource) -> None:
    cluster.kubectl("-n", NAMESPACE, "set", "env", "deployment/trouble-feeder", "STRANGE=1")
    cluster.kubectl("-n", NAMESPACE, "scale", "deployment/trouble-feeder", "--replicas=0")
    wait_until(
        "it is scaled back",
        lambda: (
            (cluster.get("deployment", "trouble-feeder", NAMESPACE) or {})["spec"]["replicas"] == 1
        ),
        90,
    )
    wait_until(
        "an event says so",
        lambda: [e for e in cluster.events(NAMESPACE) if e["reason"] == "DriftRepaired"],
        60,
    )


def test_pause_and_passthrough(trouble: Resource) -> None:
    trouble.patch({"paused": True})
    trouble.wait_for_row(PHASE="Paused", seconds=60)
    trouble.patch({"paused": False, "mode": "Passthrough"})
    trouble.wait_for_row(PHASE="Passthrough", READY="True", seconds=90)


@pytest.mark.whole
def test_idle_means_no_writes_and_little_memory(cluster: Cluster) -> None:
    def versions() -> dict[str, str]:
        kinds = "trs,deployments,configmaps,services,secrets,pods,events,poddisruptionbudgets"
        text = cluster.kubectl("-n", NAMESPACE, "get", kinds, "-o", "json")
        return {
            f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for item in json.loads(text)["items"]
        }

    def of_pods(found: dict[str, str]) -> dict[str, str]:
        return {name: at for name, at in found.items() if name.startswith("Event/trouble-")}

    def over_a_while() -> tuple[dict[str, str], dict[str, str]]:
        before = versions()
        time.sleep(150)
        return before, versions()

    time.sleep(30)  # numbers are written at most every 15 s
    before, after = over_a_while()
    for _ in range(2):
        if of_pods(before) == of_pods(after):
            break
        before, after = (
            over_a_while()
        )  # a machine that stalls fails a probe: something has happened
    assert after == before
    (pid,) = cluster.pids("bin/thermocline-operator")
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x]
    print(line)
    assert int(line.split()[1]) < 150 * 1024

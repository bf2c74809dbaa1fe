"""One installation from ``helm install`` to ``helm uninstall``, as a person sees it. The steps build on each other.

An application works through the proxy all the while and checks each answer.
"""

import base64
import contextlib
import datetime as dt
import json
import os
import signal
import ssl
import tarfile
import time
from pathlib import Path
from typing import Final

import pytest

from support import accounts
from support.e2e.application import OLD_ORDERS, Application, Said
from support.e2e.cluster import CHART, NEXT_TAG, Cluster, NotSo, wait_until
from support.e2e.looks import (
    COMPONENTS,
    RECENT_ORDERS,
    credentials,
    in_fast_tier,
    pods_of,
    seed,
    settled,
    shown_certificates,
)
from support.e2e.pki import Authority
from support.e2e.tiered import Resource, chart_values, secret
from support.e2e.tiers import Tiers

OPERATOR: Final = "thermocline"
READY_SECONDS: Final = 240
"""From ``kubectl apply`` to ``Ready=True`` on a machine that stalls; what it takes is printed."""


def test_install(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "shop")
    said = cluster.helm(
        "install", "thermocline", CHART, "-n", OPERATOR, "--create-namespace", "--wait",
        "--timeout", "90s", *chart_values(),
    )  # fmt: skip
    assert "It looks after TieredReplicaSets in: shop" in said
    cluster.helm("test", "thermocline", "-n", OPERATOR)


def test_apply_and_ready(cluster: Cluster, tiers: Tiers, shop: Resource) -> None:
    seed(tiers)
    cluster.apply(*shop.secrets(tiers))
    began = time.monotonic()
    cluster.apply(shop.manifest(tiers))
    try:
        shop.wait("Ready", seconds=READY_SECONDS)
    except NotSo as error:
        raise AssertionError(f"{error}\n{shop.described()}") from error
    print(f"Ready after {time.monotonic() - began:.1f} s")
    row = shop.row()
    assert row["READY"] == "True"
    assert row["PHASE"] in ("Warming", "Active")
    text = shop.described()
    for kind in (
        "ConfigValid",
        "CredentialsValid",
        "TLSValid",
        "ArchiveReachable",
        "FastTierReachable",
    ):
        assert shop.condition(kind)["status"] == "True", text
    assert "Events:" in text


def test_a_person_finds_what_was_made(cluster: Cluster, shop: Resource) -> None:
    for component, count in zip(COMPONENTS, (2, 1, 1, 1), strict=True):
        wait_until(f"{component} is ready", settled(cluster, shop, component, count), 60)
    binding = cluster.get("secret", f"{shop.name}-binding", shop.namespace)
    assert binding is not None
    assert binding["type"] == "servicebinding.io/mongodb"
    assert "password" not in binding["data"]
    assert base64.b64decode(binding["data"]["uri"]).decode().endswith("/?tls=true")
    scale = cluster.kubectl(
        "-n", shop.namespace, "get", "trs", shop.name, "--subresource=scale", "-o", "json"
    )
    assert json.loads(scale)["status"]["replicas"] == 2
    for pod in cluster.pods(shop.namespace, shop.all_pods):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_plugin_of_kubectl(cluster: Cluster, shop: Resource, tmp_path: Path) -> None:
    def thermocline(command: str, *words: str) -> str:
        return cluster.kubectl("thermocline", command, shop.name, "-n", shop.namespace, *words)

    text = thermocline("status")
    assert f"{shop.namespace}/{shop.name}" in text
    for word in (*COMPONENTS, "shop.orders", "FeederCaughtUp"):
        assert word in text
    assert json.loads(thermocline("status", "-o", "json"))["phase"] in ("Warming", "Active")
    file = tmp_path / "report.tar.gz"
    thermocline("report", "-f", str(file))
    with tarfile.open(file) as report:
        found = {e.name.partition("/")[2]: report.extractfile(e) for e in report}
        raw = {name: part.read() for name, part in found.items() if part is not None}
    assert "errors.txt" not in raw, raw["errors.txt"]
    assert raw["secrets/archive-user.txt"] == b"password\nusername\n"
    assert {"resource.yaml", "events.yaml"} <= raw.keys()
    (feeder,) = [name for name in raw if "feeder" in name and name.endswith("status.json")]
    assert json.loads(raw[feeder])["service"] == "feeder"
    for login in accounts.SERVICES.values():
        assert not [name for name, part in raw.items() if login.password.encode() in part]


def test_an_application_works(application: Application, shop: Resource, tiers: Tiers) -> None:
    application.start(shop.proxy, tiers.authority.certificate)
    said = application.works(after=application.said(), operations=60)
    assert said.failed == 0, said.failures


def test_warming_completes(tiers: Tiers, shop: Resource) -> None:
    row = shop.wait_for_row(WARM="100%", PHASE="Active", seconds=120)
    assert row["READY"] == "True"
    shop.wait("WarmupComplete", seconds=30)
    assert in_fast_tier(tiers, app="recent") == RECENT_ORDERS
    assert in_fast_tier(tiers, app="old") == 0
    assert shop.wait_for_row(COVERAGE="2/2")


def test_a_policy_is_changed_and_documents_are_evicted(
    tiers: Tiers, shop: Resource, application: Application
) -> None:
    before = application.said()
    began = time.monotonic()
    shop.patch({"collections": [
        {"namespace": "shop.orders", "ageField": "createdAt", "maxAge": "10d"},
        {"namespace": "shop.products", "keep": "All"},
    ]})  # fmt: skip
    generation = (shop.get() or {})["metadata"]["generation"]

    def applied() -> bool:
        parts = shop.status().get("components", ())
        return {part["name"] for part in parts} >= set(COMPONENTS) and all(
            part.get("appliedGeneration") == generation for part in parts
        )

    wait_until("every service works with the new policy", applied, 60)
    print(f"applied by all after {time.monotonic() - began:.1f} s")
    kept = sum(1 + i % 20 <= 9 for i in range(RECENT_ORDERS))
    wait_until("documents go", lambda: in_fast_tier(tiers, app="recent") <= kept + 10, 180, 1)
    wait_until(
        "the status counts them", lambda: shop.collection("shop.orders").get("evicted", 0) > 0, 60
    )
    collection = shop.collection("shop.orders")
    assert collection["evicted"] <= collection["confirmed"]
    with tiers.archive.client() as client:
        assert client["shop"]["orders"].count_documents({"app": "recent"}) == RECENT_ORDERS
    said = application.works(after=before)
    assert said.failed == before.failed, said.failures
    assert shop.condition("EvictionSafe")["status"] == "True", shop.described()


def test_credentials_rotate(
    cluster: Cluster, tiers: Tiers, shop: Resource, application: Application
) -> None:
    before = application.said()
    generations = credentials(shop)
    for member in tiers:
        user = accounts.SERVICES[member.tier].user
        with member.client() as client:
            client.admin.command("updateUser", user, pwd=f"{member.name}-second")
        cluster.apply(
            secret(
                f"{member.name}-user",
                shop.namespace,
                username=user,
                password=f"{member.name}-second",
            )
        )
    wait_until(
        "every service has taken the new ones",
        lambda: (
            (now := credentials(shop)).keys() == generations.keys()
            and all(now[name] != generations[name] for name in now)
        ),
        120,
        1,
    )
    said = application.works(after=before, operations=60)
    assert said.failed == before.failed, said.failures
    # Between the servers' change and the Secrets', connections that are new are refused for a moment.
    shop.wait("CredentialsValid", seconds=60)
    shop.wait("Ready", seconds=60)


def test_certificates_rotate(
    cluster: Cluster, tiers: Tiers, shop: Resource, application: Application
) -> None:
    before = application.said()
    # Another authority beside the first, as in the first half of every change of authorities.
    other = Authority(tiers.authority.folder / "other")
    both = tiers.authority.certificate + other.certificate
    cluster.apply(secret("tiers-ca", shop.namespace, ca_crt=both))
    # And another certificate for the proxies.
    new = shop.new_certificate(tiers)
    pods = pods_of(cluster, shop)
    assert shown_certificates(cluster, shop) != {ssl.PEM_cert_to_DER_cert(new.certificate)}
    cluster.apply(shop.certificate_secret(new))
    wait_until(
        "proxies show it",
        lambda: shown_certificates(cluster, shop) == {ssl.PEM_cert_to_DER_cert(new.certificate)},
        60,
    )
    said = application.works(after=before, operations=80)
    assert said.failed == before.failed, said.failures
    assert pods_of(cluster, shop) == pods
    found = shop.condition("TLSValid")
    assert found["status"] == "True", shop.described()
    assert "proxy-tls until" in found["message"]


def test_the_operator_is_killed(cluster: Cluster, shop: Resource, application: Application) -> None:
    before, pods = application.said(), pods_of(cluster, shop)
    (pid,) = cluster.pids("bin/thermocline-operator")
    os.kill(pid, signal.SIGKILL)
    cluster.kubectl(
        "-n", OPERATOR, "rollout", "status", "deployment/thermocline-operator", "--timeout=60s"
    )
    wait_until(
        "another operator works",
        lambda: cluster.pids("bin/thermocline-operator") not in ([], [pid]),
        60,
    )
    said = application.works(after=before)
    assert said.failed == before.failed, said.failures
    assert pods_of(cluster, shop) == pods
    assert shop.row()["READY"] == "True"


@pytest.mark.whole
def test_the_operator_is_frozen(cluster: Cluster, shop: Resource, application: Application) -> None:
    before, pods = application.said(), pods_of(cluster, shop)
    (pid,) = cluster.pids("bin/thermocline-operator")
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(60)
    finally:
        with contextlib.suppress(ProcessLookupError):  # the kubelet may have ended it
            os.kill(pid, signal.SIGCONT)
    said = application.works(after=before, operations=150)
    assert said.failed == before.failed, said.failures
    shop.patch({"evictor": {"pace": 5000}})
    generation = (shop.get() or {})["metadata"]["generation"]
    wait_until("it works again", lambda: shop.status().get("observedGeneration") == generation, 90)
    assert pods_of(cluster, shop) == pods


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_service_is_killed(
    cluster: Cluster, shop: Resource, application: Application, component: str
) -> None:
    before = application.said()
    pids = cluster.pids(f"bin/thermocline-{component}")
    os.kill(pids[0], signal.SIGKILL)
    count = 2 if component == "proxy" else 1
    wait_until(
        f"{component} is back",
        lambda: pids[0] not in cluster.pids(f"bin/thermocline-{component}"),
        30,
    )
    wait_until(f"{component} is ready", settled(cluster, shop, component, count), 90)
    application.works(after=before, operations=60)
    shop.wait("Ready", seconds=60)


def test_proxies_roll_to_another_image(
    cluster: Cluster, shop: Resource, application: Application
) -> None:
    before = application.works(after=application.said())
    pods = pods_of(cluster, shop)
    shop.patch({"rolloutPolicy": "OnApproval"})
    cluster.helm("upgrade", "thermocline", CHART, "-n", OPERATOR, "--wait", *chart_values(NEXT_TAG))
    pending = wait_until("it waits", lambda: shop.status().get("pendingRollout"), 60)
    assert f"thermocline-service:{NEXT_TAG}" in str(pending)
    assert pods_of(cluster, shop) == pods, "nothing rolls before a person says so"
    assert shop.condition("Stalled")["reason"] == "ApprovalNeeded"
    cluster.kubectl("thermocline", "approve", shop.name, "-n", shop.namespace)

    def rolled() -> bool:
        return not pods.keys() & pods_of(cluster, shop).keys() and all(
            settled(cluster, shop, part, 2 if part == "proxy" else 1)() for part in COMPONENTS
        )

    wait_until("every pod is another", rolled, 240, 1)
    said = application.works(after=before, operations=60)
    assert said.failed == before.failed, said.failures
    shop.wait("Ready", seconds=60)


def test_an_upgrade_of_the_chart_rolls_nothing_unasked(
    cluster: Cluster, shop: Resource, application: Application
) -> None:
    before, pods = application.said(), pods_of(cluster, shop)
    shop.patch({"rolloutPolicy": "Auto"})
    cluster.helm(
        "upgrade", "thermocline", CHART, "-n", OPERATOR, "--wait",
        *chart_values(NEXT_TAG, logLevel="debug"),
    )  # fmt: skip
    application.works(after=before, operations=80)
    assert pods_of(cluster, shop) == pods


def test_a_drain_of_the_node_respects_the_budget(
    cluster: Cluster, shop: Resource, application: Application
) -> None:
    before = application.said()
    (node,) = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    name = node["metadata"]["name"]
    done = cluster.attempt(
        "drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=20s",
        f"--pod-selector={shop.selector('proxy')}",
    )  # fmt: skip
    try:
        assert "disruption budget" in done.stderr
        assert cluster.ready_pods(shop.namespace, shop.selector("proxy"))
        application.works(after=before)
    finally:
        cluster.kubectl("uncordon", name)
    wait_until("the proxies are back", settled(cluster, shop, "proxy", 2), 90)


def test_a_deletion_waits_for_the_archive_and_says_so(
    cluster: Cluster, tiers: Tiers, shop: Resource, application: Application
) -> None:
    said = application.stop()
    assert not said.wrong, said.wrong
    TALLY["documents"] = said
    with tiers.fast.client() as client:  # unsent writes, as the archive leaves at once
        cluster.kubectl(
            "-n", tiers.archive.namespace, "scale", "statefulset/archive", "--replicas=0"
        )
        wait_until("the archive is gone", lambda: not tiers.archive.address, 60)
        client["shop"]["orders"].insert_one(
            {"_id": "last", "app": "last", "n": 1, "createdAt": dt.datetime.now(dt.UTC)}
        )
    cluster.kubectl("-n", shop.namespace, "delete", "trs", shop.name, "--wait=false")
    shop.wait_for_row(PHASE="Draining", seconds=90)
    wait_until(
        "it says how to delete all the same",
        lambda: "thermocline.io/force-delete" in shop.described(),
        180,
        2,
    )
    assert shop.status()["blockedOn"]
    assert shop.get() is not None, "it is never released by time alone"


def test_a_deletion_drains(cluster: Cluster, tiers: Tiers, shop: Resource) -> None:
    cluster.kubectl("-n", tiers.archive.namespace, "scale", "statefulset/archive", "--replicas=1")
    try:
        wait_until("the resource is gone", lambda: shop.get() is None, 240, 1)
    except NotSo as error:
        raise AssertionError(f"{error}\n{shop.described()}") from error
    said = TALLY["documents"]
    with tiers.archive.client() as client:
        orders = client["shop"]["orders"]
        names = {"$nin": ["old", "recent", "last"]}
        assert said.documents is not None
        found = orders.count_documents({"app": names})
        assert said.documents <= found <= said.documents + said.doubtful
        assert orders.count_documents({"app": "last"}) == 1
        assert orders.count_documents({"app": "old"}) == OLD_ORDERS
        assert orders.count_documents({"app": "recent"}) == RECENT_ORDERS
    wait_until(
        "its pods are gone",
        lambda: not cluster.items("pods", shop.namespace, shop.all_pods),
        90,
    )


TALLY: dict[str, Said] = {}


def test_a_namespace_is_deleted_without_hanging(
    cluster: Cluster, tiers: Tiers, shop: Resource
) -> None:
    cluster.apply(*shop.secrets(tiers), *(
        secret(
            f"{m.name}-user", shop.namespace,
            username=accounts.SERVICES[m.tier].user, password=f"{m.name}-second",
        )
        for m in tiers
    ))  # fmt: skip
    cluster.apply(shop.manifest(tiers))
    shop.wait("Ready", seconds=90)
    cluster.kubectl("delete", "namespace", shop.namespace, "--timeout=180s", timeout=190)


def test_uninstall_leaves_crd_and_data(cluster: Cluster, tiers: Tiers) -> None:
    cluster.helm("uninstall", "thermocline", "-n", OPERATOR, "--wait")
    assert "tieredreplicasets" in cluster.kubectl("get", "crd")
    wait_until("its pod is gone", lambda: not cluster.items("pods", OPERATOR), 60)
    with tiers.archive.client() as client:
        assert client["shop"]["orders"].count_documents({"app": "old"}) == OLD_ORDERS

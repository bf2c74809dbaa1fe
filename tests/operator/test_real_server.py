"""What only a real API server shows: defaults, field ownership, garbage collection, namespaces that end."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.api_relay import Faults, Relay, until
from thermocline_operator.api import NAMESPACES
from thermocline_operator.plan.labels import FINALIZER, FORCE_DELETE
from thermocline_operator.plan.objects import KINDS

IDLE_SECONDS = float(os.environ.get("THERMOCLINE_IDLE_SECONDS", "25"))


async def test_comes_to_rest_and_writes_nothing_more(
    shop: Any, operator: Any, relay: Relay
) -> None:
    """Also with quantities that the API server rewrites, and after a restart."""
    await shop.create(feeder={"resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}}})
    await until("everything is there", shop.complete, 60)
    before: dict[Any, Any] = {}

    async def at_rest() -> bool:
        nonlocal before
        now = {ref: b["metadata"]["resourceVersion"] for ref, b in (await shop.all_owned()).items()}
        now["status"] = (await shop.resource())["metadata"]["resourceVersion"]
        if now == before:
            return True
        before = now
        await asyncio.sleep(6)
        return False

    await until("at rest", at_rest, 60)
    relay.writes.clear()
    await asyncio.sleep(IDLE_SECONDS)
    assert [w for w in relay.writes if "/leases/" not in w] == []
    await operator.stop()
    relay.writes.clear()
    await operator.start()

    async def applied() -> bool:
        return any(w.endswith("/deployments/shop-warmer") for w in relay.writes)

    await until("the new process has applied everything", applied, 60)
    await asyncio.sleep(3)
    after = {ref: b["metadata"]["resourceVersion"] for ref, b in (await shop.all_owned()).items()}
    assert after == {ref: version for ref, version in before.items() if ref != "status"}
    ready = await shop.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NoProxyReady")
    blocked = (await shop.resource())["status"]["blockedOn"]
    assert any(b["kind"] == "Pod" and "Unschedulable" in b["reason"] for b in blocked)


async def test_sets_right_what_somebody_changed(shop: Any, operator: Any) -> None:
    await shop.create()
    await until("everything is there", shop.complete, 60)
    api, namespace = shop.api, shop.namespace
    await api.merge(KINDS["Deployment"], namespace, "shop-feeder", {"spec": {"replicas": 3}})
    port = [{"name": "mongodb", "port": 9999, "targetPort": "mongodb", "protocol": "TCP"}]
    await api.merge(KINDS["Service"], namespace, "shop-proxy", {"spec": {"ports": port}})
    labels = {"metadata": {"labels": {"thermocline.io/resource": None, "mine": "kept"}}}
    await api.merge(KINDS["ConfigMap"], namespace, "shop-config", labels)

    async def right() -> bool:
        found = await shop.all_owned()
        return (
            found["Deployment", "shop-feeder"]["spec"]["replicas"] == 1
            and found["Service", "shop-proxy"]["spec"]["ports"][0]["port"] == 27017
            and ("ConfigMap", "shop-config") in found
        )

    await until("all is as it should be", right, 60)
    found = await shop.all_owned()
    assert found["ConfigMap", "shop-config"]["metadata"]["labels"]["mine"] == "kept"

    async def told() -> bool:
        return "DriftRepaired" in await shop.reasons()

    await until("an event says so", told, 30)


FAULTS = {
    "watches are cut every second": Faults(watch_seconds=1.0),
    "watches are silent": Faults(silent=True),
    "watches have expired": Faults(gone=True),
    "conflicts": Faults(share=0.15, status=409),
    "refusals": Faults(share=0.1, status=422),
    "too many requests": Faults(share=0.2, status=429),
    "errors": Faults(share=0.2, status=500),
    "errors after the fact": Faults(share=0.2, status=500, after=True),
    "slow answers": Faults(share=0.3, slow=3.0),
}


async def test_goes_on_whatever_breaks(shop: Any, operator: Any, relay: Relay) -> None:
    """A change is carried out under each fault; where news doesn't come, by looking every minute."""
    await shop.create()
    await until("everything is there", shop.complete, 60)
    for number, (name, faults) in enumerate(FAULTS.items()):
        relay.faults = faults
        replicas = 3 + number
        await shop.edit({"spec": {"proxy": {"replicas": replicas}}})

        async def carried_out(wanted: int = replicas) -> bool:
            body = await shop.api.get(KINDS["Deployment"], shop.namespace, "shop-proxy")
            return bool(body["spec"]["replicas"] == wanted)

        await until(name, carried_out, 100)
    relay.faults = Faults()

    async def settled() -> bool:
        body = await shop.resource()
        return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])

    await until("the status follows", settled, 90)
    assert (await shop.condition("Stalled"))["status"] == "False"


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
async def test_deletion_waits_in_every_way(shop: Any, operator: Any, policy: str) -> None:
    """The tiers can't be reached: it holds, says why and how to force, and then goes."""
    await shop.create()
    await until("everything is there", shop.complete, 60)
    await shop.edit({"metadata": {"finalizers": [FINALIZER]}})
    await shop.delete(policy)

    async def draining() -> bool:
        body = await shop.resource()
        manifest = await shop.manifest()
        told = policy == "Foreground" or manifest["spec"]["mode"] == "Passthrough"
        return bool(body["status"]["phase"] == "Draining") and told

    await until("it says that it drains", draining, 60)
    if policy == "Foreground":

        async def without_pods() -> bool:
            return not [ref for ref in await shop.all_owned() if ref[0] == "Deployment"]

        # The garbage collector may learn of the kind half a minute late.
        await until("its Deployments are gone", without_pods, 150)
    assert not await shop.gone()
    body = await shop.resource()
    await shop.edit({"metadata": {"annotations": {FORCE_DELETE: "of-another"}}})
    await asyncio.sleep(3)
    assert not await shop.gone()
    await shop.edit({"metadata": {"annotations": {FORCE_DELETE: body["metadata"]["uid"]}}})
    await until("it is gone", shop.gone, 60)
    assert "ReleasedUnsent" in await shop.reasons()
    if policy == "Orphan":
        assert "ownerReferences" not in (await shop.owned("Deployment", "shop-feeder"))["metadata"]


async def test_a_namespace_with_its_tiers_ends(shop: Any, operator: Any) -> None:
    """No pod of the namespace can be a server any more, so there is nothing to wait for."""
    uri = f"mongodb://db.{shop.namespace}.svc:27017/?replicaSet=archive"
    await shop.create(archive={"uri": uri})
    await until("everything is there", shop.complete, 60)
    await shop.edit({"metadata": {"finalizers": [FINALIZER]}})
    await shop.api._request("DELETE", f"/api/v1/namespaces/{shop.namespace}")

    async def gone() -> bool:
        return await shop.api.get(NAMESPACES, None, shop.namespace) is None

    await until("the namespace is gone", gone, 120)


async def test_another_operator_takes_over(
    shop: Any, operator: Any, relay: Relay, tmp_path: Path
) -> None:
    second = type(operator)(relay, shop, tmp_path)
    await shop.create()
    await until("everything is there", shop.complete, 60)
    await second.start()
    try:
        await asyncio.sleep(3)
        assert await operator.stop(signal.SIGTERM) == 0
        await shop.edit({"spec": {"proxy": {"replicas": 4}}})

        async def carried_out() -> bool:
            return bool((await shop.owned("Deployment", "shop-proxy"))["spec"]["replicas"] == 4)

        await until("the second one works", carried_out, 60)
    finally:
        await second.stop()

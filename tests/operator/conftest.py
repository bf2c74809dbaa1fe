"""The operator as a process against a real API server, through a relay that can break things.

They need a cluster: ``THERMOCLINE_KUBECONFIG=$(tests/cluster/up) pytest tests/operator``. Each test has a
namespace of its own; pods are made that nothing can schedule, so that no image is needed.
"""

import asyncio
import contextlib
import copy
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from support.api_relay import Relay, until
from thermocline_common.spec.crd import custom_resource_definition
from thermocline_operator.api import NAMESPACES, PODS, RESOURCES, Api, ApiError
from thermocline_operator.plan.effective import MANIFEST_KEY
from thermocline_operator.plan.objects import KINDS, Kind

KUBECONFIG = os.environ.get("THERMOCLINE_KUBECONFIG", "")
CRDS = Kind("CustomResourceDefinition", "apiextensions.k8s.io/v1", "customresourcedefinitions")
NOWHERE = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "thermocline.test/nowhere", "operator": "Exists"}
                        ]
                    }
                ]
            }
        }
    }
}
SERVICES = ("proxy", "feeder", "evictor", "warmer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a cluster each says so by its name."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(240))
            if not KUBECONFIG:
                reason = "no cluster: set THERMOCLINE_KUBECONFIG to what tests/cluster/up prints"
                item.add_marker(pytest.mark.skip(reason=reason))


class Shop:
    """One namespace with one resource, and what people and tests do to it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    async def create(self, **change: Any) -> None:
        spec: dict[str, Any] = {
            "archive": {"uri": "mongodb://archive.invalid:27017/?replicaSet=archive"},
            "fastTier": {"uri": "mongodb://fast.invalid:27017/?replicaSet=fast"},
            "collections": [{"namespace": "shop.orders", "keep": "All"}],
            **{service: {"podTemplate": NOWHERE} for service in SERVICES},
        }
        for key, value in change.items():
            spec[key] = {**spec.get(key, {}), **value} if isinstance(value, dict) else value
        body = {
            "apiVersion": RESOURCES.group_version,
            "kind": RESOURCES.name,
            "metadata": {"name": "shop", "namespace": self.namespace},
            "spec": copy.deepcopy(spec),
        }
        await self.api.create(RESOURCES, self.namespace, body)

    async def resource(self) -> dict[str, Any] | None:
        return await self.api.get(RESOURCES, self.namespace, "shop")

    async def edit(self, patch: dict[str, Any]) -> None:
        await self.api.merge(RESOURCES, self.namespace, "shop", patch)

    async def owned(self, kind: str, name: str) -> dict[str, Any] | None:
        return await self.api.get(KINDS[kind], self.namespace, name)

    async def all_owned(self) -> dict[tuple[str, str], dict[str, Any]]:
        found = {}
        for kind in KINDS.values():
            for body in await self.api.list_labelled(
                kind, self.namespace, "thermocline.io/resource=shop"
            ):
                found[kind.name, body["metadata"]["name"]] = body
        return found

    async def condition(self, kind: str) -> dict[str, Any]:
        status = (await self.resource() or {}).get("status") or {}
        return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})

    async def manifest(self) -> dict[str, Any]:
        body = await self.owned("ConfigMap", "shop-config")
        return {} if body is None else dict(yaml.safe_load(body["data"][MANIFEST_KEY]))

    async def complete(self) -> bool:
        """Everything is there, and the status says so."""
        found = await self.all_owned()
        status = (await self.resource() or {}).get("status") or {}
        return len(found) == 10 and status.get("observedGeneration") is not None

    async def gone(self) -> bool:
        return await self.resource() is None

    async def delete(self, policy: str = "Background") -> None:
        path = f"{RESOURCES.prefix}/namespaces/{self.namespace}/tieredreplicasets/shop"
        await self.api._request("DELETE", path, body={"propagationPolicy": policy})

    async def reasons(self) -> list[str]:
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = (await self.api._request("GET", path))["items"]
        return [e["reason"] for e in found if e["involvedObject"]["kind"] == RESOURCES.name]


class Operator:
    """``thermocline-operator`` as a process, through the relay."""

    def __init__(self, relay: Relay, shop: Shop, directory: Path, *words: str) -> None:
        self.log = directory / f"operator-{uuid.uuid4().hex[:6]}.log"
        self._kubeconfig = directory / "relay.kubeconfig"
        relay.write_kubeconfig(self._kubeconfig)
        self._words = (
            "--service-image=localhost/none:1",
            f"--watch-namespaces={shop.namespace}",
            "--lease-namespace=default",  # its own may be deleted
            f"--lease-name={shop.namespace}",
            "--admin=127.0.0.1:0",
            *words,
        )
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "thermocline_operator",
                *self._words,
                stderr=log,
                env={**os.environ, "KUBECONFIG": str(self._kubeconfig)},
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(number)
        try:
            async with asyncio.timeout(40):
                return await process.wait()
        except TimeoutError:
            process.kill()
            raise


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """The cluster's API server itself, with the CustomResourceDefinition in it."""
    configuration = Configuration()
    await config.load_kube_config(KUBECONFIG, client_configuration=configuration)
    api = Api(ApiClient(configuration), timeout=30)
    crd = custom_resource_definition()
    path = f"{CRDS.prefix}/{CRDS.plural}"
    with contextlib.suppress(ApiError):  # it is there already
        await api._request("POST", path, body=crd)
    await until("the resource is served", lambda: _served(api), 30)
    yield api
    await api.close()


async def _served(api: Api) -> bool:
    try:
        await api.list_labelled(RESOURCES, "default")
    except ApiError:
        return False
    return True


@pytest.fixture
async def shop(api: Api) -> AsyncIterator[Shop]:
    """A namespace of its own; nothing is left of it."""
    name = f"thermocline-test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await api._request("POST", "/api/v1/namespaces", body=body)
    shop = Shop(api, name)
    yield shop
    if await shop.resource() is not None:
        await shop.edit({"metadata": {"finalizers": None}})
    if await api.get(NAMESPACES, None, name) is not None:
        with contextlib.suppress(ApiError):  # it may be ending already
            await api._request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """Between the operator and the API server."""
    relay = Relay(Path(KUBECONFIG))
    await relay.start()
    yield relay
    await relay.stop()


@pytest.fixture
async def operator(relay: Relay, shop: Shop, tmp_path: Path) -> AsyncIterator[Operator]:
    """A running operator."""
    found = Operator(relay, shop, tmp_path)
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def operator_at() -> type[Operator]:
    """To be started with further words, and stopped, by the test."""
    return Operator


__all__ = ["PODS", "Operator", "Shop"]

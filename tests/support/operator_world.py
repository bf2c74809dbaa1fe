"""A resource on an API server in memory, with one operator and pods that answer as they are told."""

import copy
from typing import Any

import pytest

from support.fake_kubernetes import FakeApi, FakeKubernetes, FakeReporter
from thermocline_common.spec.manifest import parse_text
from thermocline_operator import ending
from thermocline_operator.announcing import Announcer
from thermocline_operator.drain import Drain
from thermocline_operator.plan.deletion import Outcome
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.reconcile import Reconciler

NAMESPACE, NAME = "shops", "shop"
KEY = (NAMESPACE, NAME)
SPEC: dict[str, Any] = {
    "archive": {"uri": "mongodb://archive:27017/?replicaSet=a"},
    "fastTier": {"uri": "mongodb://fast:27017/?replicaSet=f"},
    "collections": [{"namespace": "shop.products", "keep": "All"}],
}
TRS = "tieredreplicasets"


class World:
    """One API server, one operator, and pods that answer as they are told."""

    def __init__(self) -> None:
        self.server = FakeKubernetes()
        self.server.put("namespaces", {"metadata": {"name": NAMESPACE, "namespace": ""}})
        self.reporter = FakeReporter()
        self.start()

    def start(self) -> None:
        """An operator that remembers nothing."""
        api = FakeApi(self.server)
        self.operator = Reconciler(
            api, PodSettings("services:1"), self.reporter, Announcer(api, "test")
        )

    def create(self, **change: Any) -> None:
        body = {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "u-1"},
            "spec": copy.deepcopy({**SPEC, **change}),
        }
        self.server.put(TRS, body)

    @property
    def resource(self) -> dict[str, Any]:
        return self.server.objects[TRS, NAMESPACE, NAME]

    @property
    def manifest(self) -> Any:
        config = self.server.objects["configmaps", NAMESPACE, "shop-config"]
        return parse_text(config["data"]["manifest.yaml"])

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.resource["status"]["conditions"]
        return next(c for c in conditions if c["type"] == kind)

    def events(self) -> list[str]:
        found = [body for (kind, _, _), body in self.server.objects.items() if kind == "events"]
        return [body["reason"] for body in found]

    async def turn(self, news: bool = True) -> None:
        await self.operator.turn(KEY, news)

    async def turns(self, count: int = 3) -> None:
        for _ in range(count):
            await self.turn()

    def run_pods(self, **feeder: Any) -> None:
        """Every Deployment rolled out, every pod ready and answering by the manifest there is."""
        metadata = self.manifest.metadata
        for number, component in enumerate(Component):
            address = f"10.0.0.{number + 1}"
            name = f"shop-{component}"
            deployment = self.server.objects["deployments", NAMESPACE, name]
            count = deployment["spec"]["replicas"]
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": count,
                "updatedReplicas": count,
                "availableReplicas": count,
                "readyReplicas": count,
            }
            if ("pods", NAMESPACE, f"{name}-x") not in self.server.objects:
                labels = deployment["spec"]["template"]["metadata"]["labels"]
                self.server.put(
                    "pods",
                    {
                        "metadata": {
                            "name": f"{name}-x",
                            "namespace": NAMESPACE,
                            "labels": labels,
                        },
                        "status": {
                            "podIP": address,
                            "phase": "Running",
                            "conditions": [{"type": "Ready", "status": "True"}],
                            "containerStatuses": [{"state": {"running": {}}}],
                        },
                    },
                )
            tier = {"reachable": True, "version": "6.0.5"}
            self.reporter.answers[address] = {
                "service": component.value,
                "uid": metadata.uid,
                "version": "1",
                "appliedGeneration": metadata.generation,
                "problems": {},
                "tiers": {"archive": tier, "fast": tier},
                component.value: {},
            }
        active = self.manifest.spec.mode == "Active"
        state = "Active" if active else "Passthrough"
        self.reporter.answers["10.0.0.2"]["feeder"] = {
            "role": "owner",
            "lagSeconds": 0.0,
            "caughtUp": True,
            "drained": not active,
            "settledGeneration": metadata.generation,
            "namespaces": {"shop.products": {"state": state}},
            **feeder,
        }
        self.reporter.answers["10.0.0.4"]["warmer"] = {
            "namespaces": {"shop.products": {"warmPercent": 100.0, "complete": True}}
        }
        self.reporter.answers["10.0.0.3"]["evictor"] = {
            "namespaces": {"shop.products": {"evicted": 0, "confirmed": 0, "mismatches": 0}}
        }

    async def bring_up(self, **spec: Any) -> None:
        """A resource that serves."""
        self.create(**spec)
        await self.turn()
        self.run_pods()
        await self.turns()
        self.run_pods()
        await self.turns()

    @property
    def complete(self) -> bool:
        """Whether pods can start."""
        return len(self.server.names("deployments")) == 4 and "shop-config" in self.server.names(
            "configmaps"
        )

    @property
    def gone(self) -> bool:
        return (TRS, NAMESPACE, NAME) not in self.server.objects


class NoDrain(Drain):
    """A drain that ends as it is told."""

    ends: Outcome | None = None

    async def start(self) -> None:
        return

    @property
    def outcome(self) -> Outcome | None:
        return self.ends


def without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiers' servers don't answer, and drains do nothing by themselves."""

    async def silent(*_: Any) -> None:
        return None

    monkeypatch.setattr(ending, "prove", silent)
    monkeypatch.setattr(ending, "Drain", NoDrain)
    NoDrain.ends = None

"""The TieredReplicaSet of the tests, and what kubectl shows of it."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support import accounts
from support.e2e.cluster import Cluster, wait_until
from support.e2e.pki import Certificate
from support.e2e.tiers import Member, Tiers


def chart_values(tag: str = "e2e", **more: str) -> list[str]:
    """Arguments of helm: the cluster's images, that of the services with ``tag``, and further values."""
    values = {
        "image.repository": "localhost/thermocline-operator",
        "image.tag": "e2e",
        "serviceImage.repository": "localhost/thermocline-service",
        "serviceImage.tag": tag,
        "watchNamespaces": "{shop}",
        **more,
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def secret(name: str, namespace: str, **values: str) -> dict[str, Any]:
    """A Secret; ``_`` in a key's name stands for a dot."""
    data = {
        key.replace("_", "."): base64.b64encode(value.encode()).decode()
        for key, value in values.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


@dataclass(frozen=True, slots=True)
class Resource:
    """``trs/<name>`` in a namespace."""

    cluster: Cluster
    namespace: str
    name: str = "shop"

    def secrets(self, tiers: Tiers) -> list[dict[str, Any]]:
        """What it refers to."""
        logins = [
            secret(
                f"{member.name}-user",
                self.namespace,
                username=accounts.SERVICES[member.tier].user,
                password=accounts.SERVICES[member.tier].password,
            )
            for member in tiers
        ]
        return [
            *logins,
            secret("tiers-ca", self.namespace, ca_crt=tiers.authority.certificate),
            self.certificate_secret(self.new_certificate(tiers)),
        ]

    def new_certificate(self, tiers: Tiers) -> Certificate:
        """For the proxies, by the tiers' authority; another one each time."""
        return tiers.authority.issue("proxy", [self.proxy.partition(":")[0]])

    def certificate_secret(self, found: Certificate) -> dict[str, Any]:
        """What the proxies are to show."""
        return secret("proxy-tls", self.namespace, tls_crt=found.certificate, tls_key=found.key)

    def manifest(self, tiers: Tiers, **spec: Any) -> dict[str, Any]:
        """The resource with these further fields of its spec."""

        def tier(member: Member) -> dict[str, Any]:
            return {
                "uri": member.uri,
                "credentialsSecretRef": {"name": f"{member.name}-user"},
                "tls": {"caSecretRef": {"name": "tiers-ca"}},
            }

        small = {"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
        wanted: dict[str, Any] = {
            "archive": tier(tiers.archive),
            "fastTier": tier(tiers.fast),
            "collections": [
                {"namespace": "shop.orders", "ageField": "createdAt", "maxAge": "30d"},
                {"namespace": "shop.products", "keep": "All"},
            ],
            # A machine that stalls may take longer than the 10 s of the default.
            "proxy": {
                "barrierTimeout": "60s",
                "tls": {"certificateSecretRef": {"name": "proxy-tls"}},
                **small,
            },
            "feeder": small,
            "warmer": small,
            "evictor": {"mode": "Running", **small},
        }
        return {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {**wanted, **spec},
        }

    @property
    def proxy(self) -> str:
        """The Service's host and port."""
        return f"{self.name}-proxy.{self.namespace}:27017"

    @property
    def all_pods(self) -> str:
        """Selects the pods of all its services."""
        return f"thermocline.io/resource={self.name}"

    def selector(self, component: str) -> str:
        """Selects the pods of a service."""
        return f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"

    def get(self) -> dict[str, Any] | None:
        """As it stands in the API; None: it is gone."""
        return self.cluster.get("trs", self.name, self.namespace)

    def status(self) -> dict[str, Any]:
        """Its status, empty where there is none."""
        return dict((self.get() or {}).get("status") or {})

    def condition(self, kind: str) -> Mapping[str, Any]:
        """The condition of that type, empty where there is none."""
        found = [c for c in self.status().get("conditions", ()) if c["type"] == kind]
        return found[0] if found else {}

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Change fields of the spec."""
        self.cluster.kubectl(
            "-n", self.namespace, "patch", "trs", self.name, "--type=merge", "-p",
            json.dumps({"spec": spec}),
        )  # fmt: skip

    def wait(self, condition: str = "Ready", status: str = "True", seconds: int = 120) -> None:
        """``kubectl wait``, as a person would."""
        self.cluster.kubectl(
            "-n", self.namespace, "wait", f"trs/{self.name}", f"--for=condition={condition}={status}",
            f"--timeout={seconds}s", timeout=seconds + 10,
        )  # fmt: skip

    def row(self) -> dict[str, str]:
        """The line that ``kubectl get trs`` prints, by column."""
        text = self.cluster.kubectl("-n", self.namespace, "get", "trs", self.name)
        head, line = text.splitlines()
        starts = [match.start() for match in re.finditer(r"\S+", head)]
        ends = [*starts[1:], len(line) + len(head)]
        return {
            head[start:end].strip(): line[start:end].strip()
            for start, end in zip(starts, ends, strict=True)
        }

    def described(self) -> str:
        """What ``kubectl describe`` prints."""
        return self.cluster.kubectl("-n", self.namespace, "describe", "trs", self.name)

    def wait_for_row(self, seconds: float = 90, **columns: str) -> dict[str, str]:
        """Wait until ``kubectl get trs`` shows these values."""

        def look() -> dict[str, str] | None:
            row = self.row()
            return row if columns.items() <= row.items() else None

        try:
            found = wait_until(f"kubectl get trs shows {columns}", look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.row()}\n{self.described()}") from error
        assert found is not None
        return found

    def collection(self, namespace: str) -> Mapping[str, Any]:
        """A collection's part of the status, empty where there is none."""
        found = [c for c in self.status().get("collections", ()) if c["namespace"] == namespace]
        return found[0] if found else {}

"""The application's pod, and what it says."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support import accounts
from support.e2e.cluster import Cluster, NotSo, wait_until

SCRIPT: Final = Path(__file__).with_name("traffic.py")
OLD_ORDERS: Final = 600


@dataclass(frozen=True, slots=True)
class Said:
    """One line of the application. ``doubtful``: documents whose last write failed, of which it knows nothing."""

    operations: int
    failed: int
    failures: tuple[str, ...]
    wrong: tuple[str, ...]
    slowest: float
    documents: int | None
    doubtful: int


@dataclass(frozen=True, slots=True)
class Application:
    """An application that works through a proxy's Service."""

    cluster: Cluster
    namespace: str
    name: str = "application"

    def start(self, host: str, authority: str) -> None:
        """Make its pod; ``host`` is the proxy's, with port, ``authority`` the certificate that signed its own."""
        login = accounts.APPLICATION
        uri = (
            f"mongodb://{login.user}:{login.password}@{host}/?authSource=admin"
            "&tls=true&tlsCAFile=/app/ca.crt"
        )
        meta = {"name": self.name, "namespace": self.namespace}
        container = {
            "name": "application",
            "image": "localhost/thermocline-service:e2e",
            "command": ["python", "/app/traffic.py", uri],
            "resources": {"requests": {"cpu": "50m"}},
            "env": [{"name": "OLD_ORDERS", "value": str(OLD_ORDERS)}],
            "volumeMounts": [
                {"name": "app", "mountPath": "/app"},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        }
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": meta,
                "data": {"traffic.py": SCRIPT.read_text(), "ca.crt": authority},
            },
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**meta, "labels": {"app": self.name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "restartPolicy": "Never",
                    "containers": [container],
                    "volumes": [
                        {"name": "app", "configMap": {"name": self.name}},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                },
            },
        )
        wait_until(
            "the application works", lambda: self._lines() and self.said().operations > 20, 90
        )

    def _lines(self) -> list[dict[str, Any]]:
        text = self.cluster.logs(self.namespace, self.name, "--tail=3")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def said(self) -> Said:
        """Its last line. Raises :class:`NotSo` where there is none."""
        lines = self._lines()
        if not lines:
            raise NotSo(
                f"the application says: {self.cluster.logs(self.namespace, self.name, '--tail=20')}"
            )
        last = lines[-1]
        return Said(
            last["operations"],
            last["failed"],
            tuple(last["failures"]),
            tuple(last["wrong"]),
            last["slowest"],
            last.get("documents"),
            last.get("doubtful", 0),
        )

    def works(self, *, after: Said, operations: int = 40, seconds: float = 240) -> Said:
        """Wait until it has done this many more operations; then what it says."""

        def look() -> Said | None:
            said = self.said()
            return said if said.operations >= after.operations + operations else None

        said = wait_until("the application goes on", look, seconds)
        assert said is not None
        assert not said.wrong, said.wrong
        return said

    def stop(self) -> Said:
        """End its work, let it read back everything, and remove it; its last words."""
        self.cluster.kubectl("-n", self.namespace, "exec", self.name, "--", "touch", "/tmp/stop")
        said = wait_until(
            "the application has read back everything",
            lambda: (lambda s: s if s.documents is not None else None)(self.said()),
            120,
        )
        assert said is not None
        self.cluster.kubectl("-n", self.namespace, "delete", "pod", self.name, "--wait=true")
        return said

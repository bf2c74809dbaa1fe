"""The test cluster of ``tests/cluster``, driven as a person would: kubectl, helm, and waiting for what they show."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from support.helm import CHART, CLUSTER, ROOT

SETTINGS: Final[Mapping[str, str]] = {
    "CLUSTER_NAME": "thermocline-e2e",
    "CLUSTER_NET": "10.202",
    "CLUSTER_STATE": str(Path("~/.local/state/thermocline-e2e").expanduser()),
}
"""A cluster of its own, beside whatever else runs; the programs are shared."""
PROGRAMS: Final = (
    "go", "containerd", "runc", "iptables", "nft", "conntrack", "ip", "openssl", "mmdebstrap", "buildah",
)  # fmt: skip
IMAGES: Final[Mapping[str, tuple[Path, Path]]] = {
    "thermocline-service:e2e": (ROOT / "images/service/Dockerfile", ROOT),
    "thermocline-operator:e2e": (ROOT / "images/operator/Dockerfile", ROOT),
    "mongod:6.0.5": (CLUSTER / "mongod/Dockerfile", CLUSTER / "mongod"),
}
NEXT_TAG: Final = "e2e-next"
"""A second name of the same images, for what rolls to a new one."""


T = TypeVar("T")


class NotSo(AssertionError):
    """What was waited for didn't come; the message says what was seen last."""


def obstacles() -> list[str]:
    """What this machine lacks to run the cluster; empty: nothing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    found = [
        f"{name} isn't installed" for name in PROGRAMS if shutil.which(name, path=path) is None
    ]
    if os.geteuid() != 0:
        found.append("not root")
    if not Path("/usr/lib/cni/bridge").exists():
        found.append("containernetworking-plugins isn't installed")
    return found


def wait_until(what: str, look: Callable[[], T], seconds: float, pause: float = 0.3) -> T:
    """Look until the answer is true, and return it. Raises :class:`NotSo` after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > end:
            raise NotSo(f"{what}: not so after {seconds:.0f} s, but {answer!r}")
        time.sleep(pause)


def script(name: str, *words: str | Path, timeout: float = 900) -> str:
    """Run one of the cluster's scripts; its standard output."""
    done = subprocess.run(
        [str(CLUSTER / name), *map(str, words)],
        env={**os.environ, **SETTINGS},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=timeout,
    )
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. ``kubeconfig`` is a file, ``programs`` the folder of kubectl and helm."""

    kubeconfig: Path
    programs: Path

    def _run(
        self, words: Sequence[str], text: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(words),
            env={
                **os.environ,
                "KUBECONFIG": str(self.kubeconfig),
                # With kubectl-thermocline, which kubectl takes for a plugin of its own.
                "PATH": f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def attempt(
        self, *words: str, text: str | None = None, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """kubectl, whatever comes of it."""
        return self._run(["kubectl", *words], text, timeout)

    def kubectl(self, *words: str, text: str | None = None, timeout: float = 240) -> str:
        """What kubectl prints. Raises :class:`NotSo` with its error if it fails."""
        done = self.attempt(*words, text=text, timeout=timeout)
        if done.returncode != 0:
            raise NotSo(f"kubectl {' '.join(words)}: {done.stderr or done.stdout}")
        return done.stdout

    def helm(self, *words: str | Path, timeout: float = 600) -> str:
        """What helm prints. Raises :class:`NotSo` with its error if it fails."""
        done = self._run(["helm", *map(str, words)], None, timeout)
        if done.returncode != 0:
            raise NotSo(f"helm {' '.join(map(str, words))}: {done.stderr or done.stdout}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply these objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", text=json.dumps(items))

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any] | None:
        """The object, or None where there is none."""
        done = self.attempt("-n", namespace, "get", kind, name, "-o", "json", "--ignore-not-found")
        if done.returncode != 0:
            raise NotSo(f"get {kind} {name}: {done.stderr}")
        return dict(json.loads(done.stdout)) if done.stdout.strip() else None

    def items(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects of a kind that a selector matches."""
        text = self.kubectl("-n", namespace, "get", kind, "-l", selector, "-o", "json")
        return list(json.loads(text)["items"])

    def pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """The pods that aren't being deleted."""
        found = self.items("pods", namespace, selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready_pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Those of them that are ready."""
        return [
            pod
            for pod in self.pods(namespace, selector)
            if any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in pod["status"].get("conditions", ())
            )
        ]

    def logs(self, namespace: str, pod: str, *words: str) -> str:
        """A pod's log, or why there is none."""
        done = self.attempt("-n", namespace, "logs", pod, *words)
        return done.stdout or done.stderr

    def events(self, namespace: str) -> list[dict[str, Any]]:
        """The events of a namespace, oldest first."""
        text = self.kubectl(
            "-n", namespace, "get", "events", "-o", "json", "--sort-by=.metadata.creationTimestamp"
        )
        return list(json.loads(text)["items"])

    def pids(self, container_command: str) -> list[int]:
        """The process ids, on this machine, of the sandbox's processes with this text in their command line."""
        sandbox = int((Path(SETTINGS["CLUSTER_STATE"]) / "sandbox.pid").read_text().split()[0])
        return sorted(
            pid for pid in _descendants(sandbox) if container_command in _command_line(pid)
        )


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _command_line(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """The cluster with all images loaded; put down at the end, unless ``THERMOCLINE_E2E_KEEP`` is set.

    ``THERMOCLINE_E2E_IMAGES=loaded``: the kept cluster has the images already.
    """
    programs = Path(script("build"))
    script("image", "pause")
    script("image", "base")
    try:
        kubeconfig = Path(script("up", "--sync", "10"))
        if os.environ.get("THERMOCLINE_E2E_IMAGES") != "loaded":
            _load_images()
        yield Cluster(kubeconfig, programs)
    finally:
        if "THERMOCLINE_E2E_KEEP" not in os.environ:
            script("down")


def _load_images() -> None:
    for tag, (file, folder) in IMAGES.items():
        script("image", "build", "-t", tag, "-f", file, folder)
    socket = Path(SETTINGS["CLUSTER_STATE"]) / "containerd.sock"
    service = "localhost/thermocline-service"
    names = [f"{service}:e2e", f"{service}:{NEXT_TAG}"]
    tagging = ["ctr", "-a", str(socket), "-n", "k8s.io", "images", "tag", "--force", *names]
    subprocess.run(tagging, check=True, capture_output=True)


__all__ = ["CHART", "Cluster", "NotSo", "obstacles", "running_cluster", "script", "wait_until"]

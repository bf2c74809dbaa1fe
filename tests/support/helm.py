"""Helm and kubectl of the test cluster, and the chart rendered by them.

``python -m support.helm manifests NAMESPACE`` writes the plain manifests of ``make manifests``.
"""

import argparse
import fcntl
import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "thermocline"
CLUSTER: Final = ROOT / "tests" / "cluster"
MANIFESTS: Final = ROOT / "build" / "manifests" / "thermocline.yaml"


@functools.cache
def clients() -> Path:
    """The folder with ``helm`` and ``kubectl``; fetched if it isn't there. Seconds, once on a machine."""
    command = [sys.executable, str(CLUSTER / "build"), "--clients"]
    with (Path(tempfile.gettempdir()) / "thermocline-clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes begin at the same time
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@functools.cache
def promtool() -> Path | None:
    """Prometheus' checker of rules, taken out of Debian's package once on a machine; None where there is none."""
    found = shutil.which("promtool")
    kept = clients() / "promtool"
    if found or kept.exists():
        return Path(found) if found else kept
    with tempfile.TemporaryDirectory() as folder:
        try:
            for command in (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg -x *.deb ."]):
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError):
            return None
        shutil.copy(Path(folder, "usr/bin/promtool"), kept)
    return kept


def helm(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run helm; its output is in the result. Raises ``CalledProcessError`` if it fails and ``check``."""
    command = [clients() / "helm", *words]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=120)


def template(
    *words: str, release: str = "thermocline", namespace: str = "thermocline"
) -> list[dict[str, Any]]:
    """The chart's objects with these further arguments, such as ``--set clusterWide=true``."""
    return parse(render(*words, release=release, namespace=namespace))


def render(*words: str, release: str = "thermocline", namespace: str = "thermocline") -> str:
    """The chart's text with these further arguments."""
    return helm("template", release, CHART, "--namespace", namespace, *words).stdout


def parse(text: str) -> list[dict[str, Any]]:
    """The objects in a text of several YAML documents."""
    return [document for document in yaml.safe_load_all(text) if document]


def plain_manifests(namespace: str, words: Sequence[str] = ()) -> str:
    """The chart as plain manifests, with its namespace, in an order that can be applied at once."""
    head = f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n"
    body = render("--skip-tests", *words, namespace=namespace)
    # What only Helm reads has no meaning here.
    lines = [line for line in body.splitlines() if not line.startswith("# Source:")]
    text = "\n".join(lines).replace("managed-by: Helm", "managed-by: kubectl")
    return f"# From the Helm chart, by `make manifests`. Apply with: kubectl apply --server-side -f FILE\n{head}{text}\n"


def main() -> None:
    """Write the manifests."""
    parser = argparse.ArgumentParser("python -m support.helm")
    parser.add_argument("command", choices=["manifests"])
    parser.add_argument("namespace")
    parser.add_argument("--values", type=Path)
    arguments = parser.parse_args()
    words = ["--values", str(arguments.values)] if arguments.values else []
    MANIFESTS.parent.mkdir(parents=True, exist_ok=True)
    MANIFESTS.write_text(plain_manifests(arguments.namespace, words))
    print(MANIFESTS.relative_to(ROOT))


if __name__ == "__main__":
    main()

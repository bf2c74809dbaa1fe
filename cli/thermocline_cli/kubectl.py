"""The cluster as ``kubectl`` shows it: contexts, log-ins and their plugins are its business."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from thermocline_common.logs import redact

KIND: Final = "tieredreplicasets.thermocline.io"
TIMEOUT: Final = 60.0


class KubectlError(Exception):
    """What ``kubectl`` said, without secrets."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``words``: what is said to every call, such as ``--context=...``."""

    words: tuple[str, ...] = ()
    program: str = "kubectl"

    def run(self, *words: str) -> str:
        """What it prints. Raises :class:`KubectlError`."""
        try:
            done = subprocess.run(  # noqa: S603 (a list of words, and no shell)
                [self.program, *words, *self.words],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=TIMEOUT,
            )
        except FileNotFoundError:
            raise KubectlError(f"{self.program} isn't on the PATH; install it") from None
        except subprocess.TimeoutExpired:
            raise KubectlError(f"{self.program} didn't answer within {TIMEOUT:.0f} s") from None
        if done.returncode != 0:
            raise KubectlError(redact((done.stderr or done.stdout).strip()))
        return done.stdout

    def read(self, *words: str) -> dict[str, Any]:
        """An object, or a list with ``items``. Raises :class:`KubectlError`."""
        try:
            found = json.loads(self.run("get", *words, "--output=json"))
        except ValueError as error:
            raise KubectlError(f"{self.program} printed no JSON: {error}") from None
        return dict(found)

    def resource(self, name: str | None) -> dict[str, Any]:
        """The TieredReplicaSet of that name; None: the only one of the namespace."""
        if name is not None:
            return self.read(KIND, name)
        found = self.read(KIND)["items"]
        if len(found) != 1:
            names = ", ".join(body["metadata"]["name"] for body in found)
            raise KubectlError(
                f"say which: {names}" if names else "there is no TieredReplicaSet in this namespace"
            )
        return dict(found[0])

    def patch(self, body: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        """Change these fields of a TieredReplicaSet."""
        metadata = body["metadata"]
        self.run(
            "patch",
            KIND,
            metadata["name"],
            f"--namespace={metadata['namespace']}",
            "--type=merge",
            f"--patch={json.dumps(change)}",
        )

"""The relay process as seen from a test: ports that lead through it, and rules for its links."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from support.chaos.rules import Rule


class Links:
    """``with Links() as links``. Commands may come from any thread."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._rules: dict[int, Rule] = {}
        self._serial = 0

    def listen(self, name: str, target: int, delay: float = 0.0) -> int:
        """A port that leads to ``target`` of the part ``name``, ``delay`` seconds away (one way)."""
        asked = {"do": "listen", "name": name, "target": target, "delay": delay}
        return int(self._ask(asked)["port"])

    def know(self, pids: Mapping[int, str]) -> None:
        """Who is who: names by process id."""
        self._ask({"do": "pids", "pids": {str(pid): name for pid, name in pids.items()}})

    def add(self, rule: Rule) -> int:
        """Put a rule in force; returns what :meth:`remove` takes."""
        with self._lock:
            self._serial += 1
            self._rules[self._serial] = rule
            number = self._serial
        self._publish()
        return number

    def remove(self, number: int) -> None:
        """The link works again."""
        with self._lock:
            self._rules.pop(number, None)
        self._publish()

    def clear(self) -> None:
        """All links work again."""
        with self._lock:
            self._rules.clear()
        self._publish()

    def _publish(self) -> None:
        with self._lock:
            rules = [(r.source, r.target, r.effect.value) for r in self._rules.values()]
        self._ask({"do": "rules", "rules": rules})

    def _ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                raise RuntimeError("the relays have ended")
            there, back = self._pipes(self._child)
            there.write(json.dumps(command) + "\n")
            there.flush()
            answer: dict[str, Any] = json.loads(back.readline())
            return answer

    @staticmethod
    def _pipes(child: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
        assert child.stdin is not None
        assert child.stdout is not None
        return child.stdin, child.stdout

    def __enter__(self) -> Self:
        setpriv = shutil.which("setpriv")
        prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        self._child = subprocess.Popen(
            [*prefix, sys.executable, "-m", "support.chaos.relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        child = self._child
        if child is not None:
            child.kill()
            child.wait()
            for pipe in self._pipes(child):
                pipe.close()

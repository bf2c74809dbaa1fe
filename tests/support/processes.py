"""Child processes that can't outlive us, and free loopback ports."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_SETPRIV = shutil.which("setpriv")


# Below the range from which the kernel takes ports of its own: an outgoing connection can't take one
# between the moment it is found and the moment a server listens on it.
PORTS = range(12_000, 32_000)
_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on right now, a different one at each call."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in _given:
            continue
        _given.add(port)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Process:
    """One child process: started, stopped, killed and frozen by its own pid only.

    The kernel kills it when the thread that started it ends (``setpriv --pdeathsig``; a
    ``preexec_fn`` would be unsafe next to PyMongo's threads), so an aborted run leaves nothing.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.log = log
        self.environment = environment
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The running process's id. Raises ``RuntimeError`` if it isn't started."""
        if self._child is None:
            raise RuntimeError(f"{self.command[0]} is not started")
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it was started and hasn't ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs or before it was started."""
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Start it; its output is appended to ``log``."""
        if self.running:
            raise RuntimeError(f"{self.command[0]} runs already")
        prefix = [_SETPRIV, "--pdeathsig", "KILL", "--"] if _SETPRIV else []
        environment = {**os.environ, **self.environment} if self.environment else None
        with self.log.open("ab") as sink:
            self._child = subprocess.Popen(
                [*prefix, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """Send a signal to it (nothing happens if it has ended)."""
        if self._child is not None:
            self._child.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: it looks cut off from the network."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM, then wait; kill -9 after ``timeout`` seconds. Returns the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> int:
        """kill -9, then wait. Returns the exit code."""
        return self._end(signal.SIGKILL, 10.0)

    def _end(self, number: int, timeout: float) -> int:
        if self._child is None:
            return 0
        if self._child.poll() is None:
            self._child.send_signal(number)
            self._child.send_signal(signal.SIGCONT)
            try:
                self._child.wait(timeout)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        return self._child.returncode

    def wait(self, timeout: float) -> int:
        """Wait until it ends by itself. Raises ``subprocess.TimeoutExpired``."""
        if self._child is None:
            raise RuntimeError(f"{self.command[0]} is not started")
        return self._child.wait(timeout)

    def tail(self, lines: int = 30) -> str:
        """The end of its log, for error messages."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def wait_until(
    what: str, check: Callable[[], object], timeout: float = 30.0, pause: float = 0.05
) -> None:
    """Call ``check()`` until it is true. Raises ``TimeoutError`` that names ``what``."""
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(pause)

"""A drain that needs no pod: ``thermocline-feeder --drain-and-exit`` as a process of the operator's."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from thermocline_operator.plan.deletion import Outcome

log = logging.getLogger(__name__)

DRAINED: Final = 0
REFUSED: Final = 3
END_SECONDS: Final = 10.0
_PASSED_ON: Final = ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH", "PYTHONSAFEPATH")
_KEPT_LINES: Final = 20


class Drain:
    """One process. Its files are in a directory that only we can read, and go with it."""

    def __init__(self, manifest: str, credentials: Mapping[str, bytes]) -> None:
        self.manifest = manifest
        self._credentials = dict(credentials)
        self._process: asyncio.subprocess.Process | None = None
        self._directory: Path | None = None
        self._reading: asyncio.Task[None] | None = None
        self._port: int | None = None
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)

    async def start(self) -> None:
        """Start it. Raises ``OSError`` where that isn't possible."""
        self._directory = Path(tempfile.mkdtemp(prefix="thermocline-drain-"))
        manifest = self._directory / "manifest.yaml"
        manifest.write_text(self.manifest, "utf-8")
        files = self._directory / "credentials"
        files.mkdir(mode=0o700)
        for path, content in self._credentials.items():
            target = files / path
            target.parent.mkdir(mode=0o700, exist_ok=True)
            target.touch(mode=0o600)
            target.write_bytes(content)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "thermocline_feeder",
            f"--manifest={manifest}",
            f"--credentials={files}",
            "--admin=127.0.0.1:0",
            "--drain-and-exit",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={
                k: os.environ[k]
                for k in os.environ
                if k in _PASSED_ON or k.startswith("THERMOCLINE_TEST_")
            },
        )
        log.info("draining without a pod", extra={"pid": self._process.pid})
        self._reading = asyncio.create_task(self._read(self._process))

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None: it runs."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return None
        if code == DRAINED:
            return Outcome.DRAINED
        return Outcome.REFUSED if code == REFUSED else Outcome.FAILED

    @property
    def last_words(self) -> str:
        """The last thing that it logged, without secrets."""
        return self._last[-1] if self._last else "it logged nothing"

    async def report(self) -> Mapping[str, Any] | None:
        """Its ``/status``; None: it doesn't answer."""
        if self._port is None or self.outcome is not None:
            return None
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
            timeout = aiohttp.ClientTimeout(total=3)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"http://127.0.0.1:{self._port}/status") as response,
            ):
                found = json.loads(await response.read())
                return found if isinstance(found, dict) else None
        return None

    async def close(self) -> None:
        """End it, and remove its files."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(END_SECONDS):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await self._line(process.stderr):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("message") == "admin port open":
                self._port = int(entry["port"])
            if entry.get("level") in ("warning", "error", "critical"):
                self._last.append(str(entry.get("message")))
                log.info("the drain says: %s", entry.get("message"))
        await process.wait()

    @staticmethod
    async def _line(stream: asyncio.StreamReader) -> bytes:
        while True:
            try:
                return await stream.readline()
            except ValueError:  # a line beyond the buffer: what is kept isn't needed
                continue

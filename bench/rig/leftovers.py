"""What a run has made, written down before it makes it, so that the next one can clean up after a crash."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

from rig.blocks import start_ticks
from rig.cgroups import remove_group
from rig.refusal import Refused


def started(pid: int) -> int | None:
    """When a process started; None where there is none."""
    try:
        return start_ticks(Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return None


class Leftovers:
    """The record: a JSON file beside the data. Processes by id and start, groups and directories by path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[tuple[int, int]] = []
        self.groups: list[str] = []
        self.directories: list[str] = []

    def claim(self) -> list[str]:
        """Begin a run: remove what an earlier one left, and say what that was.

        Raises :class:`Refused` while another run is under way.
        """
        removed: list[str] = []
        if self.path.exists():
            with contextlib.suppress(ValueError):
                record: dict[str, Any] = json.loads(self.path.read_text())
                owner = record["owner"]
                if owner[0] != os.getpid() and started(owner[0]) == owner[1]:
                    raise Refused(f"another run (process {owner[0]}) is under way here")
                removed = self._remove(record)
        self._write()
        return removed

    def add_process(self, pid: int) -> None:
        """A process that must not outlive the run."""
        at = started(pid)
        if at is not None:
            self.processes.append((pid, at))
            self._write()

    def add_group(self, path: Path) -> None:
        """A control group's directory."""
        self.groups.append(str(path))
        self._write()

    def add_directory(self, path: Path) -> None:
        """A directory with data."""
        self.directories.append(str(path))
        self._write()

    def release(self) -> None:
        """All is cleaned up."""
        self._remove(self._record())
        self.path.unlink(missing_ok=True)

    def _record(self) -> dict[str, Any]:
        return {
            "owner": [os.getpid(), started(os.getpid())],
            "processes": self.processes,
            "groups": self.groups,
            "directories": self.directories,
        }

    def _write(self) -> None:
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps(self._record()))
        scratch.replace(self.path)

    @staticmethod
    def _remove(record: dict[str, Any]) -> list[str]:
        removed = []
        for pid, at in record["processes"]:
            if started(pid) == at:  # else the id is somebody else's by now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    removed.append(f"process {pid}")
        for group in record["groups"]:
            if Path(group).exists():
                with contextlib.suppress(OSError):
                    remove_group(Path(group))
                    removed.append(f"control group {group}")
        for directory in record["directories"]:
            if Path(directory).exists():
                shutil.rmtree(directory, ignore_errors=True)
                removed.append(f"directory {directory}")
        return removed

"""The text of control groups and /proc: limits to write, counts to read."""

from dataclasses import dataclass
from enum import Enum


class Version(Enum):
    """Which control groups this machine has for blocks and memory."""

    V1 = 1
    V2 = 2


@dataclass(frozen=True, slots=True)
class Device:
    """A whole disk, as ``major:minor`` names it."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


def mounted_controllers(mounts: str) -> dict[str, tuple[Version, str]]:
    """Controllers by name from ``/proc/mounts``: their version and where they are mounted.

    Version 2 appears under the name ``unified``: which controllers it has is in its own files.
    """
    found: dict[str, tuple[Version, str]] = {}
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        _, where, kind, options = fields[:4]
        if kind == "cgroup2":
            found["unified"] = (Version.V2, where)
        elif kind == "cgroup":
            for name in ("blkio", "memory"):
                if name in options.split(","):
                    found[name] = (Version.V1, where)
    return found


def disk_reads(version: Version, text: str, device: Device) -> int:
    """Reads that a group has done: of ``blkio.throttle.io_serviced`` (v1) or ``io.stat`` (v2)."""
    for line in text.splitlines():
        fields = line.split()
        if not fields or fields[0] != str(device):
            continue
        if version is Version.V1:
            if len(fields) == 3 and fields[1] == "Read":
                return int(fields[2])
            continue
        for entry in fields[1:]:
            name, _, value = entry.partition("=")
            if name == "rios":
                return int(value)
    return 0


def start_ticks(stat: str) -> int:
    """When a process started, of ``/proc/PID/stat``: with its id it names a process for good."""
    return int(stat.rpartition(")")[2].split()[19])


def cpu_ticks(stat: str) -> int:
    """User and system time of a process with all its threads, of ``/proc/PID/stat``."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def busy_ticks(stat: str) -> int:
    """What all processors of the machine have worked, of ``/proc/stat``: without idle and waiting."""
    for line in stat.splitlines():
        if line.startswith("cpu "):
            user, nice, system, _idle, _waiting, *rest = (int(field) for field in line.split()[1:])
            return user + nice + system + sum(rest[:3])  # interrupts, soft ones, stolen
    return 0


def holds(reads: int, seconds: float, limit: int) -> bool:
    """Whether so many reads in that time say that the throttle works: a fifth above it for its first burst."""
    return reads <= limit * seconds * 1.2 + limit * 0.25

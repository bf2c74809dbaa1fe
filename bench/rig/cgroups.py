"""Control groups, version 1 or 2: a disk's reads limited, memory limited, both seen to hold."""

import contextlib
import mmap
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rig.blocks import Device, Version, disk_reads, holds, mounted_controllers
from rig.refusal import Refused

PREFIX: Final = "thermocline-rig"
PROBE_MB: Final = 128
PROBE_SECONDS: Final = 2.0
PROBE_LIMIT: Final = 200
BLOCK: Final = 4096


@dataclass(frozen=True, slots=True)
class Controllers:
    """Where groups are made. With version 2 both are the same place."""

    version: Version
    blocks: Path
    memory: Path


def find_controllers() -> Controllers:
    """What this machine has. Raises :class:`Refused`."""
    if os.geteuid() != 0:
        raise Refused("the rig limits a disk and memory by control groups, which needs root")
    found = mounted_controllers(Path("/proc/mounts").read_text())
    if "blkio" in found and "memory" in found:
        return Controllers(Version.V1, Path(found["blkio"][1]), Path(found["memory"][1]))
    if "unified" in found:
        top = Path(found["unified"][1])
        available = set((top / "cgroup.controllers").read_text().split())
        missing = {"io", "memory"} - available
        if missing:
            names = " and ".join(sorted(missing))
            raise Refused(f"control groups version 2 at {top} lack the controllers {names}")
        try:
            (top / "cgroup.subtree_control").write_text("+io +memory")
        except OSError as error:
            raise Refused(f"io and memory can't be switched on below {top}: {error}") from None
        return Controllers(Version.V2, top, top)
    raise Refused(
        "no control groups: neither version 1 (blkio and memory) nor version 2 is mounted"
    )


def find_device(directory: Path) -> Device:
    """The whole disk that holds ``directory``. Raises :class:`Refused`, on overlay or tmpfs for example."""
    number = directory.stat().st_dev
    device = Device(os.major(number), os.minor(number))
    known = Path(f"/sys/dev/block/{device}")
    if not known.exists():
        raise Refused(
            f"{directory} isn't on a disk of its own (device {device} is no block device): choose another --directory"
        )
    if (known / "partition").exists():
        major, _, minor = (known.resolve().parent / "dev").read_text().strip().partition(":")
        device = Device(int(major), int(minor))
    return device


class Group:
    """A group of processes; made empty, and gone with :meth:`remove`."""

    def __init__(self, controllers: Controllers, name: str) -> None:
        self.controllers = controllers
        full = f"{PREFIX}-{name}"
        self.blocks = controllers.blocks / full
        self.memory = controllers.memory / full

    @property
    def directories(self) -> tuple[Path, ...]:
        """Of the group, one or two."""
        return tuple(dict.fromkeys((self.blocks, self.memory)))

    def make(self) -> None:
        """Make it. Raises :class:`Refused` where the kernel doesn't allow it."""
        try:
            for directory in self.directories:
                directory.mkdir(exist_ok=True)
        except OSError as error:
            raise Refused(f"no control group can be made: {error}") from None

    def limit_reads(self, device: Device, a_second: int | None) -> None:
        """Reads a second from a disk; None: as many as it can do. Raises :class:`Refused`."""
        try:
            if self.controllers.version is Version.V1:
                name, text = "blkio.throttle.read_iops_device", f"{device} {a_second or 0}"
            else:
                name, text = "io.max", f"{device} riops={a_second or 'max'}"
            (self.blocks / name).write_text(text)
        except OSError as error:
            raise Refused(f"reads of disk {device} can't be limited: {error}") from None

    def limit_memory(self, megabytes: int | None) -> None:
        """Memory, with the kernel's copies of files that its processes read. Raises :class:`Refused`."""
        amount = None if megabytes is None else megabytes << 20
        try:
            if self.controllers.version is Version.V1:
                (self.memory / "memory.limit_in_bytes").write_text(
                    str(-1 if amount is None else amount)
                )
            else:
                (self.memory / "memory.max").write_text(str(amount or "max"))
        except OSError as error:
            raise Refused(f"memory can't be limited: {error}") from None

    def memory_used_mb(self) -> float:
        """What it holds now."""
        v1 = self.controllers.version is Version.V1
        name = "memory.usage_in_bytes" if v1 else "memory.current"
        return int((self.memory / name).read_text()) / (1 << 20)

    def reads(self, device: Device) -> int:
        """Disk reads that it has done so far."""
        v1 = self.controllers.version is Version.V1
        name = "blkio.throttle.io_serviced" if v1 else "io.stat"
        return disk_reads(self.controllers.version, (self.blocks / name).read_text(), device)

    def wrapper(self, path: Path, command: Path) -> Path:
        """A script at ``path`` that runs ``command`` within the group, from its first page of memory on."""
        joins = "".join(f"echo $$ > '{each}/cgroup.procs'\n" for each in self.directories)
        path.write_text(f"#!/bin/sh\nset -e\n{joins}exec '{command}' \"$@\"\n")
        path.chmod(0o755)
        return path

    def remove(self) -> None:
        """Remove it once it has no process any more."""
        for directory in self.directories:
            remove_group(directory)


def remove_group(directory: Path, patience: float = 5.0) -> None:
    """Remove a group's directory; its last processes may take a moment to vanish."""
    deadline = time.monotonic() + patience
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def drop_cached(directory: Path) -> None:
    """Let the kernel forget what it has cached of all files below ``directory``."""
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def probe(controllers: Controllers, device: Device, directory: Path) -> tuple[float, float]:
    """Reads a second without a limit and with one of 200. Raises :class:`Refused` where it doesn't hold."""
    group = Group(controllers, f"probe-{os.getpid()}")
    target = directory / "probe.bin"
    group.make()
    try:
        with target.open("wb") as sink:
            for _ in range(PROBE_MB):
                sink.write(os.urandom(1 << 20))
            sink.flush()
            os.fsync(sink.fileno())
        free = _read_within(group, target)
        group.limit_reads(device, PROBE_LIMIT)
        before = group.reads(device)
        held = _read_within(group, target)
        counted = group.reads(device) - before
    finally:
        target.unlink(missing_ok=True)
        group.remove()
    if free < 2 * PROBE_LIMIT * PROBE_SECONDS:
        raise Refused(
            f"the disk itself does only {free / PROBE_SECONDS:.0f} reads a second: too slow to be limited to 300"
        )
    if not holds(held, PROBE_SECONDS, PROBE_LIMIT):
        raise Refused(
            f"the limit doesn't hold: {held} reads in {PROBE_SECONDS:.0f} s where {PROBE_LIMIT} a second are allowed"
        )
    if counted < held * 0.9:
        raise Refused(
            f"disk reads aren't counted here: {counted} of {held}; no figure could be given"
        )
    return free / PROBE_SECONDS, held / PROBE_SECONDS


def _read_within(group: Group, target: Path) -> int:
    """How many random blocks a process within the group reads in a while, past the kernel's cache."""
    joins = [str(each / "cgroup.procs") for each in group.directories]
    command = [sys.executable, "-m", "rig.cgroups", str(target), str(PROBE_SECONDS), *joins]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Refused(f"the probe of the disk failed: {done.stderr.strip()[-300:]}")
    return int(done.stdout)


def read_randomly(target: str, seconds: float, joins: list[str]) -> int:
    """Join the groups, then read blocks until the time is over; returns how many."""
    for each in joins:
        Path(each).write_text(str(os.getpid()))
    size = Path(target).stat().st_size // BLOCK
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, BLOCK)  # aligned, as direct reads need it
    dice, count = random.Random(1), 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            os.preadv(descriptor, [buffer], dice.randrange(size) * BLOCK)
            count += 1
    finally:
        os.close(descriptor)
    return count


if __name__ == "__main__":
    print(read_randomly(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))

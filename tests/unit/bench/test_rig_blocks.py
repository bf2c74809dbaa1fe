"""Texts of control groups and /proc."""

import pytest

from rig.blocks import (
    Device,
    Version,
    busy_ticks,
    cpu_ticks,
    disk_reads,
    holds,
    mounted_controllers,
    start_ticks,
)

V1 = """tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev 0 0\n"
SERVICED = """8:0 Read 7
8:0 Write 5
8:0 Total 12
254:0 Read 123
254:0 Write 45
Total 180
"""
STATS = (
    "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n254:0 rbytes=9 wbytes=8 rios=77 wios=6\n"
)


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        (
            V1,
            {
                "memory": (Version.V1, "/sys/fs/cgroup/memory"),
                "blkio": (Version.V1, "/sys/fs/cgroup/blkio"),
            },
        ),
        (V2, {"unified": (Version.V2, "/sys/fs/cgroup")}),
        ("proc /proc proc rw 0 0\n\nshort line\n", {}),
    ],
    ids=["v1", "v2", "none"],
)
def test_controllers(mounts: str, found: dict[str, tuple[Version, str]]) -> None:
    assert mounted_controllers(mounts) == found


@pytest.mark.parametrize(
    ("version", "text", "device", "reads"),
    [
        (Version.V1, SERVICED, Device(254, 0), 123),
        (Version.V1, SERVICED, Device(8, 0), 7),
        (Version.V1, SERVICED, Device(1, 1), 0),
        (Version.V1, "", Device(254, 0), 0),
        (Version.V2, STATS, Device(254, 0), 77),
        (Version.V2, STATS, Device(8, 0), 3),
        (Version.V2, "254:0\n", Device(254, 0), 0),
    ],
)
def test_disk_reads(version: Version, text: str, device: Device, reads: int) -> None:
    assert disk_reads(version, text, device) == reads


def test_a_process_whose_name_has_blanks_and_brackets() -> None:
    numbers = " ".join(str(number) for number in range(1, 50))
    stat = f"42 (a) b (c) S {numbers}"
    assert cpu_ticks(stat) == 11 + 12
    assert start_ticks(stat) == 19


def test_busy_time_leaves_idle_and_waiting_out() -> None:
    text = "cpu  10 1 20 1000 500 2 3 4 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert busy_ticks(text) == 10 + 1 + 20 + 2 + 3 + 4


@pytest.mark.parametrize(
    ("reads", "seconds", "limit", "held"),
    [(400, 2, 200, True), (500, 2, 200, True), (560, 2, 200, False), (20_000, 2, 200, False)],
)
def test_whether_a_throttle_holds(reads: int, seconds: float, limit: int, held: bool) -> None:
    assert holds(reads, seconds, limit) is held

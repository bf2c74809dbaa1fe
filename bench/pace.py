"""Whether background work gives way: `python bench/pace.py`.

Two one-member sets and all services on this machine. The archive's reads are throttled: its mongod has
a cache smaller than its data, reads past the kernel's cache, and may read only so many times a second
(a cgroup of its own, which needs root and cgroup v1's or v2's block controller; without it the run says
so, and proves nothing). Foreground: single documents that the archive alone holds are read through the
proxy, at a fixed rate, from the moment at which each read was due. Phases take turns, with the background
services paused and at work: the feeder replays a steady stream of inserts (and what came in while it was
paused), the warmer warms, the evictor evicts what updates brought into the fast tier.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient, WriteConcern
from pymongo.errors import PyMongoError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

NS = "bench.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}
DIRECT = ("--wiredTigerEngineConfigString", "direct_io=[data]")
GOAL = 1.2
V1 = Path("/sys/fs/cgroup/blkio")
V2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def throttled(pid: int, data: Path, iops: int) -> Iterator[bool]:
    """Limit a process's reads from the device that holds ``data``; yields whether it worked."""
    device = data.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    group: Path | None = None
    try:
        if (V1 / "blkio.throttle.read_iops_device").exists():
            group = V1 / f"thermocline-bench-{pid}"
            group.mkdir()
            (group / "blkio.throttle.read_iops_device").write_text(f"{name} {iops}")
        else:
            group = V2 / f"thermocline-bench-{pid}"
            group.mkdir()
            (group / "io.max").write_text(f"{name} riops={iops}")
        (group / "cgroup.procs").write_text(str(pid))
        worked = True
    except OSError as error:
        print(f"the archive's reads can't be throttled here ({error})")
        worked = False
    try:
        yield worked
    finally:
        if group is not None and group.exists():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(str(pid))
                group.rmdir()


@dataclass
class Samples:
    """Seconds of each read; how many failed."""

    paused: list[float] = field(default_factory=list)
    working: list[float] = field(default_factory=list)
    failed: int = 0


class Foreground:
    """The application: reads of cold documents, and inserts of new ones."""

    def __init__(self, client: AsyncMongoClient[dict[str, Any]], cold: int, options: Any) -> None:
        self.orders = client["bench"]["orders"]
        self.cold = cold
        self.options = options
        self.into: list[float] | None = None
        self.failed = 0
        self.written = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, due: float, into: list[float] | None) -> None:
        try:
            # Unevenly chosen documents of the lower part, which nobody warms or updates.
            found = await self.orders.find_one({"_id": random.randrange(self.cold)})
        except PyMongoError:
            self.failed += 1
            return
        assert found is not None
        if into is not None:
            into.append(time.monotonic() - due)

    async def _write(self) -> None:
        self.written += 1
        document = {
            "_id": f"new {self.written}",
            "t": dt.datetime.now(dt.UTC),
            "x": os.urandom(1_500),
        }
        try:
            await self.orders.insert_one(document)
        except PyMongoError:
            self.failed += 1

    async def run(self) -> None:
        began, number = time.monotonic(), 0
        every = max(1, round(self.options.reads / max(1, self.options.writes)))
        while True:
            due = began + number / self.options.reads
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._spawn(self._read(due, self.into))
            if number % every == 0:
                self._spawn(self._write())
            number += 1


def fill(archive: ReplicaSet, options: Any) -> tuple[int, int]:
    """Cold documents (ids below the first result), then those to be warmed (below the second)."""
    cold, total = options.documents * 2 // 3, options.documents
    now = dt.datetime.now(dt.UTC)
    with archive.client() as client:
        orders = client.get_database("bench", write_concern=WriteConcern(1))["orders"]
        orders.create_index("t")
        order = list(range(total))
        random.Random(1).shuffle(order)  # neighbours in age aren't neighbours on the disk
        for start in range(0, total, 2_000):
            orders.insert_many(
                [
                    {
                        "_id": n,
                        "t": now - dt.timedelta(days=200 if n < cold else 1, seconds=n),
                        "x": os.urandom(options.size),
                    }
                    for n in order[start : start + 2_000]
                ],
                ordered=False,
            )
        client.admin.command("fsync")
    return cold, total


def switch(system: Thermocline, *, work: bool) -> None:
    mode = {"mode": "Running" if work else "Paused"}
    system.manifest.change(warmer=mode, evictor=mode, feeder=mode)


def progress(system: Thermocline) -> dict[str, Any]:
    feeder = system.services["feeder"].status().get("feeder", {})
    warmer = system.services["warmer"].status().get("warmer", {}).get("namespaces", {}).get(NS, {})
    return {
        "replayed": feeder.get("appliedTotal", 0),
        "warmed": warmer.get("copied", 0),
        "evicted": system.evicted(),
        "lag": feeder.get("lagSeconds", 0.0),
        "checkpoint": (feeder.get("checkpointTime") or {"time": 0})["time"],
    }


async def worked_off(system: Thermocline) -> None:
    """Wait for what the pause made: replay hurries with a backlog, for readers wait for it.

    The lag alone doesn't tell: as long as replay has seen no event yet, it knows of none that is missing.
    """
    switched = time.time()
    for _ in range(120):
        now = await asyncio.to_thread(progress, system)
        if now["lag"] < 1 and now["checkpoint"] > switched:
            return
        await asyncio.sleep(0.5)
    print("what the pause left was not worked off within a minute")


async def measure(system: Thermocline, cold: int, options: Any) -> Samples:
    samples = Samples()
    async with system.async_client() as client:
        foreground = Foreground(client, cold, options)
        # Documents for the evictor: what an application changed long after it was written.
        for n in range(cold // 2, cold // 2 + options.evictable):
            await foreground.orders.update_one({"_id": n}, {"$set": {"y": 1}})
        foreground.cold = cold // 2
        switch(system, work=False)
        task = asyncio.create_task(foreground.run())
        try:
            await asyncio.sleep(5)
            for turn in range(2 * options.turns):
                work = bool(turn % 2)
                switch(system, work=work)
                before = await asyncio.to_thread(progress, system)
                foreground.into = None
                await asyncio.sleep(options.settle)
                if work:
                    await worked_off(system)
                taken: list[float] = []
                foreground.into = taken
                await asyncio.sleep(options.seconds)
                foreground.into = None
                (samples.working if work else samples.paused).extend(taken)
                after = await asyncio.to_thread(progress, system)
                done = {
                    name: after[name] - before[name] for name in ("replayed", "warmed", "evicted")
                }
                name = "at work" if work else "paused "
                show(f"turn {turn}, {name} {done}, lag {after['lag']:.1f} s", taken)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        samples.failed = foreground.failed
    return samples


def show(name: str, seconds: list[float]) -> float:
    if len(seconds) < 100:
        print(f"{name}: only {len(seconds)} reads were answered, too few to say anything")
        return float("inf")
    cuts = statistics.quantiles(seconds, n=100)
    print(
        f"{name}: {len(seconds)} reads, p50 {cuts[49] * 1e3:.1f} ms, p90 {cuts[89] * 1e3:.1f} ms, "
        f"p99 {cuts[98] * 1e3:.1f} ms"
    )
    return cuts[98]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=2_000)
    parser.add_argument("--iops", type=int, default=400)
    parser.add_argument("--reads", type=float, default=40)
    parser.add_argument("--writes", type=float, default=10)
    parser.add_argument("--evictable", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--settle",
        type=float,
        default=6,
        help="seconds before each turn counts, at least; replay's backlog is worked off as well",
    )
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        ReplicaSet("fast", cache_gb=0.5) as fast,
        ReplicaSet("archive", cache_gb=0.25, extra=DIRECT) as archive,
    ):
        cold, _ = fill(archive, options)
        member = archive.members[0]
        member.restart()  # an empty cache
        spec = {"warmer": {"mode": "Paused"}, "proxy": {"lease": "5s"}}
        system = Thermocline(
            fast,
            archive,
            [POLICY],
            pace="Auto",
            spec=spec,
            environment=HASTE,
            directory=Path(directory),
        )
        system.start()
        try:
            system.wait_state("Active")
            with throttled(member.pid, member.data, options.iops) as worked:
                samples = asyncio.run(measure(system, cold, options))
        finally:
            system.stop()
    quiet, busy = show("paused ", samples.paused), show("at work", samples.working)
    print(
        f"p99 at work / paused: {busy / quiet:.2f} (goal: at most {GOAL}); failed: {samples.failed}"
    )
    if not worked:
        print("the archive's reads weren't throttled: this run doesn't count")
    return 0 if worked and busy <= GOAL * quiet else 1


if __name__ == "__main__":
    sys.exit(main())

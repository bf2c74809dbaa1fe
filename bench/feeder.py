"""How fast the feeder replays, and how far it lags: `python bench/feeder.py`.

Starts two one-member sets and a feeder, all on this machine.

Replay: distinct documents of 1 KB are updated, in random order, while the feeder is stopped; then it
goes on, and the time until the archive has them all is taken. Floor: the same number of updates
written straight to the same archive, into a collection of its own, in transactions as large as the
feeder's and with nothing to find out: once as the same whole documents, once as the smallest update
that there is (``$set`` of one number). No feeder can be faster than its archive.

Lag: a generator updates 2,000 documents a second in batches at fixed times, whatever the answers
take (open loop), with w: majority. A write's lag is the time from its acknowledgement until a reader
of the archive's majority sees a checkpoint at or past the write's time.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bson import encode
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, UpdateOne, WriteConcern
from pymongo.read_concern import ReadConcern

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Manifest, ServiceProcess

NS = "bench.orders"
FLOOR = "floor"
BATCH = 6_000
"""As the feeder's."""
TICK = 0.01
"""Seconds between the generator's batches."""

Client = AsyncMongoClient[dict[str, Any]]


def document(number: int) -> dict[str, Any]:
    return {"_id": number, "t": number, "n": 0, "text": os.urandom(480).hex()}


def processor_seconds(pid: int) -> float:
    """User and system time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Meter:
    """Time and processor time from its making on, a document."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._before = {name: processor_seconds(pid) for name, pid in pids.items()}
        self._began = time.monotonic()

    def read(self, count: int) -> tuple[float, dict[str, float]]:
        """Documents a second; microseconds of each process a document."""
        took = time.monotonic() - self._began
        used = {
            name: (processor_seconds(pid) - self._before[name]) / count * 1e6
            for name, pid in self._pids.items()
        }
        return count / took, used


@dataclass(frozen=True)
class System:
    """What is measured."""

    fast: Client
    archive: Client
    feeder: ServiceProcess
    pids: Mapping[str, int]
    count: int


def text(used: Mapping[str, float]) -> str:
    return " / ".join(f"{name} {value:.0f}" for name, value in used.items())


def busy() -> str:
    """Whether the machine does something else, too: what is measured keeps two or three tasks running."""
    return f"load average {os.getloadavg()[0]:.1f}"


async def wait_active(client: Client) -> None:
    while True:
        found = await client["thermocline"]["coverage"].find_one({"_id": NS})
        if found and found["state"] == "Active":
            return
        await asyncio.sleep(0.1)


async def checkpoint_reaches(client: Client, target: Timestamp) -> None:
    while True:
        found = await client["thermocline"]["checkpoint"].find_one({"_id": "feeder"})
        if found and found["time"] >= target:
            return
        await asyncio.sleep(0.01)


async def write_marker(fast: Client) -> Timestamp:
    reply = await fast["thermocline"].command(
        {
            "update": "markers",
            "updates": [{"q": {"_id": "barrier:bench"}, "u": {"$inc": {"n": 1}}, "upsert": True}],
            "writeConcern": {"w": "majority"},
        }
    )
    time: Timestamp = reply["operationTime"]
    return time


async def load(system: System) -> None:
    for start in range(0, system.count, 5000):
        made = [document(i) for i in range(start, min(system.count, start + 5000))]
        await system.fast["bench"]["orders"].insert_many(made)
        await system.archive["bench"][FLOOR].insert_many(made)
    await checkpoint_reaches(system.archive, await write_marker(system.fast))


def shuffled(count: int) -> list[int]:
    order = list(range(count))
    random.shuffle(order)
    return order


async def replay(system: System, number: int) -> float:
    """Documents a second."""
    orders = system.fast["bench"]["orders"]
    order = shuffled(system.count)
    system.feeder.process.pause()
    for start in range(0, system.count, 2000):
        await orders.bulk_write(
            [UpdateOne({"_id": i}, {"$set": {"n": number}}) for i in order[start : start + 2000]],
            ordered=False,
        )
    target = await write_marker(system.fast)
    meter = Meter(system.pids)
    system.feeder.process.resume()
    await checkpoint_reaches(system.archive, target)
    rate, used = meter.read(system.count)
    done = await system.archive["bench"]["orders"].count_documents({"n": number})
    assert done == system.count, (done, system.count)
    print(f"replay {number}: {rate:,.0f}/s; us a document: {text(used)}; {busy()}", flush=True)
    return rate


async def floor(system: System, number: int, whole: bool) -> float:
    """Documents a second, straight to the archive, in the feeder's transactions and order."""
    database = system.archive["bench"]
    order = shuffled(system.count)
    transactions = []
    for start in range(0, system.count, BATCH):
        ids = sorted(order[start : start + BATCH])
        updates = []
        for _id in ids:
            change: dict[str, Any] = {"$set": {"n": number}}
            if whole:
                change = document(_id) | {"n": number}
            updates.append(RawBSONDocument(encode({"q": {"_id": _id}, "u": change})))
        transactions.append(updates)
    meter = Meter({"archive": system.pids["archive"]})
    snapshot, majority = ReadConcern("snapshot"), WriteConcern("majority")
    async with system.archive.start_session() as session:
        for updates in transactions:
            async with await session.start_transaction(snapshot, majority):
                command = {"update": FLOOR, "updates": updates}
                reply = await database.command(command, session=session)
                assert reply["n"] == len(updates), reply
    rate, used = meter.read(system.count)
    name = "whole documents" if whole else "smallest updates"
    print(
        f"floor {number}, {name}: {rate:,.0f}/s; us a document: {text(used)}; {busy()}", flush=True
    )
    return rate


async def lags(system: System, rate: int, seconds: float) -> tuple[list[float], float]:
    """The lag of each batch of writes in seconds, and how many writes a second were acknowledged."""
    acknowledged: deque[tuple[Timestamp, float]] = deque()
    found: list[float] = []
    orders = system.fast["bench"]
    each = int(rate * TICK)
    ready = asyncio.Event()

    async def write(turn: int) -> None:
        ids = [(turn * each + i) % system.count for i in range(each)]
        updates = [{"q": {"_id": i}, "u": {"$set": {"n": time.time_ns()}}} for i in ids]
        reply = await orders.command(
            {"update": "orders", "updates": updates, "writeConcern": {"w": "majority"}}
        )
        assert reply["n"] == each, reply
        acknowledged.append((reply["operationTime"], time.monotonic()))

    async def watch() -> None:
        pipeline = [{"$project": {"updateDescription.updatedFields.time": 1}}]
        async with await system.archive["thermocline"]["checkpoint"].watch(pipeline) as stream:
            ready.set()
            async for event in stream:
                seen = time.monotonic()
                reached = event["updateDescription"]["updatedFields"].get("time")
                if reached is None:
                    continue
                # Answers may come out of order, by a little.
                late = [entry for entry in acknowledged if entry[0] <= reached]
                for entry in late:
                    acknowledged.remove(entry)
                    found.append(seen - entry[1])

    watcher = asyncio.create_task(watch())
    await ready.wait()
    meter = Meter(system.pids)
    began = time.monotonic()
    turns = int(seconds / TICK)
    running: set[asyncio.Task[None]] = set()
    for turn in range(turns):
        await asyncio.sleep(max(0.0, began + turn * TICK - time.monotonic()))
        running.add(asyncio.create_task(write(turn)))
    await asyncio.gather(*running)
    took = time.monotonic() - began
    _, used = meter.read(turns * each)
    await checkpoint_reaches(system.archive, await write_marker(system.fast))
    await asyncio.sleep(0.5)
    watcher.cancel()
    print(f"lag: us a write: {text(used)}", flush=True)
    return found, turns * each / took


def percentiles(values: Sequence[float]) -> str:
    cuts = statistics.quantiles(values, n=1000)
    return (
        f"p50 {cuts[499] * 1000:.1f} ms, p99 {cuts[989] * 1000:.1f} ms (goal 100: {cuts[989] * 10:.2f}), "
        f"p99.9 {cuts[998] * 1000:.1f} ms, longest {max(values) * 1000:.0f} ms"
    )


async def measure(system: System, rounds: int, rate: int, seconds: float) -> None:
    await load(system)
    speeds, whole, least = [], [], []
    for number in range(1, rounds + 1):
        speeds.append(await replay(system, number))
        whole.append(await floor(system, number, True))
        least.append(await floor(system, number, False))
    speed = statistics.median(speeds)
    print(
        f"replay of distinct 1 KB updates, median of {rounds}: {speed:,.0f}/s (goal 20,000: {speed / 20_000:.2f}); "
        f"of the floor: whole documents {speed / statistics.median(whole):.2f}, "
        f"smallest updates {speed / statistics.median(least):.2f}"
    )
    found, reached = await lags(system, rate, seconds)
    print(
        f"lag at {reached:,.0f} writes/s, w: majority, batches of {int(rate * TICK)} each {TICK * 1000:.0f} ms"
    )
    print(f"  {percentiles(found)} ({len(found)} batches)")


async def run(arguments: argparse.Namespace) -> None:
    cache = arguments.cache_gb
    with (
        tempfile.TemporaryDirectory() as directory,
        ReplicaSet("fast", cache_gb=cache) as f,
        ReplicaSet("archive", cache_gb=cache) as a,
    ):
        spec: dict[str, Any] = {
            "archive": {"uri": a.uri},
            "fastTier": {"uri": f.uri},
            "collections": [{"namespace": NS, "ageField": "t", "maxAge": "30d"}],
        }
        if arguments.pace:
            spec["feeder"] = {"pace": arguments.pace}
        manifest = Manifest(Path(directory) / "manifest.yaml", spec)
        feeder = ServiceProcess("feeder", manifest.path, Path(directory))
        async with f.async_client() as fast, a.async_client() as archive:
            for name in ("orders", FLOOR):
                await archive["bench"][name].create_index("t")
            feeder.start()
            try:
                await asyncio.to_thread(wait_until, "feeder", feeder.ready, 60)
                await wait_active(fast)
                pids = {
                    "feeder": feeder.process.pid,
                    "fast": f.members[0].pid,
                    "archive": a.members[0].pid,
                }
                system = System(fast, archive, feeder, pids, arguments.documents)
                await measure(system, arguments.rounds, arguments.rate, arguments.seconds)
            finally:
                feeder.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cache-gb",
        type=float,
        default=4,
        help="of each mongod (its own default: half the memory)",
    )
    parser.add_argument(
        "--pace",
        type=int,
        help="spec.feeder.pace, documents a second; without it the feeder rests for the archive's readers (Auto)",
    )
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    asyncio.run(run(arguments))


if __name__ == "__main__":
    main()

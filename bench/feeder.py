"""How fast the feeder replays, and how far it lags: `python bench/feeder.py`.

Starts two one-member sets and a feeder, all on this machine. Replay: distinct documents of 1 KB are
updated while the feeder is stopped, then it is started, and the time until the archive has them is
taken. Lag: one document is updated 2,000 times a second by parallel writers with w: majority, and a
reader of the archive's oplog takes the time between the acknowledged write and its arrival.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, UpdateOne

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Manifest, ServiceProcess

NS = "bench.orders"


def document(number: int) -> dict[str, Any]:
    return {"_id": number, "t": number, "n": 0, "text": os.urandom(480).hex()}


def processor_seconds(pid: int) -> float:
    """User and system time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def wait_active(client: AsyncMongoClient[Any]) -> None:
    while True:
        found = await client["thermocline"]["coverage"].find_one({"_id": NS})
        if found and found["state"] == "Active":
            return
        await asyncio.sleep(0.1)


async def checkpoint_reaches(client: AsyncMongoClient[Any], target: Timestamp) -> None:
    while True:
        found = await client["thermocline"]["checkpoint"].find_one({"_id": "feeder"})
        if found and found["time"] >= target:
            return
        await asyncio.sleep(0.01)


async def replay_rate(
    fast: AsyncMongoClient[Any],
    archive: AsyncMongoClient[Any],
    feeder: ServiceProcess,
    tiers: dict[str, ReplicaSet],
    count: int,
) -> float:
    orders = fast["bench"]["orders"]
    for start in range(0, count, 5000):
        await orders.insert_many([document(i) for i in range(start, min(count, start + 5000))])
    await marker(fast, archive)
    feeder.process.pause()
    order = list(range(count))
    random.shuffle(order)
    for start in range(0, count, 2000):
        await orders.bulk_write(
            [UpdateOne({"_id": i}, {"$inc": {"n": 1}}) for i in order[start : start + 2000]],
            ordered=False,
        )
    reply = await write_marker(fast)
    pids = {"feeder": feeder.process.pid} | {
        name: tier.members[0].pid for name, tier in tiers.items()
    }
    before = {name: processor_seconds(pid) for name, pid in pids.items()}
    feeder.process.resume()
    began = time.monotonic()
    await checkpoint_reaches(archive, reply)
    took = time.monotonic() - began
    for name, pid in pids.items():
        used = (processor_seconds(pid) - before[name]) / count
        print(f"processor time a document, {name}: {used * 1e6:.1f} us")
    done = await archive["bench"]["orders"].count_documents({"n": 1})
    assert done == count, (done, count)
    return count / took


async def write_marker(fast: AsyncMongoClient[Any]) -> Timestamp:
    reply = await fast["thermocline"].command(
        {
            "update": "markers",
            "updates": [{"q": {"_id": "barrier:bench"}, "u": {"$inc": {"n": 1}}, "upsert": True}],
            "writeConcern": {"w": "majority"},
        }
    )
    time: Timestamp = reply["operationTime"]
    return time


async def marker(fast: AsyncMongoClient[Any], archive: AsyncMongoClient[Any]) -> None:
    await checkpoint_reaches(archive, await write_marker(fast))


async def lags(
    fast: AsyncMongoClient[Any],
    archive: AsyncMongoClient[Any],
    rate: int,
    seconds: float,
    count: int,
) -> tuple[list[float], float]:
    written: dict[tuple[int, int], float] = {}
    arrived: list[float] = []
    stop = asyncio.Event()
    orders = fast["bench"]["orders"]
    writers = 24

    async def write(number: int) -> int:
        done = 0
        begin = time.monotonic()
        while not stop.is_set():
            # Documents of its own, so that an arrival names exactly one write.
            _id = number + writers * (done % (count // writers))
            n = done // (count // writers) + 10
            await orders.update_one({"_id": _id}, {"$set": {"n": n}})
            written[(_id, n)] = time.monotonic()
            done += 1
            due = begin + done * writers / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return done

    async def watch() -> None:
        pipeline = [{"$project": {"documentKey": 1, "fullDocument.n": 1}}]
        async with await archive["bench"]["orders"].watch(pipeline) as stream:
            ready.set()
            async for event in stream:
                key = (event["documentKey"]["_id"], event.get("fullDocument", {}).get("n", -1))
                at = written.pop(key, None)
                if at is not None:
                    arrived.append(time.monotonic() - at)

    ready = asyncio.Event()
    watcher = asyncio.create_task(watch())
    await ready.wait()
    tasks = [asyncio.create_task(write(i)) for i in range(writers)]
    await asyncio.sleep(seconds)
    stop.set()
    done = sum(await asyncio.gather(*tasks))
    await marker(fast, archive)
    await asyncio.sleep(0.5)
    watcher.cancel()
    return arrived, done / seconds


async def run(count: int, rate: int, seconds: float) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        ReplicaSet("fast", cache_gb=0.5) as f,
        ReplicaSet("archive", cache_gb=0.5) as a,
    ):
        spec = {
            "archive": {"uri": a.uri},
            "fastTier": {"uri": f.uri},
            "collections": [{"namespace": NS, "ageField": "t", "maxAge": "30d"}],
        }
        manifest = Manifest(Path(directory) / "manifest.yaml", spec)
        feeder = ServiceProcess("feeder", manifest.path, Path(directory))
        async with f.async_client() as fast, a.async_client() as archive:
            await archive["bench"]["orders"].create_index("t")
            feeder.start()
            try:
                await asyncio.to_thread(wait_until, "feeder", feeder.ready, 60)
                await wait_active(fast)
                speed = await replay_rate(fast, archive, feeder, {"fast": f, "archive": a}, count)
                print(
                    f"replay of distinct 1 KB updates: {speed:,.0f}/s (goal 20,000: {speed / 20_000:.2f})"
                )
                found, reached = await lags(fast, archive, rate, seconds, count)
                cuts = statistics.quantiles(found, n=1000)
                print(
                    f"lag at {reached:,.0f} writes/s (w: majority, {len(found)} seen): "
                    f"p50 {cuts[499] * 1000:.1f} ms, p99 {cuts[989] * 1000:.1f} ms (goal 100: {cuts[989] * 10:.2f}), "
                    f"p99.9 {cuts[998] * 1000:.1f} ms"
                )
            finally:
                feeder.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.documents, arguments.rate, arguments.seconds))


if __name__ == "__main__":
    main()

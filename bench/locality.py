"""What reading from local members saves: three members in two regions, and clients in the smaller one.

The primary and one secondary are a round trip of 150 ms away (a relay in user space holds every byte
back), another secondary is 1 ms away. Through one proxy, with an unchanged driver, reads by primary and
reads by ``secondaryPreferred`` with tag sets take turns; only figures of one run are compared. Ends with
1 where the p99 of local reads isn't 15 times lower.
"""

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from pymongo import AsyncMongoClient, WriteConcern

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.chaos.links import Links  # noqa: E402
from support.mongod import ReplicaSet  # noqa: E402
from support.processes import wait_until  # noqa: E402
from support.services import Thermocline  # noqa: E402
from thermocline_common import names  # noqa: E402

FAR_SECONDS, NEAR_SECONDS = 0.075, 0.0005
"""One way."""
PACE_SECONDS = 0.2
"""Each task begins a read so often."""
LEAST_RATIO = 15.0
DOCUMENTS = 1_000
REGIONS = ("usw2", "usw2", "use1")
OPTIONS = (
    {"tags": {"dc": "usw2"}, "priority": 2},
    {"tags": {"dc": "usw2"}, "priority": 1},
    {"tags": {"dc": "use1"}, "priority": 0},
)
LOCAL = "?readPreference=secondaryPreferred&readPreferenceTags=dc:use1&readPreferenceTags="


class TwoRegions(ReplicaSet):
    """Everybody reaches the members of ``usw2`` over 150 ms, each other too, and that of ``use1`` over 1 ms."""

    def __init__(self, links: Links) -> None:
        super().__init__("regions", members=3, member_options=OPTIONS, election_timeout_ms=10_000)
        self.links = links

    def _initiate(self) -> None:
        for number, (member, region) in enumerate(zip(self.members, REGIONS, strict=True)):
            seconds = NEAR_SECONDS if region == "use1" else FAR_SECONDS
            member.advertised = self.links.listen(f"{region}-{number}", member.port, seconds)
        super()._initiate()


@dataclass(slots=True)
class Kind:
    """One way to read. ``seconds``: of each read."""

    name: str
    options: str
    seconds: list[float] = field(default_factory=list)

    def milliseconds(self, share: int) -> float:
        """A percentile."""
        return statistics.quantiles(self.seconds, n=100)[share - 1] * 1_000


async def read(uri: str, kind: Kind, reads: int, tasks: int) -> None:
    """``reads`` finds by ``_id``, by so many tasks at one pace: both kinds get the same load."""
    async with AsyncMongoClient[dict[str, Any]](uri + kind.options, maxPoolSize=tasks) as client:
        collection = client.bench.c
        # Connections are made before the time counts: log-in and hello cross regions once.
        await asyncio.gather(*(collection.find_one({"_id": n}) for n in range(tasks)))

        async def work(first: int) -> None:
            due = time.perf_counter() + first * PACE_SECONDS / tasks
            for number in range(first, reads, tasks):
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                due += PACE_SECONDS
                started = time.perf_counter()
                found = await collection.find_one({"_id": number % DOCUMENTS})
                kind.seconds.append(time.perf_counter() - started)
                assert found is not None

        await asyncio.gather(*map(work, range(tasks)))


async def measure(
    arguments: argparse.Namespace, archive: ReplicaSet, thermocline: Thermocline
) -> bool:
    """One run; whether the ratio is large enough."""
    kinds = [Kind("primary", ""), Kind("secondaryPreferred, tags dc:use1", LOCAL)]
    for _ in range(arguments.rounds):
        for kind in kinds:
            await read(thermocline.uri(), kind, arguments.reads, arguments.tasks)
    regions = {
        member.address: f"{region}-{number}"
        for number, (member, region) in enumerate(zip(archive.members, REGIONS, strict=True))
    }
    seen = thermocline.services["proxy"].status()["proxy"]["reads"]
    far, near = kinds
    ratio = far.milliseconds(99) / near.milliseconds(99)
    print("| reads | p50 | p95 | p99 | answered by |\n| --- | --- | --- | --- | --- |")
    for kind, mode in ((far, "primary"), (near, "secondaryPreferred")):
        by = ", ".join(
            f"{regions.get(one['member'], one['member'])} ({one['reason']})"
            for one in seen
            if one["tier"] == "archive" and one["preference"] == mode
        )
        figures = " | ".join(f"{kind.milliseconds(share):.1f} ms" for share in (50, 95, 99))
        print(f"| {kind.name} | {figures} | {by} |")
    print(
        f"p99 {ratio:.0f} times lower ({len(near.seconds)} reads each, {arguments.tasks / PACE_SECONDS:.0f} a second)"
    )
    return ratio >= LEAST_RATIO


def published(archive: ReplicaSet) -> bool:
    """Whether the feeder has published a lease."""
    with archive.client() as client:
        found = client[names.DATABASE][names.CHECKPOINT].find_one({"_id": names.CHECKPOINT_ID})
        return bool(found and found.get("lease"))


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=400, help="of each kind a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=8)
    arguments = parser.parse_args()
    with Links() as links, TwoRegions(links) as archive, ReplicaSet("fast") as fast:
        with archive.client() as client:
            collection = client.bench.get_collection("c", write_concern=WriteConcern(3))
            collection.insert_many([{"_id": n, "text": "x" * 1_000} for n in range(DOCUMENTS)])
        thermocline = Thermocline(fast, archive, [], lease="5s")
        try:
            # Nothing is tiered here. Without a feeder nobody publishes a lease, and proxies make do with one
            # second, which is no more than renewing it takes over this distance.
            thermocline.start(only=("proxy", "feeder"))
            wait_until("a published lease", lambda: published(archive))
            proxy = thermocline.services["proxy"]
            wait_until(
                "three members",
                lambda: len(proxy.status()["proxy"]["members"]["archive"]["known"]) == 3,
            )
            return int(not uvloop.run(measure(arguments, archive, thermocline)))
        finally:
            thermocline.stop()


if __name__ == "__main__":
    sys.exit(main())

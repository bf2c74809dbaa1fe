"""What idle client connections cost the proxy, and whether those that work get on beside them.

Opens 10,000 connections, of which 200 work at the same time and the others keep a cursor open. Prints
the memory an idle connection, the most connections to the member at any moment, how evenly the 200 got
on, and what is left after all of them have vanished.
"""

import argparse
import asyncio
import ssl
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.crowd import Crowd, resident, take_descriptors  # noqa: E402
from support.mongod import ReplicaSet  # noqa: E402
from support.processes import wait_until  # noqa: E402
from support.services import ServiceProcess, Thermocline  # noqa: E402

MOST_KIB = 40.0
VANISHED_SECONDS = 6
HELLO: dict[str, Any] = {
    "hello": 1,
    "client": {"driver": {"name": "bench", "version": "1"}, "os": {"type": "Linux"}},
    "$db": "admin",
}
FIND: dict[str, Any] = {"find": "c", "filter": {"_id": 17}, "limit": 1, "$db": "bench"}
LIST: dict[str, Any] = {"find": "c", "batchSize": 2, "$db": "bench"}
COUNT: dict[str, Any] = {"count": "c", "query": {"n": {"$gte": 500}}, "$db": "bench"}


def certificate(directory: Path) -> ssl.SSLContext:
    """Files for the proxy's listener below ``directory``, and what a client needs."""
    proxy = directory / "proxy"
    proxy.mkdir()
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
        "-keyout", str(proxy / "tls.key"), "-out", str(proxy / "tls.crt"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def upstream(proxy: ServiceProcess) -> int:
    """The applications' connections to the busiest member, as the proxy says."""
    return max(proxy.status()["proxy"]["upstreamConnections"].values(), default=0)


def cursors(archive: ReplicaSet) -> int:
    """Cursors that are open at the archive."""
    with archive.client() as direct:
        return int(direct.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"])


async def measure(
    arguments: argparse.Namespace, thermocline: Thermocline, tls: ssl.SSLContext | None
) -> bool:
    """One run; whether every figure kept its limit."""
    proxy = thermocline.services["proxy"]
    pid = proxy.process.pid
    most = thermocline.manifest.spec["proxy"]["maxUpstreamConnections"]
    crowd = Crowd(thermocline.port, tls)
    await crowd.grow(arguments.active, [HELLO, LIST, FIND])
    await crowd.work(arguments.active, 2.0, [FIND, COUNT])
    before = resident(pid)
    await crowd.grow(arguments.connections, [HELLO, LIST])
    await asyncio.sleep(2.0)
    kib = (resident(pid) - before) / 1024 / (arguments.connections - arguments.active)
    seen = [0]

    async def watch() -> None:
        while True:
            seen.append(await asyncio.to_thread(upstream, proxy))
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    done = await crowd.work(arguments.active, arguments.seconds, [FIND, LIST, COUNT])
    watching.cancel()
    evenness = min(done) / statistics.median(done)
    opened = cursors(thermocline.archive)
    await crowd.leave()
    wait_until(
        "what vanished clients left is gone", lambda: cursors(thermocline.archive) < 5, 120, 1
    )
    print(f"connections                       {arguments.connections:>10,}")
    print(f"memory an idle connection, KiB    {kib:>10.1f}   (at most {MOST_KIB:.0f})")
    print(f"connections to the member, most   {max(seen):>10}   (maximum {most})")
    print(f"operations a second               {sum(done) / arguments.seconds:>10,.0f}")
    print(f"fewest of one / median            {evenness:>10.2f}")
    print(f"slowest operation, s              {crowd.slowest:>10.2f}")
    print(
        f"cursors open meanwhile            {opened:>10,}   (below 5 when the clients had vanished)"
    )
    return kib <= MOST_KIB and max(seen) <= most and min(done) > 0


def main() -> int:
    """0: every figure keeps its limit; 1: one doesn't."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--active", type=int, default=200)
    parser.add_argument("--most", type=int, default=50, help="maxUpstreamConnections")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tls", action="store_true", help="TLS on the proxy's port")
    arguments = parser.parse_args()
    if take_descriptors() < arguments.connections + 500:
        parser.error("the limit of open files is too low for so many connections")
    with (
        tempfile.TemporaryDirectory() as scratch,
        ReplicaSet("fast") as fast,
        ReplicaSet("archive") as archive,
    ):
        with archive.client() as direct:
            direct.bench.c.insert_many(
                [{"_id": n, "n": n, "text": "x" * 100} for n in range(1_000)]
            )
        thermocline = Thermocline(
            fast,
            archive,
            [],
            mode="Passthrough",
            spec={"proxy": {"lease": "5s", "maxUpstreamConnections": arguments.most}},
            environment={"THERMOCLINE_TEST_VANISHED_SECONDS": str(VANISHED_SECONDS)},
        )
        tls = None
        if arguments.tls:
            directory = Path(scratch)
            tls = certificate(directory)
            thermocline.services["proxy"] = ServiceProcess(
                "proxy",
                thermocline.manifest.path,
                thermocline.directory,
                credentials=directory,
                listen=thermocline.port,
                environment=thermocline.environment,
            )
        thermocline.start(only=("proxy",))
        try:
            return 0 if asyncio.run(measure(arguments, thermocline, tls)) else 1
        finally:
            thermocline.stop()


if __name__ == "__main__":
    sys.exit(main())

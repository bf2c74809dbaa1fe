"""The proxy against HAProxy (TCP mode) in front of the same mongod: find by ``_id``, 1 KB documents.

Prints CPU time an operation, throughput and latency of both, and the ratios of this one run. The two
take turns, so that whatever else the machine does hits both alike. ``--login``: every connection logs in
(SCRAM-SHA-256, other keyfiles on the two tiers). ``--zlib``: every connection compresses; HAProxy passes
that on, the proxy has to understand it, so the limits don't count then.
"""

import argparse
import contextlib
import os
import random
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bson
from bson.binary import Binary

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support import accounts  # noqa: E402
from support.fixtures import ARCHIVE_KEY, FAST_KEY  # noqa: E402
from support.mongod import ReplicaSet  # noqa: E402
from support.processes import free_port  # noqa: E402
from support.scram import Scram, log_in  # noqa: E402

DOCUMENTS = 20_000
MOST_CPU_RATIO = 1.5
LEAST_THROUGHPUT_RATIO = 0.9
MOST_ADDED_LATENCY_US = 60.0
TICK = os.sysconf("SC_CLK_TCK")
HEADER = struct.Struct("<iiii")
COMPRESSED = struct.Struct("<iiiiiib")

HAPROXY_CONFIG = """
global
    maxconn 4000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen mongod
    bind 127.0.0.1:{port}
    option tcp-check
    server m0 {address}
"""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Connection:
    """One wire-level client: a request is a template with the id patched in."""

    login = False
    compressed = False

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        offered = {"compression": ["zlib"]} if self.compressed else {}
        hello = self.ask({"hello": 1, **offered, "$db": "admin"})
        if self.login:
            user = accounts.APPLICATION
            assert log_in(self, Scram(user.user, user.password))[-1]["done"]
        command: dict[str, Any] = {
            "find": "bench",
            "filter": {"_id": 0x7B7B7B7B},
            "limit": 1,
            "singleBatch": True,
            "lsid": {"id": Binary(os.urandom(16), 4)},
            "$clusterTime": hello["$clusterTime"],
            "$db": "bench",
        }
        frame = self.frame(command)
        marker = struct.pack("<i", 0x7B7B7B7B)
        at = frame.index(marker)
        self.before, self.after = frame[:at], frame[at + 4 :]
        self.reply_size = 0
        self.received = 0

    @staticmethod
    def frame(command: dict[str, Any]) -> bytes:
        """An OP_MSG."""
        body = bson.encode(command)
        return HEADER.pack(21 + len(body), 7, 0, 2013) + bytes(5) + body

    def read(self) -> bytes:
        """A whole reply, blocking."""
        data = b""
        while len(data) < 4 or len(data) < struct.unpack_from("<i", data)[0]:
            part = self.socket.recv(65_536)
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return data

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command, decoded."""
        self.socket.sendall(self.frame(command))
        reply: dict[str, Any] = bson.decode(self.read()[21:])
        return reply

    def send(self, doc_id: int) -> None:
        """Ask for a document."""
        frame = self.before + struct.pack("<i", doc_id) + self.after
        if self.compressed:
            packed = zlib.compress(frame[16:])
            frame = COMPRESSED.pack(25 + len(packed), 7, 0, 2012, 2013, len(frame) - 16, 2) + packed
        self.socket.send(frame)

    def receives(self) -> bool:
        """Take what has come; whether the reply is whole."""
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError("the server closed the connection")
        if not self.received:
            self.reply_size = int(struct.unpack_from("<i", data)[0])
        self.received += len(data)
        if self.received < self.reply_size:
            return False
        self.received = 0
        return True

    def check(self) -> None:
        """Ask once and see that the answer is right."""
        self.send(17)
        raw = self.read()
        assert (struct.unpack_from("<i", raw, 12)[0] == 2012) is self.compressed
        reply = bson.decode(zlib.decompress(raw[25:])[5:] if self.compressed else raw[21:])
        assert reply["ok"] == 1, reply
        assert reply["cursor"]["firstBatch"][0]["_id"] == 17, reply


@dataclass
class Side:
    """One of the two contestants and what was measured of it."""

    name: str
    port: int
    pid: int
    cpu: list[float] = field(default_factory=list)
    throughput: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)


def run_many(side: Side, connections: int, seconds: float) -> None:
    """A closed loop on many connections: throughput, and CPU time an operation."""
    clients = [Connection(side.port) for _ in range(connections)]
    poll = select.epoll()
    by_fd = {}
    for client in clients:
        client.check()
        client.socket.setblocking(False)
        by_fd[client.socket.fileno()] = client
        poll.register(client.socket.fileno(), select.EPOLLIN)
    ids = [random.randrange(DOCUMENTS) for _ in range(65_536)]
    at = 0
    for client in clients:
        client.send(ids[at])
        at += 1
    done = 0
    cpu = cpu_seconds(side.pid)
    start = time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        for fd, _ in poll.poll(1.0):
            client = by_fd[fd]
            if client.receives():
                done += 1
                at = (at + 1) & 0xFFFF
                client.send(ids[at])
    elapsed = time.perf_counter() - start
    side.cpu.append((cpu_seconds(side.pid) - cpu) / done * 1e6)
    side.throughput.append(done / elapsed)
    for client in clients:
        client.socket.close()


def run_one(side: Side, seconds: float) -> None:
    """One connection, one operation after the other: latency."""
    client = Connection(side.port)
    client.check()
    end = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        client.send(random.randrange(DOCUMENTS))
        while not client.receives():
            pass
        now = time.perf_counter()
        side.latency.append((now - start) * 1e6)
        if now > end:
            break
    client.socket.close()


@contextlib.contextmanager
def process(command: list[str], log: Path, port: int) -> Iterator[int]:
    """A child process that listens on ``port``; its id."""
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
                break
            if child.poll() is not None:
                raise SystemExit(f"{command[0]} ended:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield child.pid
    finally:
        child.terminate()
        child.wait(20)


def load(replica_set: ReplicaSet) -> None:
    """The documents."""
    with replica_set.client() as client:
        client.bench.bench.insert_many(
            [{"_id": number, "payload": "x" * 980} for number in range(DOCUMENTS)]
        )


def users(fast: ReplicaSet, archive: ReplicaSet, folder: Path) -> None:
    """The services' users, their credentials as files, and an application's user."""
    accounts.create_service_users(fast, archive, ["bench"])
    accounts.create_application_user(
        fast, archive, accounts.APPLICATION, [{"role": "readWrite", "db": "bench"}]
    )
    accounts.write_credentials(folder / "credentials")


def secret(name: str, login: bool) -> str:
    """The reference that makes services log in to a tier."""
    return f", credentialsSecretRef: {{name: {name}}}" if login else ""


def median(values: list[float]) -> float:
    """Of several rounds."""
    return statistics.median(values)


def main(argv: list[str] | None = None) -> int:
    """Run, print, and end with 1 where a figure is beyond its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round (4)")
    parser.add_argument("--rounds", type=int, default=4, help="of each side (4)")
    parser.add_argument("--connections", type=int, default=64, help="(64)")
    parser.add_argument("--login", action="store_true")
    parser.add_argument("--zlib", action="store_true")
    arguments = parser.parse_args(argv)
    Connection.login, Connection.compressed = arguments.login, arguments.zlib
    haproxy = shutil.which("haproxy") or "/usr/sbin/haproxy"
    if not Path(haproxy).exists():
        print("HAProxy is missing: apt-get install haproxy", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="thermocline-bench-") as scratch,
        ReplicaSet("rs0", keyfile=ARCHIVE_KEY if arguments.login else None) as archive,
        ReplicaSet("fast", keyfile=FAST_KEY if arguments.login else None) as fast,
        contextlib.ExitStack() as stack,
    ):
        load(archive)
        folder = Path(scratch)
        if arguments.login:
            users(fast, archive, folder)
        listen, admin, haproxy_port = free_port(), free_port(), free_port()
        (folder / "haproxy.cfg").write_text(
            HAPROXY_CONFIG.format(port=haproxy_port, address=archive.members[0].address)
        )
        (folder / "manifest.yaml").write_text(
            "apiVersion: thermocline.io/v1alpha1\nkind: TieredReplicaSet\n"
            "metadata: {name: bench, namespace: bench, generation: 1}\n"
            f"spec:\n  archive: {{uri: '{archive.uri}'{secret('archive', arguments.login)}}}\n"
            f"  fastTier: {{uri: '{fast.uri}'{secret('fast', arguments.login)}}}\n"
        )
        proxy_command = [
            str(Path(sys.executable).with_name("thermocline-proxy")),
            "--manifest", str(folder / "manifest.yaml"),
            "--admin", f"127.0.0.1:{admin}",
            "--listen", f"127.0.0.1:{listen}",
            *(("--credentials", str(folder / "credentials")) if arguments.login else ()),
        ]  # fmt: skip
        sides = [
            Side(
                "HAProxy",
                haproxy_port,
                stack.enter_context(
                    process(
                        [haproxy, "-f", str(folder / "haproxy.cfg"), "-db"],
                        folder / "haproxy.log",
                        haproxy_port,
                    )
                ),
            ),
            Side(
                "Thermocline",
                listen,
                stack.enter_context(process(proxy_command, folder / "proxy.log", listen)),
            ),
        ]
        for side in sides:
            run_many(side, arguments.connections, 1.0)  # warm
            side.cpu.clear()
            side.throughput.clear()
        for number in range(arguments.rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                run_many(side, arguments.connections, arguments.seconds)
            for side in sides if number % 2 == 0 else sides[::-1]:
                run_one(side, arguments.seconds / 2)
        return report(sides, arguments.connections)


def report(sides: list[Side], connections: int) -> int:
    """Print the figures; 1 where one is beyond its limit."""
    print(f"find by _id, 1 KB documents, {connections} connections / 1 connection")
    print(f"{'':14}{'CPU us/op':>12}{'ops/s':>12}{'p50 us':>12}{'p99 us':>12}")
    for side in sides:
        ordered = sorted(side.latency)
        print(
            f"{side.name:14}{median(side.cpu):12.1f}{median(side.throughput):12.0f}"
            f"{median(ordered):12.0f}{ordered[int(len(ordered) * 0.99)]:12.0f}"
        )
    haproxy, proxy = sides
    cpu = median(proxy.cpu) / median(haproxy.cpu)
    throughput = median(proxy.throughput) / median(haproxy.throughput)
    added = median(proxy.latency) - median(haproxy.latency)
    checks = [
        (f"CPU ratio {cpu:.2f} (at most {MOST_CPU_RATIO})", cpu <= MOST_CPU_RATIO),
        (
            f"throughput ratio {throughput:.2f} (at least {LEAST_THROUGHPUT_RATIO})",
            throughput >= LEAST_THROUGHPUT_RATIO,
        ),
        (
            f"added p50 latency {added:.0f} us (at most {MOST_ADDED_LATENCY_US:.0f})",
            added <= MOST_ADDED_LATENCY_US,
        ),
    ]
    for text, good in checks:
        print(f"{'ok  ' if good else 'MISS'} {text}")
    return 0 if all(good for _, good in checks) else 1


if __name__ == "__main__":
    sys.exit(main())

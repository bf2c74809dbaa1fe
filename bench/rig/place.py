"""Where everything runs: both tiers within their control groups, HAProxy, Thermocline; all of it removed at the end."""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pymongo import MongoClient

from rig.blocks import Device
from rig.cgroups import Controllers, Group, drop_cached, find_controllers, find_device, probe
from rig.leftovers import Leftovers
from rig.refusal import Refused
from rig.scales import Scale
from rig.wire import NAMESPACE
from support.binaries import NoMongodError, find_mongod
from support.mongod import ReplicaSet
from support.processes import Process, free_port, wait_until
from support.services import Thermocline
from thermocline_common import names

OPLOG_MB: Final = 2_000
WARM_ENOUGH: Final = 99.9
PATIENCE: Final = 900.0
PREPARING_PACE: Final = 50_000
"""Documents a second that the warmer may copy before a measurement with a warm fast tier."""

HAPROXY_CONFIG: Final = """
global
    maxconn 4000
defaults
    mode tcp
    timeout connect 5s
    timeout client 10m
    timeout server 10m
listen mongod
    bind 127.0.0.1:{port}
    server m0 {address}
"""


def find_haproxy() -> Path | None:
    """Debian puts it where only root looks."""
    found = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    return Path(found) if found else None


class Place:
    """A context manager; :meth:`open` checks what is needed first. Raises :class:`Refused`."""

    def __init__(self, directory: Path, scale: Scale) -> None:
        self.directory = directory
        self.scale = scale
        self.stack = contextlib.ExitStack()
        self.leftovers = Leftovers(directory / "rig.json")
        self.controllers: Controllers
        self.device: Device
        self.archive_group: Group
        self.fast_group: Group
        self.archive: ReplicaSet
        self.fast: ReplicaSet | None = None
        self.thermocline: Thermocline | None = None
        self.haproxy: Process | None = None
        self.haproxy_port = 0
        self.notes: list[str] = []
        """What was found at the start, for the report."""

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> None:
        self.controllers = find_controllers()
        self.directory.mkdir(parents=True, exist_ok=True)
        for text in self.leftovers.claim():
            print(f"removed what an earlier run left: {text}", flush=True)
        self.stack.callback(self.leftovers.release)
        self.device = find_device(self.directory)
        free = shutil.disk_usage(self.directory).free >> 20
        if free < self.scale.disk_needed_mb:
            raise Refused(
                f"{self.directory} has {free:,} MB free, {self.scale.disk_needed_mb:,} are needed"
            )
        try:
            binary = find_mongod()
        except NoMongodError as error:
            raise Refused(str(error)) from None
        unlimited, limited = probe(self.controllers, self.device, self.directory)
        self.notes.append(
            f"disk {self.device}: {unlimited:,.0f} reads/s without a limit, {limited:.0f} with one of 200"
        )
        self.archive_group = self._group("archive")
        self.fast_group = self._group("fast")
        self.archive = self._replica_set("archive", self.archive_group, binary, self.scale.cache_mb)

    def _group(self, name: str) -> Group:
        group = Group(self.controllers, f"{name}-{os.getpid()}")
        for directory in group.directories:
            self.leftovers.add_group(directory)
        group.make()
        self.stack.callback(group.remove)
        return group

    def _replica_set(self, name: str, group: Group, binary: Path, cache_mb: int) -> ReplicaSet:
        folder = self._folder(name)
        wrapper = group.wrapper(folder / "mongod", binary)
        with _environment("MONGOD", str(wrapper)):
            # WiredTiger takes the last of two sizes; mongod's own option doesn't go below 256 MB.
            found = ReplicaSet(
                name,
                directory=folder,
                oplog_mb=OPLOG_MB,
                extra=("--wiredTigerEngineConfigString", f"cache_size={cache_mb}M"),
            )
        self.stack.callback(found.stop)
        found.start()
        self.leftovers.add_process(found.members[0].pid)
        return found

    def _folder(self, name: str) -> Path:
        folder = self.directory / f"{name}-{os.getpid()}"
        self.leftovers.add_directory(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def settle_archive(self) -> None:
        """After loading: the small cache, nothing of it in memory, then the limits."""
        member = self.archive.members[0]
        member.stop()
        drop_cached(member.data)
        member.start()
        self.leftovers.add_process(member.pid)
        wait_until("the archive's primary", lambda: self.archive.primary() is not None, 60)
        self.archive_group.limit_memory(self.scale.memory_mb)
        self.throttle(on=True)

    def throttle(self, *, on: bool) -> None:
        """Limit the archive's disk reads, or let it prepare something at full speed."""
        self.archive_group.limit_reads(self.device, self.scale.iops if on else None)

    def disk_reads(self) -> int:
        """Of the archive, so far."""
        return self.archive_group.reads(self.device)

    def start_haproxy(self) -> None:
        """In front of the archive. Raises :class:`Refused` where it isn't installed."""
        binary = find_haproxy()
        if binary is None:
            raise Refused(
                "HAProxy is missing (apt-get install haproxy), or leave out --arms haproxy"
            )
        folder = self._folder("haproxy")
        self.haproxy_port = free_port()
        configuration = folder / "haproxy.cfg"
        configuration.write_text(
            HAPROXY_CONFIG.format(port=self.haproxy_port, address=self.archive.members[0].address)
        )
        self.haproxy = Process([str(binary), "-f", str(configuration), "-db"], folder / "log")
        self.stack.callback(self.stop_haproxy)
        self.haproxy.start()
        self.leftovers.add_process(self.haproxy.pid)
        wait_until("HAProxy listens", self._haproxy_listens, 30, 0.1)

    def _haproxy_listens(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.haproxy_port), 1),
        ):
            return True
        return False

    def stop_haproxy(self) -> None:
        """End it, so that it costs nothing while others are measured."""
        if self.haproxy is not None:
            self.haproxy.terminate()
            self.haproxy = None

    def start_thermocline(self, spec: dict[str, Any]) -> None:
        """An empty fast tier and all services, the warmer held still; returns when the collection is tiered."""
        self.fast = self._replica_set(
            "fast", self.fast_group, find_mongod(), self.scale.fast_cache_mb
        )
        self.fast_group.limit_memory(self.scale.fast_memory_mb)
        policy = {"namespace": NAMESPACE, "ageField": "t", "maxAge": self.scale.max_age}
        folder = self._folder("services")
        self.thermocline = Thermocline(
            self.fast,
            self.archive,
            [policy],
            lease="5s",
            pace="Auto",
            spec={"warmer": {"mode": "Paused"}, **spec},
            directory=folder,
        )
        self.stack.callback(self.stop_thermocline)
        with self.thermocline.logs_on_failure():
            self.thermocline.start()
            self.thermocline.wait_state("Active", timeout=180)
        for service in self.thermocline.services.values():
            self.leftovers.add_process(service.process.pid)

    def stop_thermocline(self) -> None:
        """End the services; the tiers stay."""
        if self.thermocline is not None:
            self.thermocline.stop()
            self.thermocline = None

    def warm(self) -> None:
        """Let the warmer work from now on."""
        assert self.thermocline is not None
        self.thermocline.manifest.change(warmer={"mode": "Running"})

    def warm_whole(self) -> None:
        """Fill the fast tier at the disk's full speed, then limit the archive again."""
        assert self.thermocline is not None
        # How long warming takes beside an application is the start from empty to tell.
        self.thermocline.manifest.change(warmer={"mode": "Running", "pace": PREPARING_PACE})
        self.throttle(on=False)
        try:
            wait_until(
                "the fast tier is warm", lambda: self.warm_percent() >= WARM_ENOUGH, PATIENCE, 1
            )
            self.thermocline.wait_applied()
        finally:
            self.throttle(on=True)
            self.warm()

    def catch_up(self) -> None:
        """Wait for replay at the disk's full speed: what is behind would be the next step's burden."""
        if self.thermocline is None:
            return
        self.throttle(on=False)
        try:
            self.thermocline.wait_applied(PATIENCE)
        finally:
            self.throttle(on=True)

    def warm_percent(self) -> float:
        """How much of what the policy asks for is in the fast tier."""
        return float(
            self.status("warmer").get("namespaces", {}).get(NAMESPACE, {}).get("warmPercent", 0)
        )

    def status(self, service: str) -> dict[str, Any]:
        """A service's own part of its ``/status``; empty where it doesn't run or answer."""
        if self.thermocline is None:
            return {}
        return dict(self.thermocline.services[service].status().get(service, {}))

    def end_round(self) -> None:
        """The archive as it was: everything applied, no services, no fast tier, no state of theirs."""
        if self.thermocline is None or self.fast is None:
            return
        self.throttle(on=False)
        self.thermocline.wait_applied(PATIENCE)
        self.stop_thermocline()
        self.fast.stop()
        shutil.rmtree(self.fast.directory, ignore_errors=True)
        self.fast = None
        with self._archive_client() as client:
            client.drop_database(names.DATABASE)
        self.throttle(on=True)

    def _archive_client(self) -> MongoClient[dict[str, Any]]:
        return self.archive.client()

    def processes(self) -> dict[str, int]:
        """Ids of all that works for an application now, by name."""
        found = {"archive": self.archive.members[0].pid}
        if self.haproxy is not None:
            found["haproxy"] = self.haproxy.pid
        if self.fast is not None:
            found["fast"] = self.fast.members[0].pid
        if self.thermocline is not None:
            for name, service in self.thermocline.services.items():
                if service.process.running:
                    found[name] = service.process.pid
        return found

    def close(self) -> None:
        """Remove all."""
        self.stack.close()


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

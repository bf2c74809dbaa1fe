"""Two tiers, their services and three proxies, with a relay between any two of them."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from support.chaos.links import Links
from support.fixtures import ARCHIVE_KEY, CLOCK_AHEAD_SECONDS, FAST_KEY
from support.haste import HASTE
from support.mongod import Mongod, ReplicaSet
from support.processes import wait_until
from support.services import ServiceProcess, Thermocline

PROXIES: Final = ("proxy-1", "proxy-2", "proxy-3")
OTHERS: Final = ("feeder", "evictor", "warmer")
SERVICES: Final = (*PROXIES, *OTHERS)
PARAMETERS: Final = {"transactionLifetimeLimitSeconds": "10"}
"""A transaction whose connection broke holds up switches for so long; a minute in operation."""
DISK_MB: Final = 420
"""Size of the small disk: mongod's journal and an oplog of a few minutes fit."""


def haste(announce: float) -> dict[str, str]:
    """The services' waits for a given time from announcement to eviction.

    In operation a removal record (300 s) outlives a copy (30 s) by more than a process may be frozen
    (45 s), and an eviction comes 60 s after its announcement; the proportions are kept.
    """
    return {
        **HASTE,
        "THERMOCLINE_TEST_ANNOUNCE_SECONDS": str(announce),
        "THERMOCLINE_TEST_FEEDER_RECORD_AGE": str(35 + announce),
    }


class Tier(ReplicaSet):
    """A replica set whose members know each other, and are known, by their relays' addresses."""

    links: Links

    def _initiate(self) -> None:
        self.links.know(self.pids())
        for number, member in enumerate(self.members):
            member.advertised = self.links.listen(f"{self.name}-{number}", member.port)
        super()._initiate()

    def pids(self) -> dict[int, str]:
        """The running members' names by process id."""
        return {
            member.pid: f"{self.name}-{number}"
            for number, member in enumerate(self.members)
            if member.process.running
        }

    def name_of(self, member: Mongod) -> str:
        """As links call it."""
        return f"{self.name}-{self.members.index(member)}"


class SmallDisk:
    """A small file system in memory under a member's data. Needs root; :meth:`mount` says if it has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mounted = False
        self._ballast = path / "ballast"

    def mount(self) -> bool:
        """Whether it is there now."""
        self.path.mkdir(parents=True, exist_ok=True)
        size = f"size={DISK_MB}m"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "chaos", str(self.path)],
            capture_output=True,
            check=False,
        )
        self.mounted = done.returncode == 0
        return self.mounted

    def fill(self) -> None:
        """Leave not a byte."""
        with self._ballast.open("wb", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12):
                try:
                    while ballast.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        """Give back what :meth:`fill` took."""
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        """At the end, whoever still has files open."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False)
            self.mounted = False


class Cluster:
    """All parts, by name. ``members``: of each tier. ``modules``: of broken services, by service."""

    def __init__(
        self,
        collections: Sequence[Mapping[str, Any]],
        *,
        members: int = 3,
        logins: bool = True,
        announce: float = 28.0,
        lease: str = "1s",
        full_disk: bool = True,
        modules: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="thermocline-chaos-"))
        self.links = Links()
        self.logins = logins
        self.announce = announce
        self.tiers: dict[str, Tier] = {}
        self.disk: SmallDisk | None = None
        for name, key in (("fast", FAST_KEY), ("archive", ARCHIVE_KEY)):
            self.tiers[name] = Tier(
                name,
                members,
                key if logins else None,
                directory=self.directory / name,
                parameters=PARAMETERS,
                election_timeout_ms=4_000,
            )
            self.tiers[name].links = self.links
        if full_disk and members > 1:
            # The last member's: seldom the first primary, often a later one.
            disk = SmallDisk(self.tiers["archive"].members[-1].data)
            self.disk = disk if disk.mount() else None
        self._collections = collections
        self._lease = lease
        self._modules = modules or {}
        self.thermocline: Thermocline
        self.doors: dict[str, int] = {}

    @property
    def fast(self) -> Tier:
        """F."""
        return self.tiers["fast"]

    @property
    def archive(self) -> Tier:
        """A."""
        return self.tiers["archive"]

    @property
    def services(self) -> dict[str, ServiceProcess]:
        """By label, second copies too."""
        return self.thermocline.services

    @contextmanager
    def up(self) -> Iterator[Self]:
        """Servers and relays run; :meth:`start_services` does the rest."""
        with ExitStack() as stack:
            stack.callback(self._remove)
            stack.enter_context(self.links)
            stack.enter_context(self.fast)
            stack.enter_context(self.archive)
            self.archive.push_clock(CLOCK_AHEAD_SECONDS)
            self.thermocline = Thermocline(
                self.fast,
                self.archive,
                self._collections,
                lease=self._lease,
                pace="Auto",
                roles=("readWriteAnyDatabase", "dbAdminAnyDatabase"),  # the latter for collMod
                environment=haste(self.announce),
                directory=self._services_directory(),
            )
            self._build_services()
            stack.callback(self._stop_services)
            yield self

    def _services_directory(self) -> Path:
        directory = self.directory / "services"
        directory.mkdir()
        return directory

    def _build_services(self) -> None:
        thermocline = self.thermocline
        thermocline.services.clear()
        for label in SERVICES:
            self.make_service(label.partition("-")[0], label)
        for label in PROXIES:
            listen = thermocline.services[label].listen
            assert listen is not None
            self.doors[label] = self.links.listen(label, listen)

    def make_service(self, name: str, label: str) -> ServiceProcess:
        """A process of a service, not started, ended with the others."""
        service = self.thermocline.make_service(name, label)
        broken = self._modules.get(name)
        if broken:
            tests = str(Path(__file__).parents[2])
            service.process.environment = {**haste(self.announce), "PYTHONPATH": tests}
            module = service.process.command.index("-m")
            service.process.command[module + 1 : module + 2] = broken
        self.services[label] = service
        return service

    def start_services(self) -> None:
        """Users, where logins are on; all services, ready."""
        self.thermocline.start(only=(), wait=False)
        for label in SERVICES:
            self.start_service(label)
        for label in SERVICES:
            self.services[label].wait_ready()

    def start_service(self, label: str) -> None:
        """Start (again), unless it runs. From the thread that lives longest: it dies with it."""
        if not self.services[label].process.running:
            self.services[label].start()
            self.introduce()

    def introduce(self) -> None:
        """Tell the relays who is who."""
        pids = {**self.fast.pids(), **self.archive.pids()}
        for label, service in self.services.items():
            if service.process.running:
                pids[service.process.pid] = label
        self.links.know(pids)

    def uri(self, first: int = 0) -> str:
        """The application's connection string: all proxies, through their relays."""
        doors = list(self.doors.values())
        hosts = ",".join(f"127.0.0.1:{port}" for port in doors[first:] + doors[:first])
        return self.thermocline.uri().replace(f"127.0.0.1:{self.thermocline.port}", hosts)

    def heal(self) -> None:
        """Everything works and runs again; what is frozen goes on."""
        self.links.clear()
        if self.disk is not None:
            self.disk.empty()
        for tier in self.tiers.values():
            for member in tier.members:
                member.resume()
                if not member.process.running:
                    member.process.start()
        for service in self.services.values():
            service.process.resume()
        for label in SERVICES:
            self.start_service(label)
        self.introduce()
        for tier in self.tiers.values():
            wait_until(f"primary of {tier.name}", tier.primary, 240)

    def _stop_services(self) -> None:
        for service in self.services.values():
            service.process.kill()

    def _remove(self) -> None:
        if self.disk is not None:
            self.disk.unmount()
        subprocess.run(["rm", "-rf", str(self.directory)], check=False)

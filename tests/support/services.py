"""The four services as real processes, and a whole Thermocline made of them."""

import contextlib
import json
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import yaml
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, MongoClient, WriteConcern

from support import accounts
from support.mongod import ReplicaSet
from support.processes import Process, free_port, wait_until
from thermocline_common import names

SERVICES = ("feeder", "proxy", "evictor", "warmer")


class Manifest:
    """The file that the services follow: replaced atomically, its generation raised each time."""

    def __init__(
        self, path: Path, spec: Mapping[str, Any], name: str = "shop", number: int = 1
    ) -> None:
        """``number`` ends its uid: resources that were made one after the other under one name."""
        self.path = path
        self.uid = f"5f6b0a6e-7a0c-4d1e-9d53-{number:012}"
        self.generation = 0
        self.name = name
        self.spec: dict[str, Any] = {}
        self.retain = False
        self.write(spec)

    def write(self, spec: Mapping[str, Any]) -> None:
        """Replace the spec."""
        self.spec = json.loads(json.dumps(spec))
        self.generation += 1
        document = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {
                "name": self.name,
                "namespace": "tests",
                "uid": self.uid,
                "generation": self.generation,
                "retain": self.retain,
            },
            "spec": self.spec,
        }
        scratch = self.path.with_suffix(".new")
        scratch.write_text(yaml.safe_dump(document, sort_keys=False))
        scratch.replace(self.path)

    def change(self, **fields: Any) -> None:
        """Replace top-level fields of the spec."""
        self.write({**self.spec, **fields})


AT_ONCE = 100_000
"""``pace`` where it isn't what a test is about: ``Auto`` begins slowly, until it knows what it costs readers."""


class ServiceProcess:
    """One service: ``python -m thermocline_<name>``."""

    def __init__(
        self,
        name: str,
        manifest: Path,
        directory: Path,
        *,
        credentials: Path | None = None,
        listen: int | None = None,
        label: str | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.label = label or name
        self.admin_port = free_port()
        self.listen = listen
        command = [
            sys.executable, "-m", f"thermocline_{name}", "--manifest", str(manifest),
            "--admin", f"127.0.0.1:{self.admin_port}",
        ]  # fmt: skip
        if credentials is not None:
            command += ["--credentials", str(credentials)]
        if listen is not None:
            command += ["--listen", f"127.0.0.1:{listen}"]
        self.process = Process([*command, *arguments], directory / f"{self.label}.log", environment)

    def start(self) -> None:
        """Start it, without waiting."""
        self.process.start()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM; returns the exit code."""
        return self.process.terminate(timeout)

    def get(self, path: str, timeout: float = 5.0) -> tuple[int, str]:
        """Status and body of a page of the admin port; status 0 where nobody answers."""
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=timeout) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        """``/status``, decoded; empty where nobody answers."""
        code, body = self.get("/status")
        return dict(json.loads(body)) if code else {}

    def metrics(self) -> str:
        """``/metrics`` as text."""
        return self.get("/metrics")[1]

    def ready(self) -> bool:
        """Whether ``/readyz`` says so."""
        return self.get("/readyz")[0] == 200

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait for ``/readyz``. Raises ``RuntimeError`` with the end of the log if it ends."""

        def ready_or_ended() -> bool:
            return self.ready() or not self.process.running

        try:
            wait_until(f"{self.label} ready", ready_or_ended, timeout, 0.1)
        except TimeoutError as error:
            text = f"{error}; readyz {self.get('/readyz')}; log:\n{self.process.tail()}"
            raise TimeoutError(text) from None
        if not self.process.running:
            raise RuntimeError(
                f"{self.label} ended with {self.process.returncode}:\n{self.process.tail()}"
            )


class Thermocline:
    """Both tiers' services on one manifest. Logins are on where the tiers' are.

    ``collections``: as in the resource. ``environment``: for every service's process. ``roles``: of the
    application's user (``accounts.APPLICATION``).
    """

    def __init__(
        self,
        fast: ReplicaSet,
        archive: ReplicaSet,
        collections: Sequence[Mapping[str, Any]],
        *,
        mode: str = "Active",
        evictor: str = "Running",
        lease: str = "500ms",
        pace: str | int = AT_ONCE,
        spec: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        roles: Sequence[str] = ("readWriteAnyDatabase",),
    ) -> None:
        self.fast = fast
        self.archive = archive
        self._owned = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="thermocline-services-"))
        self.environment = environment
        self.roles = roles
        self.secure = archive.keyfile is not None
        self.namespaces = [str(entry["namespace"]) for entry in collections]
        self.credentials: Path | None = None
        tiers: dict[str, dict[str, Any]] = {
            "archive": {"uri": archive.uri},
            "fastTier": {"uri": fast.uri},
        }
        if self.secure:
            self.credentials = accounts.write_credentials(self.directory / "credentials")
            for tier, name in (
                ("archive", "archive-thermocline"),
                ("fastTier", "fast-thermocline"),
            ):
                tiers[tier]["credentialsSecretRef"] = {"name": name}
        self.manifest = Manifest(
            self.directory / "manifest.yaml",
            {
                "mode": mode,
                **tiers,
                "collections": list(collections),
                "proxy": {"lease": lease, "drainTimeout": "2s"},
                "evictor": {"mode": evictor, "pace": pace},
                "warmer": {"pace": pace},
                **(spec or {}),
            },
        )
        self._ends: dict[str, str] = {}
        self.port = free_port()
        self.services = {name: self.make_service(name) for name in SERVICES}

    def make_service(
        self, name: str, label: str | None = None, listen: int | None = None
    ) -> ServiceProcess:
        """One more process of a service (``label`` tells it apart), not started."""
        if name == "proxy" and listen is None:
            listen = self.port if label is None else free_port()
        return ServiceProcess(
            name,
            self.manifest.path,
            self.directory,
            credentials=self.credentials,
            listen=listen,
            label=label,
            environment=self.environment,
        )

    def add_service(self, name: str, label: str) -> ServiceProcess:
        """A second process of a service, started; ended with the others."""
        service = self.make_service(name, label)
        self.services[label] = service
        service.start()
        return service

    def start(self, only: Sequence[str] = SERVICES, wait: bool = True) -> Self:
        """Create users where needed, start services, wait until they are ready."""
        try:
            if self.secure:
                databases = sorted({namespace.partition(".")[0] for namespace in self.namespaces})
                accounts.drop_users(self.fast)
                accounts.drop_users(self.archive)
                accounts.create_service_users(self.fast, self.archive, databases)
                accounts.create_application_user(self.fast, self.archive, roles=self.roles)
            for name in only:
                self.services[name].start()
            if wait:
                for name in only:
                    self.services[name].wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all services. Their logs are lost unless a directory was given, but for the ends.

        The feeder last: others finish what they have in hand, for which they may need replay.
        """
        for service in reversed(self.services.values()):
            if service.process.running:
                service.terminate(timeout=15)
            self._ends.setdefault(service.label, service.process.tail(40))
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)

    def uri(self, port: int | None = None) -> str:
        """The proxy's connection string, with the application's user where logins are on."""
        login = ""
        if self.secure:
            user = accounts.APPLICATION
            login = f"{quote(user.user)}:{quote(user.password)}@"
        return f"mongodb://{login}127.0.0.1:{port or self.port}/"

    def client(self, **options: Any) -> MongoClient[dict[str, Any]]:
        """An ordinary client of the proxy."""
        return MongoClient(
            self.uri(), **{"tz_aware": True, "uuidRepresentation": "standard", **options}
        )

    def async_client(self, **options: Any) -> AsyncMongoClient[dict[str, Any]]:
        """The same, asynchronous."""
        return AsyncMongoClient(
            self.uri(), **{"tz_aware": True, "uuidRepresentation": "standard", **options}
        )

    def coverage(self, namespace: str) -> dict[str, Any] | None:
        """The namespace's coverage document, read from F directly."""
        with self.fast.client() as client:
            return client[names.DATABASE][names.COVERAGE].find_one({"_id": namespace})

    def wait_state(self, state: str, namespace: str | None = None, timeout: float = 90.0) -> None:
        """Wait until the namespace (or all) is in a state; no coverage document is ``Passthrough``."""
        for name in [namespace] if namespace else self.namespaces:

            def reached(name: str = name) -> bool:
                document = self.coverage(name)
                return (document["state"] if document else "Passthrough") == state

            wait_until(f"{name} {state}", reached, timeout, 0.1)

    def wait_applied(self, timeout: float = 60.0) -> Timestamp:
        """Wait until the archive holds everything F has acknowledged by now; returns F's time of now."""
        with self.fast.client() as client:
            notes = client.get_database(names.DATABASE, write_concern=WriteConcern("majority"))
            touch = ({"_id": "barrier:tests"}, {"$inc": {"n": 1}})
            notes[names.MARKERS].update_one(*touch, upsert=True)
            now: Timestamp = client.admin.command("ping")["operationTime"]
            # An event after `now`: the stream moves past it even on an idle F.
            notes[names.MARKERS].update_one(*touch, upsert=True)
        with self.archive.client() as client:
            checkpoint = client[names.DATABASE][names.CHECKPOINT]

            def applied() -> bool:
                document = checkpoint.find_one({"_id": names.CHECKPOINT_ID})
                return document is not None and document["time"] >= now

            try:
                wait_until("the feeder caught up", applied, timeout)
            except TimeoutError as error:
                text = f"{error}; wanted {now}, checkpoint {checkpoint.find_one()}"
                raise TimeoutError(f"{text}\n{self.services['feeder'].process.tail()}") from None
        return now

    def evicted(self) -> int:
        """How many documents the running evictors say they have evicted."""
        total = 0
        for service in self.services.values():
            if service.name == "evictor" and service.process.running:
                reported = service.status().get("evictor", {}).get("namespaces", {})
                total += sum(int(namespace["evicted"]) for namespace in reported.values())
        return total

    @contextlib.contextmanager
    def logs_on_failure(self) -> Iterator[None]:
        """Print the end of every service's log if the block raises."""
        try:
            yield
        except BaseException:
            for service in self.services.values():
                log = self._ends.get(service.label) or service.process.tail(40)
                print(f"--- {service.label} ({service.process.returncode}) ---\n{log}")
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

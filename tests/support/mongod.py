"""Real mongods as replica sets on loopback ports, for tests, the demo and the benchmark."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from bson.binary import Binary
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from support.binaries import find_mongod
from support.processes import Process, free_port, wait_until

ADMIN_USER = "admin"
ADMIN_PASSWORD = "admin-secret"

DEFAULT_PARAMETERS: Mapping[str, str] = {
    "transactionLifetimeLimitSeconds": "60",  # the most that Thermocline accepts
    "diagnosticDataCollectionEnabled": "false",
    "ttlMonitorSleepSecs": "1",
}


class Mongod:
    """One mongod; a restart keeps its port and data."""

    def __init__(
        self,
        directory: Path,
        replica_set: str | None,
        *,
        keyfile: str | None = None,
        parameters: Mapping[str, str] | None = None,
        cache_gb: float = 0.25,
        oplog_mb: int = 990,
        extra: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.log = directory / "mongod.log"
        self.replica_set = replica_set
        self.keyfile = keyfile
        self.parameters = {**DEFAULT_PARAMETERS, **(parameters or {})}
        self.cache_gb = cache_gb
        self.oplog_mb = oplog_mb
        self.extra = list(extra)
        self.port = free_port()
        self.advertised: int | None = None
        self.process = Process(self._command(), self.log)

    @property
    def address(self) -> str:
        """``host:port`` as the set knows it: of a relay before it, where ``advertised`` names one."""
        return f"127.0.0.1:{self.advertised or self.port}"

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    def _command(self) -> list[str]:
        command = [
            str(find_mongod()), "--dbpath", str(self.data), "--port", str(self.port),
            "--bind_ip", "127.0.0.1", "--nounixsocket", "--quiet",
            "--wiredTigerCacheSizeGB", str(self.cache_gb),
        ]  # fmt: skip
        if self.replica_set:
            command += ["--replSet", self.replica_set, "--oplogSize", str(self.oplog_mb)]
        if self.keyfile is not None:
            path = self.directory / "keyfile"
            path.write_text(self.keyfile)
            path.chmod(0o600)
            command += ["--auth", "--keyFile", str(path)]
        for name, value in self.parameters.items():
            command += ["--setParameter", f"{name}={value}"]
        return command + self.extra

    def start(self, timeout: float = 60.0) -> None:
        """Start it (again) and wait until it answers. Another free port is taken the first time if
        somebody was faster. Raises ``RuntimeError`` with the end of its log."""
        fresh = not any(self.data.iterdir())
        for attempt in range(5):
            self.process.start()
            try:
                wait_until(f"mongod on {self.address}", self._answers_or_ended, timeout)
            except TimeoutError:
                self.process.kill()
                raise
            if self.process.running:
                return
            if not (fresh and attempt < 4 and "Address already in use" in self.process.tail(80)):
                break
            self.port = free_port()
            self.process = Process(self._command(), self.log)
        raise RuntimeError(f"mongod ended at its start:\n{self.process.tail(15)}")

    def _answers_or_ended(self) -> bool:
        if not self.process.running:
            return True
        try:
            with self.direct_client(timeout_ms=500) as client:
                client.admin.command("ping")
        except PyMongoError:
            return False
        # Someone else's mongod could answer on a port that ours failed to get.
        return self.process.running

    def stop(self) -> None:
        """SIGTERM and wait: a clean shutdown."""
        self.process.terminate()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP: as if cut off."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    def restart(self) -> None:
        """Clean stop, then start on the same port with the same data."""
        self.stop()
        self.start()

    def direct_client(
        self, timeout_ms: int = 10_000, **options: Any
    ) -> MongoClient[dict[str, Any]]:
        """A client of this member alone, not logged in unless ``options`` say so."""
        return MongoClient(
            "127.0.0.1",
            self.port,
            directConnection=True,
            serverSelectionTimeoutMS=timeout_ms,
            tz_aware=True,
            **options,
        )


class ReplicaSet:
    """A replica set of ``members`` mongods, started by :meth:`start` (or as a context manager).

    With ``keyfile`` (its content, 6 to 1,024 base64 characters) logins are on and a root user
    ``ADMIN_USER`` exists. ``member_options``: per member, more fields of its entry in the set's
    configuration (tags, priority, hidden).
    """

    def __init__(
        self,
        name: str,
        members: int = 1,
        keyfile: str | None = None,
        *,
        directory: Path | None = None,
        parameters: Mapping[str, str] | None = None,
        test_commands: bool = False,
        cache_gb: float = 0.25,
        oplog_mb: int = 990,
        election_timeout_ms: int = 1_000,
        member_options: Sequence[Mapping[str, Any]] = (),
        extra: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.keyfile = keyfile
        self._owned = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"thermocline-{name}-"))
        self.election_timeout_ms = election_timeout_ms
        self.member_options = member_options
        given = {**(parameters or {}), **({"enableTestCommands": "1"} if test_commands else {})}
        self.members = [
            Mongod(
                self.directory / str(number),
                name,
                keyfile=keyfile,
                parameters=given,
                cache_gb=cache_gb,
                oplog_mb=oplog_mb,
                extra=extra,
            )
            for number in range(members)
        ]

    @property
    def uri(self) -> str:
        """Without credentials, as in a manifest."""
        hosts = ",".join(member.address for member in self.members)
        return f"mongodb://{hosts}/?replicaSet={self.name}"

    @property
    def admin_uri(self) -> str:
        """With the root user's credentials, where logins are on."""
        return self.user_uri(ADMIN_USER, ADMIN_PASSWORD) if self.keyfile else self.uri

    def user_uri(self, user: str, password: str, database: str = "admin") -> str:
        """With a user's credentials."""
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@"
        return self.uri.replace("mongodb://", f"mongodb://{login}") + f"&authSource={database}"

    def client(self, **options: Any) -> MongoClient[dict[str, Any]]:
        """A client of the whole set as root."""
        return MongoClient(
            self.admin_uri, **{"tz_aware": True, "uuidRepresentation": "standard", **options}
        )

    def async_client(self, **options: Any) -> AsyncMongoClient[dict[str, Any]]:
        """The same, asynchronous."""
        return AsyncMongoClient(
            self.admin_uri, **{"tz_aware": True, "uuidRepresentation": "standard", **options}
        )

    def member_client(self, member: Mongod, **options: Any) -> MongoClient[dict[str, Any]]:
        """A client of one member as root."""
        if self.keyfile:
            options = {"username": ADMIN_USER, "password": ADMIN_PASSWORD, **options}
        return member.direct_client(**options)

    def start(self) -> Self:
        """Start the members, initiate the set, wait for a primary that takes majority writes."""
        try:
            for member in self.members:
                member.start()
            self._initiate()
            if self.keyfile:
                self._create_admin()
            with self.client() as client:
                self._wait_for_writes(client)
        except BaseException:
            self.stop()
            raise
        return self

    def _initiate(self) -> None:
        entries = []
        for number, member in enumerate(self.members):
            options = self.member_options[number] if number < len(self.member_options) else {}
            entries.append({"_id": number, "host": member.address, **options})
        settings = {
            "electionTimeoutMillis": self.election_timeout_ms,
            "heartbeatIntervalMillis": 500,
        }
        configuration = {"_id": self.name, "members": entries, "settings": settings}
        with self.members[0].direct_client() as client:
            client.admin.command("replSetInitiate", configuration)
        wait_until(f"primary of {self.name}", lambda: self.primary() is not None, 60)

    def _create_admin(self) -> None:
        # The localhost exception: one user may be created without a login.
        def created() -> bool:
            member = self.primary()
            if member is None:
                return False
            try:
                with member.direct_client() as client:
                    client.admin.command(
                        "createUser", ADMIN_USER, pwd=ADMIN_PASSWORD, roles=["root", "__system"]
                    )
            except AutoReconnect:
                return False
            return True

        wait_until(f"first user of {self.name}", created)

    def _wait_for_writes(self, client: MongoClient[dict[str, Any]]) -> None:
        def written() -> bool:
            try:
                client.admin.command(
                    "appendOplogNote",
                    data={"ready": True},
                    writeConcern={"w": "majority", "wtimeout": 20_000},
                )
            except (AutoReconnect, OperationFailure):
                return False
            return True

        wait_until(f"majority writes on {self.name}", written, 60, 0.1)

    def primary(self) -> Mongod | None:
        """The member that says it is the writable primary, or None."""
        for member in self.members:
            if not member.process.running:
                continue
            try:
                with member.direct_client(timeout_ms=500) as client:
                    if client.admin.command("hello").get("isWritablePrimary"):
                        return member
            except PyMongoError:
                continue
        return None

    def push_clock(self, seconds: int) -> Timestamp:
        """Move the set's cluster time ahead by ``seconds``, for good. Returns the new time.

        Where logins are on, ``__system`` may gossip a time without a valid signature. Without
        logins anyone may.
        """
        primary = self.primary()
        if primary is None:
            raise RuntimeError(f"{self.name} has no primary")
        options: dict[str, Any] = {}
        if self.keyfile:
            options = {
                "username": "__system",
                "password": "".join(self.keyfile.split()),
                "authSource": "local",
                "authMechanism": "SCRAM-SHA-256",
            }
        with primary.direct_client(**options) as client:
            now: Timestamp = client.admin.command("hello")["$clusterTime"]["clusterTime"]
            ahead = Timestamp(now.time + seconds, 1)
            with client.start_session() as session:
                session.advance_cluster_time(
                    {"clusterTime": ahead, "signature": {"hash": Binary(bytes(20)), "keyId": 0}}
                )
                client.admin.command("appendOplogNote", data={"clock": "ahead"}, session=session)
        with self.client() as client:
            reached: Timestamp = client.admin.command("ping")["operationTime"]
        if reached < ahead:
            raise RuntimeError(f"{self.name} stayed at {reached}, wanted {ahead}")
        return reached

    def stop(self) -> None:
        """Kill the members and remove their data."""
        for member in self.members:
            member.kill()
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

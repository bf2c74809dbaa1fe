"""TLS on every connection: clients, proxy, services, both tiers; everything is replaced while clients work."""

import contextlib
import datetime as dt
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, PyMongoError

from support import accounts
from support.fixtures import ARCHIVE_KEY, FAST_KEY
from support.mongod import ADMIN_PASSWORD, ReplicaSet
from support.pki import Authority, Issued, put
from support.processes import wait_until
from support.services import Thermocline
from thermocline_common.coverage import Tier

pytestmark = pytest.mark.integration
FOLDERS = {Tier.ARCHIVE: "archive", Tier.FAST: "fast-tier"}
SERVICES = ("feeder", "proxy")
OLD = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


class World:
    """Two tiers that take nothing but TLS with client certificates and log-ins, a feeder and a proxy."""

    def __init__(self, make: Callable[..., ReplicaSet], directory: Path) -> None:
        self.directory = directory
        self.pki = directory / "pki"
        self.authority = Authority("first")
        self.keys: list[Issued] = []
        self.serve(self.authority.certificate, self.authority)
        options = ["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", str(self.pki / "server.pem"),
                   "--tlsCAFile", str(self.pki / "ca.crt")]  # fmt: skip
        self.fast = make("fast", keyfile=FAST_KEY, extra=options)
        self.archive = make("archive", keyfile=ARCHIVE_KEY, extra=options, test_commands=True)
        tls = {"caSecretRef": {"name": "ca"}, "certificateSecretRef": {"name": "client"}}
        secret = {"credentialsSecretRef": {"name": "thermocline"}, "tls": tls}
        self.all = Thermocline(
            self.fast,
            self.archive,
            [{"namespace": "shop.orders", "ageField": "createdAt", "maxAge": "30d"}],
            spec={
                "archive": {"uri": f"{self.archive.uri}&tls=true", **secret},
                "fastTier": {"uri": f"{self.fast.uri}&tls=true", **secret},
                "proxy": {
                    "lease": "500ms", "drainTimeout": "2s", "barrierTimeout": "60s",
                    "tls": {"certificateSecretRef": {"name": "proxy"}},
                },
            },
            directory=directory,
        )  # fmt: skip
        assert self.all.credentials is not None
        self.files = self.all.credentials
        self.trust(self.authority.certificate)
        self.show(self.authority, "client-1")
        self.listen(self.authority)

    def issue(self, authority: Authority, name: str) -> Issued:
        made = authority.issue(name)
        self.keys.append(made)
        return made

    # Files of the servers, the services, and the applications.

    def serve(self, authorities: bytes, signer: Authority) -> None:
        put(self.pki / "ca.crt", authorities)
        put(self.pki / "server.pem", self.issue(signer, "server").both)

    def trust(self, authorities: bytes) -> None:
        for folder in FOLDERS.values():
            put(self.files / folder / "ca.crt", authorities)

    def show(self, signer: Authority, name: str) -> None:
        for folder in FOLDERS.values():
            self.issue(signer, name).write(self.files / folder)

    def listen(self, signer: Authority) -> None:
        self.issue(signer, "proxy").write(self.files / "proxy")

    # Connections.

    def application(self, authority: Path, **options: Any) -> MongoClient[dict[str, Any]]:
        """Without the driver's retries: every failure shows."""
        return self.all.client(
            tls=True, tlsCAFile=str(authority), retryReads=False, retryWrites=False, **options
        )

    def admin(self, tier: ReplicaSet) -> MongoClient[dict[str, Any]]:
        pem = self.directory / "admin.pem"
        return tier.client(
            tls=True, tlsCAFile=str(self.directory / "both.crt"), tlsCertificateKeyFile=str(pem)
        )

    def status(self, service: str) -> dict[str, Any]:
        return dict(self.all.services[service].status())

    def well(self, service: str) -> bool:
        return not self.status(service)["problems"]

    def generations(self) -> list[int]:
        return [self.status(name)["credentials"]["generation"] for name in SERVICES]

    def taken(self, before: list[int]) -> None:
        """Wait until both services have taken something new."""

        def newer() -> bool:
            return all(new > old for new, old in zip(self.generations(), before, strict=True))

        wait_until("new credentials", newer, 30, 0.1)

    def certificates(self, file: str) -> set[str]:
        return {
            one["subject"]
            for name in SERVICES
            for one in self.status(name)["credentials"]["certificates"]
            if one["file"] == file
        }

    def reconnect(self, archive: MongoClient[dict[str, Any]]) -> None:
        """Let the proxy's own client lose its connections to the archive; it makes new ones."""
        broken = {
            "failCommands": ["listCollections"],
            "closeConnection": True,
            "appName": "thermocline-proxy",
        }
        before = self.made(archive)
        archive.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=broken)
        wait_until("new connections", lambda: self.made(archive) > before, 30, 0.1)

    def made(self, archive: MongoClient[dict[str, Any]]) -> int:
        """How many log-ins the archive has seen."""
        seen = archive.admin.command("serverStatus")["security"]["authentication"]["mechanisms"]
        return sum(int(one["authenticate"]["received"]) for one in seen.values())

    def rotate(self, *tiers: MongoClient[dict[str, Any]]) -> None:
        for tier in tiers:
            tier.admin.command("rotateCertificates", 1)


@pytest.fixture
def world(make_replica_set: Callable[..., ReplicaSet], tmp_path: Path) -> Iterator[World]:
    made = World(make_replica_set, tmp_path)
    with made.archive.client() as client:
        client.shop.orders.create_index("createdAt")
        client.shop.plain.insert_one({})
    with made.all.logs_on_failure():
        try:
            made.all.start(only=SERVICES)
            made.all.wait_state("Active")
            for tier in (made.fast, made.archive):
                with tier.client() as client:
                    for mode in ("preferTLS", "requireTLS"):
                        client.admin.command("setParameter", 1, tlsMode=mode)
            yield made
        finally:
            made.all.stop()


class Load:
    """Applications that read and write all the time, old connections and new ones, and never repeat anything."""

    def __init__(self, world: World, authority: Path) -> None:
        self.world = world
        self.authority = authority
        self.failures: list[str] = []
        self.done = 0
        self._stop = threading.Event()
        self._ids = itertools.count()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(self.world.application(self.authority))
            while not self._stop.is_set():
                self._work(client)
                with self.world.application(self.authority) as fresh:
                    self._work(fresh)
                self._stop.wait(0.02)

    def _work(self, client: MongoClient[dict[str, Any]]) -> None:
        orders = client.shop.orders
        number = next(self._ids)
        try:
            orders.insert_one({"_id": number, "createdAt": dt.datetime.now(dt.UTC)})
            assert orders.find_one({"_id": number}) is not None
            assert orders.find_one({"_id": "none", "createdAt": {"$gte": OLD}}) is None
            self.done += 1
        except (PyMongoError, AssertionError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def burst(self, count: int) -> None:
        """So many commands at once, each of which needs a connection to the archive of its own."""
        with self.world.application(self.authority, maxPoolSize=count) as client:
            slow = {"find": "plain", "filter": {"$where": "sleep(200) || true"}}
            errors: list[str] = []

            def one() -> None:
                try:
                    client.shop.command(slow)
                except PyMongoError as error:
                    errors.append(str(error))

            threads = [threading.Thread(target=one) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.failures += errors

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def served(port: int, authority: Path) -> bytes:
    """The certificate that the proxy shows."""
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as found,
    ):
        return found.getpeercert(binary_form=True) or b""


def test_everything_is_replaced_under_load_without_one_failed_operation(world: World) -> None:
    first, second = world.authority, Authority("second")
    both = first.certificate + second.certificate
    authority = world.directory / "both.crt"
    authority.write_bytes(both)
    admin = first.issue("admin")
    (world.directory / "admin.pem").write_bytes(admin.both)
    with world.admin(world.fast) as fast, world.admin(world.archive) as archive:
        shown = served(world.all.port, authority)
        with Load(world, authority) as load:
            load.burst(2)
            before = world.generations()
            world.trust(both)
            world.listen(second)
            world.taken(before)
            wait_until("the port's certificate", lambda: served(world.all.port, authority) != shown)
            world.serve(both, second)
            world.rotate(fast, archive)
            load.burst(4)
            world.show(second, "client-2")
            wait_until("shown", lambda: all(
                world.certificates(f"{folder}/tls.crt") == {"CN=client-2,O=tests"}
                for folder in FOLDERS.values()
            ), 30, 0.1)  # fmt: skip
            load.burst(6)
            world.trust(second.certificate)
            wait_until(
                "trusted", lambda: world.certificates("archive/ca.crt") == {"CN=second"}, 30, 0.1
            )
            load.burst(8)
            # The Secret first, then the users: the old password counts until the change is through.
            before = world.generations()
            for folder in FOLDERS.values():
                put(world.files / folder / "password", b"another-services-secret")
            world.taken(before)
            world.reconnect(archive)
            load.burst(10)
            for tier, client in ((Tier.FAST, fast), (Tier.ARCHIVE, archive)):
                client.admin.command(
                    "updateUser", accounts.SERVICES[tier].user, pwd="another-services-secret"
                )
            load.burst(12)
            world.reconnect(archive)
            since = load.done
            wait_until("work goes on", lambda: load.done > since + 5 or load.failures, 60)
        assert load.failures == []
    for name in SERVICES:
        # A lease that couldn't be renewed where a connection was lost is told for a moment.
        wait_until(f"{name} is well", partial(world.well, name), 30, 0.1)
        status = world.status(name)
        assert all(tier["reachable"] for tier in status["tiers"].values())
    metrics = world.all.services["proxy"].metrics()
    assert (
        'thermocline_certificate_not_after_seconds{file="proxy/tls.crt",subject="CN=proxy,O=tests"}'
        in metrics
    )
    must_not_tell(world)


def must_not_tell(world: World) -> None:
    """No planted secret stands in a log, status or metric of any service."""
    secrets = {login.password for login in accounts.SERVICES.values()}
    secrets |= {accounts.APPLICATION.password, ADMIN_PASSWORD, "another-services-secret"}
    secrets |= {
        line
        for made in world.keys
        for line in made.key.decode().splitlines()
        if "-----" not in line
    }
    for name in SERVICES:
        service = world.all.services[name]
        texts = {
            "log": service.process.log.read_text(),
            "status": service.get("/status")[1],
            "metrics": service.metrics(),
        }
        for place, text in texts.items():
            told = [secret for secret in secrets if secret in text]
            assert text, (name, place)
            assert not told, (name, place, told)


def test_bad_files_are_named_and_change_nothing(world: World, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes(world.authority.certificate)
    shown = served(world.all.port, authority)
    pair = world.authority.issue("proxy")
    stranger = world.issue(Authority("stranger"), "proxy")
    expired = world.authority.issue("proxy", begin=-3, days=2)
    early = world.authority.issue("proxy", begin=1)
    world.keys += [pair, expired, early]
    proxy = world.files / "proxy"
    bad: list[tuple[bytes, bytes, str]] = [
        (pair.key, pair.certificate, "proxy/tls.crt (key tls.crt of Secret proxy, spec.proxy.tls.certificateSecretRef) holds a private key"),
        (pair.certificate, stranger.key, "proxy/tls.key (key tls.key of Secret proxy, spec.proxy.tls.certificateSecretRef) holds the private key of another"),
        (b"", pair.key, "proxy/tls.crt (key tls.crt of Secret proxy, spec.proxy.tls.certificateSecretRef) is empty"),
        (expired.certificate, expired.key, "expired on"),
        (early.certificate, early.key, "isn't valid before"),
    ]  # fmt: skip
    for certificate, key, text in bad:
        put(proxy / "tls.crt", certificate)
        put(proxy / "tls.key", key)

        def told(text: str = text) -> bool:
            return text in world.status("proxy")["problems"].get("credentials", "")

        wait_until(text, told, 30, 0.1)
        assert served(world.all.port, authority) == shown
    (proxy / "tls.crt").unlink()
    wait_until(
        "missing", lambda: "is missing" in world.status("proxy")["problems"]["credentials"], 30, 0.1
    )
    with world.application(authority) as client:
        client.shop.orders.insert_one({"createdAt": dt.datetime.now(dt.UTC)})
    put(proxy / "tls.crt", pair.certificate)
    put(proxy / "tls.key", pair.key)
    wait_until("mended", lambda: "credentials" not in world.status("proxy")["problems"], 30, 0.1)
    assert served(world.all.port, authority) != shown
    # A password that is wrong everywhere: told, without it.
    plain = world.all.client(serverSelectionTimeoutMS=2_000)
    with plain, pytest.raises(ConnectionFailure):
        plain.admin.command("ping")
    log = world.all.services["proxy"].process.log
    wait_until(
        "complaint", lambda: "it doesn't speak TLS, which this port wants" in log.read_text(), 10
    )
    must_not_tell(world)

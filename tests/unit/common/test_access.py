"""Certificates and log-ins that are renewed in place: contexts shake hands in memory, no server runs."""

import dataclasses
import ssl
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous import auth
from pymongo.errors import OperationFailure

from support.pki import Authority, put
from thermocline_common.access import OVERLAP_SECONDS, Access, Login, TierAccess, TierClient
from thermocline_common.coverage import Tier
from thermocline_common.credentials import read_all
from thermocline_common.errors import ConfigError
from thermocline_common.spec.manifest import parse_manifest
from thermocline_common.spec.models import Manifest


def manifest(options: str = "&tls=true", **proxy: Any) -> Manifest:
    return parse_manifest(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "x"},
            "spec": {
                "archive": {"uri": f"mongodb://a.example/?replicaSet=a{options}"},
                "fastTier": {"uri": "mongodb://f/?replicaSet=f"},
                **({"proxy": proxy} if proxy else {}),
            },
        }
    )


def shake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """A handshake in memory; the client's side. Raises ``ssl.SSLError``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    one.getpeercert(binary_form=True)
    assert one.version() is not None
    return one


class World:
    """An archive with a server certificate, and the credentials directory of a service."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority("first")
        put(directory / "archive" / "ca.crt", self.authority.certificate)
        self.authority.issue("client").write(directory / "archive")
        self.authority.issue("proxy").write(directory / "proxy")

    def server(self, authority: Authority, host: str = "a.example") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = authority.issue("server", [host])
        path = self.directory / "server.pem"
        path.write_bytes(pair.both)
        context.load_cert_chain(path)
        return context


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_authorities_are_renewed_in_place_and_two_count_during_a_change(world: World) -> None:
    resource = manifest()
    access = Access.load(resource, world.directory)
    context = access.tiers[Tier.ARCHIVE].context
    assert context is not None
    assert isinstance(context, ssl.SSLContext)
    old, new = world.authority, Authority("second")
    assert shake(context, world.server(old), "a.example").version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(context, world.server(new), "a.example")
    put(world.directory / "archive" / "ca.crt", old.certificate + new.certificate)
    access.renew(resource, read_all(resource, world.directory, listener=False))
    for authority in (old, new):
        shake(context, world.server(authority), "a.example")
    put(world.directory / "archive" / "ca.crt", new.certificate)
    access.renew(resource, read_all(resource, world.directory, listener=False))
    shake(context, world.server(new), "a.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(context, world.server(old), "a.example")
    assert access.generation == 3


@pytest.mark.parametrize(
    ("options", "host", "right"),
    [
        ("&tls=true", "a.example", True),
        ("&tls=true", "b.example", False),
        ("&tls=true&tlsAllowInvalidHostnames=true", "b.example", True),
        ("&tls=true&tlsAllowInvalidCertificates=true", "b.example", True),
        ("&tls=true&tlsInsecure=true", "b.example", True),
    ],
)
def test_host_names_are_checked_unless_the_uri_says_otherwise(
    world: World, options: str, host: str, right: bool
) -> None:
    context = Access.load(manifest(options), world.directory).tiers[Tier.ARCHIVE].context
    assert context is not None
    if right:
        shake(context, world.server(world.authority), host)
        return
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(context, world.server(world.authority), host)


def test_a_stranger_is_taken_only_where_the_uri_takes_anybody(world: World) -> None:
    stranger = world.server(Authority("stranger"))
    for options, right in (("", False), ("&tlsAllowInvalidHostnames=true", False),
                           ("&tlsAllowInvalidCertificates=true", True), ("&tlsInsecure=true", True)):  # fmt: skip
        context = (
            Access.load(manifest(f"&tls=true{options}"), world.directory)
            .tiers[Tier.ARCHIVE]
            .context
        )
        assert context is not None
        if right:
            shake(context, stranger, "a.example")
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                shake(context, stranger, "a.example")


def client_of(world: World, pair: bytes | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=world.authority.certificate.decode())
    if pair is not None:
        path = world.directory / "client.pem"
        path.write_bytes(pair)
        context.load_cert_chain(path)
    return context


def test_the_ports_certificate_is_renewed_in_place(world: World) -> None:
    resource = manifest()
    access = Access.load(resource, world.directory, listener=True)
    assert access.listener is not None
    first = shake(client_of(world), access.listener, "localhost").getpeercert(binary_form=True)
    world.authority.issue("proxy").write(world.directory / "proxy")
    access.renew(resource, read_all(resource, world.directory, listener=True))
    second = shake(client_of(world), access.listener, "127.0.0.1").getpeercert(binary_form=True)
    assert first != second


def test_old_versions_of_tls_are_refused_on_both_sides(world: World) -> None:
    access = Access.load(manifest(), world.directory, listener=True)
    own, port = access.tiers[Tier.ARCHIVE].context, access.listener
    assert own is not None
    assert port is not None
    assert own.current.minimum_version is ssl.TLSVersion.TLSv1_2
    assert port.current.minimum_version is ssl.TLSVersion.TLSv1_2
    newest = client_of(world)
    newest.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(newest, port, "localhost").version() == "TLSv1.2"


def test_the_port_asks_for_certificates_where_an_authority_of_clients_is_given(
    world: World,
) -> None:
    put(world.directory / "proxy" / "ca.crt", world.authority.certificate)
    port = Access.load(manifest(), world.directory, listener=True).listener
    assert port is not None
    shake(client_of(world, world.authority.issue("app").both), port, "localhost")
    for pair in (None, Authority("stranger").issue("app").both):
        with pytest.raises(ssl.SSLError):
            shake(client_of(world, pair), port, "localhost")


def test_nothing_changes_where_something_can_not_be_used(world: World) -> None:
    resource = manifest()
    access = Access.load(resource, world.directory, listener=True)
    before = access.tiers[Tier.ARCHIVE].context
    assert before is not None
    current = before.current
    (world.directory / "proxy" / "tls.crt").unlink()
    (world.directory / "proxy" / "tls.key").unlink()
    put(world.directory / "archive" / "username", b"me")
    put(world.directory / "archive" / "password", b"secret")
    found = read_all(resource, world.directory, listener=True)
    with pytest.raises(ConfigError, match=r"archive tier's username and password have appeared"):
        access.renew(resource, found)
    for name in ("username", "password"):
        (world.directory / "archive" / name).unlink()
    with pytest.raises(ConfigError, match=r"certificate of the proxy's port are gone: restart"):
        access.renew(resource, read_all(resource, world.directory, listener=True))
    assert before.current is current
    assert access.generation == 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pairs(login: Login) -> list[tuple[str, str]]:
    return list(login.pairs)


def test_the_old_password_is_second_until_the_new_one_was_taken_for_a_while() -> None:
    clock = Clock()
    login = Login("me", "one", clock)
    old, new = ("me", "one"), ("me", "two")
    assert pairs(login) == [old]
    login.renew("me", "one")
    assert pairs(login) == [old]
    login.renew("me", "two")
    clock.now += 10 * OVERLAP_SECONDS
    assert pairs(login) == [new, old]  # nobody took the new one yet
    login.accepted(old)
    clock.now += 10 * OVERLAP_SECONDS
    assert pairs(login) == [new, old]
    login.accepted(new)
    clock.now += OVERLAP_SECONDS / 2
    login.accepted(new)
    assert pairs(login) == [new, old]
    clock.now += OVERLAP_SECONDS / 2
    assert pairs(login) == [new]


def test_a_change_that_is_taken_back_tries_what_is_in_the_file_first() -> None:
    login = Login("me", "one", Clock())
    login.renew("me", "two")
    login.renew("me", "one")
    assert pairs(login) == [("me", "one"), ("me", "two")]
    login.renew("other", "three")
    assert pairs(login) == [("other", "three"), ("me", "one")]


class FakeServer:
    """Takes one password, in place of PyMongo's SCRAM."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, password: str) -> None:
        self.password = password
        self.asked: list[tuple[str, str]] = []
        self.error = 18
        monkeypatch.setitem(vars(auth)["_AUTH_MAP"], "DEFAULT", self.log_in)

    async def log_in(self, credentials: Any, connection: Any) -> None:
        self.asked.append((credentials.username, credentials.password))
        assert credentials.source == "admin"
        if credentials.password != self.password:
            raise OperationFailure("Authentication failed.", self.error)


async def test_a_connection_tries_each_password_once(monkeypatch: pytest.MonkeyPatch) -> None:
    access = TierAccess(None, Login("me", "one"))
    async with TierClient("mongodb://h/", access, username="me", password="one") as client:
        server = FakeServer(monkeypatch, "one")
        given = client.options.pool_options._credentials
        assert given is not None
        assert given.password is None
        await auth.authenticate(given, None)  # type: ignore[arg-type]
        assert access.login is not None
        access.login.renew("me", "two")
        await auth.authenticate(given, None)  # type: ignore[arg-type]
        assert server.asked == [("me", "one"), ("me", "two"), ("me", "one")]
        server.password = "three"
        with pytest.raises(OperationFailure) as caught:
            await auth.authenticate(given, None)  # type: ignore[arg-type]
        assert caught.value.code == 18
        server.asked.clear()
        server.error = 11600  # shutting down: another password won't help
        with pytest.raises(OperationFailure):
            await auth.authenticate(given, None)  # type: ignore[arg-type]
        assert len(server.asked) == 1


def test_pymongo_still_keeps_its_options_where_we_put_ours(world: World) -> None:
    access = Access.load(manifest(), world.directory).tiers[Tier.ARCHIVE]
    client = TierClient("mongodb://h/", access, tls=True)
    assert vars(client)["_options"].pool_options._ssl_context is access.context
    assert client.options.pool_options is client._topology._settings.pool_options
    assert dataclasses.is_dataclass(access)


async def test_options_that_dns_brings_along_do_not_undo_ours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ``mongodb+srv`` PyMongo makes its options anew, once DNS has answered."""

    async def resolved(client: Any) -> None:
        made: AsyncMongoClient[Any] = AsyncMongoClient(
            "mongodb://h/", tls=True, username="me", password="one"
        )
        vars(client)["_options"] = made.options

    monkeypatch.setattr(AsyncMongoClient, "_resolve_srv", resolved)
    access = Access.load(manifest(), world.directory).tiers[Tier.ARCHIVE]
    access.login = Login("me", "one")
    client = TierClient("mongodb://h/", access, tls=True, username="me", password="one")
    await client._resolve_srv()
    options = vars(client)["_options"].pool_options
    assert options._ssl_context is access.context
    assert options._credentials.password is None

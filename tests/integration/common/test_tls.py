"""A tier behind TLS: authorities, client certificate and key as Secrets hold them; renewed while in use."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import ServerSelectionTimeoutError

from support.mongod import ReplicaSet
from support.pki import Authority, put
from thermocline_common import tier_watch
from thermocline_common.access import Access
from thermocline_common.clients import close_tiers, open_client, open_tiers
from thermocline_common.coverage import Tier
from thermocline_common.credentials import read_all
from thermocline_common.errors import ConfigError
from thermocline_common.health import Problems
from thermocline_common.spec.manifest import parse_manifest
from thermocline_common.spec.models import Manifest

pytestmark = pytest.mark.integration
KEY = "dGVzdHMta2V5ZmlsZQ=="


class World:
    """A replica set that takes nothing but TLS with client certificates, and a service's files."""

    def __init__(
        self, make: Callable[..., ReplicaSet], directory: Path, keyfile: str | None
    ) -> None:
        self.authority = Authority("first")
        self.pki = directory / "pki"
        self.files = directory / "credentials"
        self.serve(self.authority.certificate, self.authority)
        self.use(self.authority.certificate, self.authority)
        self.members = make(
            "tls",
            keyfile=keyfile,
            # Switched to requireTLS below: the set itself is set up without TLS.
            extra=["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", str(self.pki / "server.pem"),
                   "--tlsCAFile", str(self.pki / "ca.crt")],
        )  # fmt: skip

    def require_tls(self) -> None:
        with self.members.client() as client:
            for mode in ("preferTLS", "requireTLS"):
                client.admin.command("setParameter", 1, tlsMode=mode)

    def serve(
        self, authorities: bytes, signer: Authority, hosts: tuple[str, ...] = ("127.0.0.1",)
    ) -> None:
        """The server's files."""
        put(self.pki / "ca.crt", authorities)
        put(self.pki / "server.pem", signer.issue("server", hosts, organization="servers").both)

    def use(self, authorities: bytes, signer: Authority) -> None:
        """The service's files."""
        put(self.files / "archive" / "ca.crt", authorities)
        signer.issue("client").write(self.files / "archive")

    def manifest(self, options: str = "", **fields: Any) -> Manifest:
        return parse_manifest(
            {
                "apiVersion": "thermocline.io/v1alpha1",
                "kind": "TieredReplicaSet",
                "metadata": {"name": "x"},
                "spec": {
                    "archive": {
                        "uri": f"{self.members.uri}&tls=true&heartbeatFrequencyMS=500{options}", **fields
                    },
                    "fastTier": {"uri": "mongodb://f/?replicaSet=f"},
                },
            }
        )  # fmt: skip

    def open(self, access: Access, options: str = "") -> AsyncMongoClient[dict[str, Any]]:
        spec = self.manifest(options).spec.archive
        return open_client(Tier.ARCHIVE, spec, access.tiers[Tier.ARCHIVE], "test")

    async def set_name(self, options: str = "") -> str:
        """What a client that is opened now is told."""
        access = Access.load(self.manifest(options), self.files)
        async with self.open(access, options) as client:
            return str((await client.admin.command("hello"))["setName"])


@pytest.fixture
def world(make_replica_set: Callable[..., ReplicaSet], tmp_path: Path) -> World:
    made = World(make_replica_set, tmp_path, None)
    made.require_tls()
    return made


async def test_connects_with_files_of_secrets_and_refuses_a_strange_server(world: World) -> None:
    base = world.files / "archive"
    assert await world.set_name() == "tls"
    pair = (base / "tls.crt").read_bytes() + (base / "tls.key").read_bytes()
    (base / "tls.crt").unlink()
    (base / "tls.key").unlink()
    put(base / "tls.pem", pair)
    assert await world.set_name() == "tls"
    (base / "tls.pem").unlink()  # the server asks for a client certificate
    with pytest.raises(ServerSelectionTimeoutError):
        await world.set_name("&connectTimeoutMS=1000")
    put(base / "tls.pem", pair)
    put(base / "ca.crt", Authority("somebody").certificate)
    with pytest.raises(ServerSelectionTimeoutError, match=r"(?i)certificate verify failed"):
        await world.set_name()
    assert await world.set_name("&tlsAllowInvalidCertificates=true") == "tls"
    put(base / "tls.key", Authority("somebody").issue("client").key)
    (base / "tls.pem").unlink()
    put(base / "tls.crt", pair)
    with pytest.raises(ConfigError, match=r"archive/tls.key holds the private key of another"):
        await world.set_name()


async def test_the_servers_name_is_checked(world: World) -> None:
    world.serve(world.authority.certificate, world.authority, ("elsewhere.example",))
    with world.members.client(
        tls=True, tlsCAFile=str(world.pki / "ca.crt"), tlsAllowInvalidHostnames=True,
        tlsCertificateKeyFile=str(world.pki / "server.pem"),
    ) as client:  # fmt: skip
        client.admin.command("rotateCertificates", 1)
    with pytest.raises(ServerSelectionTimeoutError, match=r"(?i)(hostname|ip address) mismatch"):
        await world.set_name()
    assert await world.set_name("&tlsAllowInvalidHostnames=true") == "tls"


async def many(client: AsyncMongoClient[dict[str, Any]], count: int) -> None:
    """So many commands at once, each of which needs a connection."""
    slow = {"find": "one", "filter": {"$where": "sleep(150) || true"}}
    await asyncio.gather(*(client.shop.command(slow) for _ in range(count)))


async def test_authorities_certificates_and_passwords_are_renewed_under_a_client(
    make_replica_set: Callable[..., ReplicaSet], tmp_path: Path
) -> None:
    """Each step needs more connections than the one before, which are made with what is newest."""
    world = World(make_replica_set, tmp_path, KEY)
    first, second = world.authority, Authority("second")
    with world.members.client() as root:
        root.admin.command("createUser", "service", pwd="old-secret", roles=["root"])
        root.shop.one.insert_one({})
        put(world.files / "archive" / "username", b"service")
        put(world.files / "archive" / "password", b"old-secret")
        world.require_tls()
        manifest = world.manifest()
        access = Access.load(manifest, world.files)

        def renew() -> None:
            access.renew(manifest, read_all(manifest, world.files, listener=False))

        async with world.open(access) as client:
            await many(client, 1)
            both = first.certificate + second.certificate
            put(world.files / "archive" / "ca.crt", both)
            renew()
            world.serve(both, second)
            root.admin.command("rotateCertificates", 1)
            await many(client, 3)
            world.use(second.certificate, second)
            renew()
            world.serve(second.certificate, second)
            root.admin.command("rotateCertificates", 1)
            await many(client, 5)
            # The new password is in the Secret before the server knows it, and after.
            put(world.files / "archive" / "password", b"new-secret")
            renew()
            await many(client, 7)
            root.admin.command("updateUser", "service", pwd="new-secret")
            await many(client, 9)
            login = access.tiers[Tier.ARCHIVE].login
            assert login is not None
            assert login._through is not None  # the new one was taken
            status = await client.admin.command("connectionStatus")
            assert status["authInfo"]["authenticatedUsers"] == [{"user": "service", "db": "admin"}]
            # Another user in its place: once services have taken it over, the first can be dropped.
            root.admin.command("createUser", "other", pwd="third-secret", roles=["root"])
            put(world.files / "archive" / "username", b"other")
            put(world.files / "archive" / "password", b"third-secret")
            before = access.credentials
            renew()
            await access.renew_connections(before)
            root.admin.command("dropUser", "service")
            await many(client, 9)
            status = await client.admin.command("connectionStatus")
            assert status["authInfo"]["authenticatedUsers"] == [{"user": "other", "db": "admin"}]


async def test_one_side_without_tls_is_named_in_the_status(
    world: World, archive: ReplicaSet
) -> None:
    async def told(uri: str, fast: str) -> dict[str, str | None]:
        document = world.manifest().model_dump(by_alias=True, mode="json", exclude_none=True)
        document["spec"] |= {"archive": {"uri": uri}, "fastTier": {"uri": fast}}
        manifest = parse_manifest(document)
        tiers = open_tiers(manifest, Access.load(manifest, world.files), "test")
        try:
            found = await tier_watch.look(tiers, Problems(), nothing)
        finally:
            await close_tiers(tiers)
        return {tier: status.error for tier, status in found.items()}

    async def nothing(_: Tier) -> list[object]:
        return []

    wait = "&connectTimeoutMS=2000"
    found = await told(f"{world.members.uri}{wait}", f"{archive.uri}&tls=true{wait}")
    assert "closed: if it wants TLS, add tls=true" in (found["archive"] or "")
    assert "take tls=true out of the URI" in (found["fast"] or "")
    assert "configured timeouts" not in str(found)


async def test_a_service_logs_in_with_its_certificate(world: World) -> None:
    root = {
        "tls": True,
        "tlsCAFile": str(world.pki / "ca.crt"),
        "tlsCertificateKeyFile": str(world.pki / "server.pem"),
    }
    async with world.members.async_client(**root) as client:
        user = {"user": "CN=client,O=tests", "db": "$external"}
        await client["$external"].command(
            "createUser", user["user"], roles=[{"role": "root", "db": "admin"}]
        )
        options = "&authMechanism=MONGODB-X509"
        access = Access.load(world.manifest(options), world.files)
        async with world.open(access, options) as own:
            status = await own.admin.command("connectionStatus")
            assert status["authInfo"]["authenticatedUsers"] == [user]
        await client["$external"].command("dropUser", user["user"])

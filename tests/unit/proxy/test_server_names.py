"""The name that a TLS handshake asks for (SNI): the member's own, of the proxy's connections and the services'."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.pki import Authority, put
from thermocline_common.access import Access
from thermocline_common.clients import open_client
from thermocline_common.coverage import Tier
from thermocline_common.spec.manifest import parse_manifest
from thermocline_common.spec.models import Manifest
from thermocline_proxy.pools import Pools
from thermocline_proxy.ports import Identity
from thermocline_proxy.times import TierClock
from thermocline_proxy.upstream import Broken, Endpoint

CA = Authority("tests")
SOMEBODY = Identity("admin", "somebody", "none", b"", b"")


class Member:
    """Shakes hands, keeps the name that it was asked for, and hangs up."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.came = asyncio.Event()
        self.port = 0

    def asked(self, _: object, name: str | None, __: ssl.SSLContext) -> None:
        self.names.append(name)
        self.came.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[Member]:
    made = Member()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = tmp_path / "member.pem"
    pair.write_bytes(CA.issue("member").both)
    context.load_cert_chain(pair)
    context.sni_callback = made.asked
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await asyncio.sleep(0.05)


def manifest(port: int) -> Manifest:
    spec = {
        "archive": {"uri": f"mongodb://localhost:{port}/?replicaSet=a&tls=true"},
        "fastTier": {"uri": "mongodb://f/?replicaSet=f"},
    }
    return parse_manifest(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "x"},
            "spec": spec,
        }
    )


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", "localhost"),
        ("127.0.0.1", None),
    ],  # addresses aren't names: RFC 6066, section 3
)
async def test_the_proxy_asks_a_member_for_its_own_name(
    member: Member, tmp_path: Path, host: str, expected: str | None
) -> None:
    put(tmp_path / "archive" / "ca.crt", CA.certificate)
    access = Access.load(manifest(member.port), tmp_path)
    endpoint = Endpoint(Tier.ARCHIVE, TierClock(), 4, tls=access.tiers[Tier.ARCHIVE].context)
    pools = Pools({Tier.ARCHIVE: endpoint})
    try:
        with contextlib.suppress(Broken, ConnectionError):
            pool = pools.pool(Tier.ARCHIVE, f"{host}:{member.port}", SOMEBODY)
            await pool.acquire(time.monotonic() + 10)
        assert member.names == [expected]
    finally:
        pools.close()


async def test_a_services_own_client_asks_for_it_too(member: Member, tmp_path: Path) -> None:
    put(tmp_path / "archive" / "ca.crt", CA.certificate)
    resource = manifest(member.port)
    access = Access.load(resource, tmp_path)
    client = open_client(
        Tier.ARCHIVE,
        resource.spec.archive,
        access.tiers[Tier.ARCHIVE],
        "tests",
        member=f"localhost:{member.port}",
    )
    async with client:
        ping = asyncio.create_task(client.admin.command("ping"))
        async with asyncio.timeout(30):
            await member.came.wait()
        ping.cancel()
        await asyncio.gather(ping, return_exceptions=True)
    assert set(member.names) == {"localhost"}

"""A tier behind TLS: authorities, client certificate and key as Secrets hold them."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from support.mongod import ReplicaSet
from thermocline_common.clients import open_client, read_credentials
from thermocline_common.coverage import Tier
from thermocline_common.errors import ConfigError
from thermocline_common.spec.models import TierSpec

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]


def openssl(*arguments: str, where: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=where, check=True, capture_output=True)


def authority(where: Path, name: str) -> None:
    where.mkdir(exist_ok=True)
    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
        "-keyout", "ca.key", "-out", "ca.crt", where=where,
    )  # fmt: skip


def certificate(where: Path, name: str) -> None:
    (where / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(
        "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/O=tests/CN={name}",
        "-keyout", f"{name}.key", "-out", f"{name}.csr", where=where,
    )  # fmt: skip
    openssl(
        "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "2", "-extfile", "san", "-out", f"{name}.crt", where=where,
    )  # fmt: skip


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    where = tmp_path / "pki"
    authority(where, "tests")
    certificate(where, "server")
    certificate(where, "client")
    for name in ("server", "client"):
        text = (where / f"{name}.crt").read_text() + (where / f"{name}.key").read_text()
        (where / f"{name}.pem").write_text(text)
    return where


async def test_connects_with_certificates_of_the_secrets_and_refuses_a_strange_server(
    make_replica_set: Callable[..., ReplicaSet], pki: Path, tmp_path: Path
) -> None:
    tls = make_replica_set(
        "tls",
        extra=["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", str(pki / "server.pem"),
               "--tlsCAFile", str(pki / "ca.crt")],
    )  # fmt: skip
    spec = TierSpec(uri=f"{tls.uri}&tls=true&heartbeatFrequencyMS=500")
    base = tmp_path / "credentials" / "archive"
    base.mkdir(parents=True)

    async def connect() -> dict[str, Any]:
        credentials = read_credentials(Tier.ARCHIVE, spec, base.parent)
        async with open_client(Tier.ARCHIVE, spec, credentials, "test") as client:
            return dict(await client.admin.command("hello"))

    shutil.copy(pki / "ca.crt", base / "ca.crt")
    shutil.copy(pki / "client.crt", base / "tls.crt")
    shutil.copy(pki / "client.key", base / "tls.key")
    assert (await connect())["setName"] == "tls"
    (base / "tls.crt").unlink()
    (base / "tls.key").unlink()
    shutil.copy(pki / "client.pem", base / "tls.pem")
    assert (await connect())["setName"] == "tls"
    (base / "tls.pem").unlink()  # the server asks for a client certificate
    with pytest.raises(ServerSelectionTimeoutError):
        await connect()
    shutil.copy(pki / "client.pem", base / "tls.pem")
    authority(pki / "other", "somebody")
    shutil.copy(pki / "other" / "ca.crt", base / "ca.crt")
    with pytest.raises(ServerSelectionTimeoutError, match=r"(?i)certificate verify failed"):
        await connect()
    shutil.copy(pki / "ca.crt", base / "ca.crt")
    shutil.copy(pki / "server.key", base / "tls.key")
    (base / "tls.pem").unlink()
    shutil.copy(pki / "client.crt", base / "tls.crt")
    with pytest.raises(ConfigError, match=r"(?i)key"):  # a key that belongs to another certificate
        await connect()

"""Credentials as files, and what a service's client is made of. Nothing connects."""

import stat
from pathlib import Path
from typing import Any

import pytest
from pymongo import ReadPreference

from thermocline_common import clients, logs
from thermocline_common.clients import close_tiers, open_client, open_tiers, read_credentials
from thermocline_common.coverage import Tier
from thermocline_common.errors import ConfigError
from thermocline_common.spec.manifest import parse_manifest
from thermocline_common.spec.models import SecretRef, TierSpec, TierTls

URI = "mongodb://h:1,[::1]:2/?replicaSet=rs0"
REF = SecretRef(name="x")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    known: set[str] = set()
    monkeypatch.setattr(logs, "_secrets", known)
    return known


def write(directory: Path, **files: str) -> Path:
    base = directory / "archive"
    base.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (base / name.replace("_", ".")).write_text(content)
    return directory


def test_user_and_password_without_their_last_newline(tmp_path: Path, secrets: set[str]) -> None:
    write(tmp_path, username="me\n", password=" p ss \r\n")
    found = read_credentials(Tier.ARCHIVE, TierSpec(uri=URI, credentials_secret_ref=REF), tmp_path)
    assert (found.username, found.password) == ("me", " p ss ")
    assert " p ss " not in repr(found)
    assert " p ss " in secrets


def test_nothing_is_needed_where_the_spec_names_nothing(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        found = read_credentials(Tier.ARCHIVE, TierSpec(uri=URI), directory)
        assert found == clients.Credentials()


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        ({}, {"credentials_secret_ref": REF}, "archive/username is missing: spec.archive.credentialsSecretRef"),
        ({"username": "u"}, {"credentials_secret_ref": REF}, "archive/password is missing"),
        ({"password": "geheim"}, {}, "archive/username is missing"),
        ({"username": "u", "password": "\n"}, {}, "archive/password is empty"),
        ({}, {"tls": TierTls(ca_secret_ref=REF)}, "archive/ca.crt is missing: spec.archive.tls.caSecretRef"),
        ({"ca_crt": ""}, {}, "archive/ca.crt is empty"),
        ({}, {"tls": TierTls(certificate_secret_ref=REF)}, "archive/tls.crt is missing: spec.archive.tls"),
        ({"tls_crt": "x"}, {}, "archive/tls.key is missing beside the other half"),
        ({"tls_key": "x"}, {}, "archive/tls.crt is missing beside the other half"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_by_file_and_field(
    tmp_path: Path, files: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_credentials(Tier.ARCHIVE, TierSpec(uri=URI, **fields), write(tmp_path, **files))
    assert message in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_named_secrets_need_a_directory() -> None:
    with pytest.raises(ConfigError, match=r"spec\.fastTier names Secrets; .*--credentials DIR"):
        read_credentials(Tier.FAST, TierSpec(uri=URI, credentials_secret_ref=REF), None)


async def test_a_client_reads_the_primary_and_writes_to_the_majority() -> None:
    uri = f"{URI}&readPreference=secondary&readPreferenceTags=a:b&heartbeatFrequencyMS=2000"
    async with open_client(Tier.FAST, TierSpec(uri=uri), clients.Credentials(), "app") as client:
        assert client.read_preference == ReadPreference.PRIMARY
        assert client.write_concern.document == {"w": "majority"}
        assert client.codec_options.tz_aware
        options = client.options
        assert options.replica_set_name == "rs0"
        assert options.server_selection_timeout == 5
        assert options.retry_reads
        assert options.retry_writes
        assert options.pool_options.connect_timeout == 5


async def test_a_member_is_connected_to_directly() -> None:
    spec = TierSpec(uri=URI)
    client = open_client(Tier.FAST, spec, clients.Credentials(), "app", member="h:7")
    async with client:
        assert client.options.direct_connection
        assert client.options.replica_set_name is None


async def test_certificates_that_cannot_be_read_are_told_without_their_content(
    tmp_path: Path,
) -> None:
    write(tmp_path, tls_crt="not a certificate", tls_key="geheim-key")
    spec = TierSpec(uri=f"{URI}&tls=true")
    with pytest.raises(ConfigError) as caught:
        open_client(Tier.ARCHIVE, spec, read_credentials(Tier.ARCHIVE, spec, tmp_path), "app")
    assert "the archive tier's connection can't be set up" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_certificate_and_key_are_joined_for_us_alone_and_removed(tmp_path: Path) -> None:
    write(tmp_path, tls_crt="CERT\n\n", tls_key="KEY\n")
    found = read_credentials(Tier.ARCHIVE, TierSpec(uri=URI), tmp_path)
    with clients._one_pem(found) as path:
        assert path is not None
        assert Path(path).read_text() == "CERT\nKEY\n"
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert not Path(path).exists()


def test_one_pem_file_wins_and_is_used_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, tls_pem="BOTH", tls_crt="CERT", tls_key="KEY")
    with clients._one_pem(read_credentials(Tier.ARCHIVE, TierSpec(uri=URI), tmp_path)) as path:
        assert path == str(tmp_path / "archive" / "tls.pem")
    assert Path(path or "").read_text() == "BOTH"


async def test_both_tiers_have_their_own_files(tmp_path: Path) -> None:
    for folder in ("archive", "fast-tier"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "username").write_text(folder)
        (tmp_path / folder / "password").write_text("secret")
    manifest = parse_manifest(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "x"},
            "spec": {
                "archive": {"uri": "mongodb://a/?replicaSet=a"},
                "fastTier": {"uri": "mongodb://f/?replicaSet=f&authSource=other"},
            },
        }
    )
    tiers = open_tiers(manifest, tmp_path, "app")
    try:
        for client, user, source in (
            (tiers.archive, "archive", "admin"),
            (tiers.fast, "fast-tier", "other"),
        ):
            login = client.options.pool_options._credentials
            assert login is not None
            assert (login.username, login.source) == (user, source)
    finally:
        await close_tiers(tiers)

"""The credentials directory: what is there, and how what is wrong is named. Nothing connects."""

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.pki import Authority, put
from thermocline_common import logs
from thermocline_common.coverage import Tier
from thermocline_common.credential_watch import described, refusal, warnings
from thermocline_common.credentials import (
    AllCredentials,
    Credentials,
    read_credentials,
    read_listener,
)
from thermocline_common.errors import ConfigError
from thermocline_common.spec.models import ProxySpec, ProxyTls, SecretRef, TierSpec, TierTls

URI = "mongodb://h:1,[::1]:2/?replicaSet=rs0&tls=true"
REF = SecretRef(name="x")
NOW = dt.datetime.now(dt.UTC)
CA = Authority("tests")
PAIR = CA.issue("client")
OTHER = CA.issue("somebody else")
LEGACY = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    known: set[str] = set()
    monkeypatch.setattr(logs, "_secrets", known)
    return known


def write(directory: Path, folder: str = "archive", **files: bytes | str) -> Path:
    base = directory / folder
    base.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content.encode() if isinstance(content, str) else content
        put(base / name.replace("_", "."), text)
    return directory


def tier(**fields: Any) -> TierSpec:
    return TierSpec(uri=URI, **fields)


def test_user_and_password_without_their_last_newline(tmp_path: Path, secrets: set[str]) -> None:
    write(tmp_path, username="me\n", password=" p ss \r\n")
    found = read_credentials(Tier.ARCHIVE, tier(credentials_secret_ref=REF), tmp_path)
    assert (found.username, found.password) == ("me", " p ss ")
    assert " p ss " not in repr(found)
    assert " p ss " in secrets


def test_nothing_is_needed_where_the_spec_names_nothing(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        assert read_credentials(Tier.ARCHIVE, tier(), directory) == Credentials()
        assert read_listener(ProxySpec(), directory) == Credentials()


OF_ARCHIVE = "of Secret x, spec.archive"
BAD_FILES: list[tuple[Mapping[str, Any], Mapping[str, Any], str]] = [
    ({}, {"credentials_secret_ref": REF}, f"archive/username (key username {OF_ARCHIVE}.credentialsSecretRef) is missing"),
    ({"username": "u"}, {"credentials_secret_ref": REF}, f"(key password {OF_ARCHIVE}.credentialsSecretRef) is missing"),
    ({"password": "geheim"}, {}, "archive/username is missing"),
    ({"username": "u", "password": "\n"}, {}, "archive/password is empty"),
    ({"username": "u", "password": b"\xff"}, {}, "archive/password can't be read: it is not UTF-8"),
    ({}, {"tls": TierTls(ca_secret_ref=REF)}, f"archive/ca.crt (key ca.crt {OF_ARCHIVE}.tls.caSecretRef) is missing"),
    ({"ca_crt": ""}, {}, "archive/ca.crt is empty"),
    ({"ca_crt": "geheim"}, {}, "archive/ca.crt holds no certificate"),
    ({"ca_crt": PAIR.key}, {}, "archive/ca.crt holds a private key, but no certificate"),
    ({"ca_crt": CA.certificate[:200]}, {}, "archive/ca.crt holds a certificate that can't be read"),
    ({}, {"tls": TierTls(certificate_secret_ref=REF)},
     f"archive/tls.crt (key tls.crt {OF_ARCHIVE}.tls.certificateSecretRef) is missing, and so is tls.pem"),
    ({"tls_crt": PAIR.certificate}, {}, "archive/tls.key is missing beside the other half"),
    ({"tls_key": PAIR.key}, {}, "archive/tls.crt is missing beside the other half"),
    ({"tls_crt": PAIR.key, "tls_key": PAIR.certificate}, {"tls": TierTls(certificate_secret_ref=REF)},
     f"archive/tls.crt (key tls.crt {OF_ARCHIVE}.tls.certificateSecretRef) holds a private key, but no certificate: was it swapped"),
    ({"tls_crt": PAIR.certificate, "tls_key": PAIR.certificate}, {}, "archive/tls.key holds a certificate, but no private key"),
    ({"tls_crt": PAIR.certificate, "tls_key": OTHER.key}, {}, "archive/tls.key holds the private key of another certificate"),
    ({"tls_crt": PAIR.certificate, "tls_key": PAIR.key[:90]}, {}, "archive/tls.key holds a private key that can't be read"),
    ({"tls_crt": PAIR.certificate, "tls_key": LEGACY}, {}, "archive/tls.key holds an encrypted key"),
    ({"tls_pem": PAIR.certificate}, {}, "archive/tls.pem holds a certificate, but no private key"),
    ({"tls_pem": PAIR.key}, {}, "archive/tls.pem holds a private key, but no certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "fields", "message"), BAD_FILES)
def test_what_is_wrong_is_named_by_file_and_secret(
    tmp_path: Path, files: Mapping[str, Any], fields: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_credentials(Tier.ARCHIVE, tier(**fields), write(tmp_path, **files))
    assert message in str(caught.value)
    chain = [caught.value, caught.value.__cause__]
    for secret in ("geheim", PAIR.key.split(b"\n")[1].decode(), OTHER.key.split(b"\n")[1].decode()):
        assert not any(secret in repr(error) for error in chain)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "archive" / "ca.crt").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"archive/ca.crt can't be read: Is a directory"):
        read_credentials(Tier.ARCHIVE, tier(), tmp_path)


def test_named_secrets_need_a_directory() -> None:
    with pytest.raises(ConfigError, match=r"spec\.fastTier names Secrets; .*--credentials DIR"):
        read_credentials(Tier.FAST, tier(credentials_secret_ref=REF), None)
    spec = ProxySpec(tls=ProxyTls(certificate_secret_ref=REF))
    with pytest.raises(ConfigError, match=r"spec\.proxy\.tls names Secrets"):
        read_listener(spec, None)


def test_one_pem_file_goes_before_the_pair(tmp_path: Path) -> None:
    write(
        tmp_path, tls_pem=PAIR.key + PAIR.certificate, tls_crt=OTHER.certificate, tls_key=OTHER.key
    )
    found = read_credentials(Tier.ARCHIVE, tier(), tmp_path)
    assert found.certificate is found.key
    assert found.certificate is not None
    assert found.certificate.certificates[0].subject == "CN=client,O=tests"


def test_a_bundle_of_authorities(tmp_path: Path) -> None:
    bundle = "# é\n".encode() + CA.certificate + b"\n" + Authority("next").certificate
    write(tmp_path, ca_crt=bundle)
    found = read_credentials(Tier.ARCHIVE, tier(), tmp_path).authorities
    assert found is not None
    assert [one.subject for one in found.certificates] == ["CN=tests", "CN=next"]


LISTENER: list[tuple[Mapping[str, Any], ProxyTls, str]] = [
    ({}, ProxyTls(certificate_secret_ref=REF),
     "proxy/tls.crt (key tls.crt of Secret x, spec.proxy.tls.certificateSecretRef) is missing"),
    ({"tls_crt": PAIR.certificate, "tls_key": PAIR.key}, ProxyTls(clientCASecretRef=REF),
     "proxy/ca.crt (key ca.crt of Secret x, spec.proxy.tls.clientCASecretRef) is missing"),
    ({"ca_crt": CA.certificate}, ProxyTls(), "proxy/ca.crt has no effect without a certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "named", "message"), LISTENER)
def test_a_port_never_goes_without_what_it_should_have(
    tmp_path: Path, files: Mapping[str, Any], named: ProxyTls, message: str
) -> None:
    write(tmp_path, "proxy", **files)
    with pytest.raises(ConfigError) as caught:
        read_listener(ProxySpec(tls=named), tmp_path)
    assert message in str(caught.value)


Made = Callable[..., AllCredentials]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Credentials with a certificate of so many days, begun so long ago, for the archive."""

    def make(
        begin: float = -1, days: float = 30, authorities: bytes = CA.certificate
    ) -> AllCredentials:
        pair = CA.issue("client", begin=begin, days=days)
        write(tmp_path, tls_crt=pair.certificate, tls_key=pair.key, ca_crt=authorities)
        return AllCredentials({Tier.ARCHIVE: read_credentials(Tier.ARCHIVE, tier(), tmp_path)})

    return make


def test_what_is_expired_or_near_its_end_is_told_by_file(made: Made) -> None:
    assert warnings(made(), NOW) is None
    assert "archive/tls.crt: CN=client,O=tests expired on 20" in (warnings(made(-3, 2), NOW) or "")
    assert "isn't valid before 20" in (warnings(made(1, 2), NOW) or "")
    assert "CN=client,O=tests ends on 20" in (warnings(made(-28, 30), NOW) or "")
    assert warnings(made(-26, 30), NOW) is None


def test_an_expired_authority_matters_only_if_no_other_counts(made: Made) -> None:
    old = Authority("old", begin=-9, days=3).certificate
    assert warnings(made(authorities=old + CA.certificate), NOW) is None
    assert "archive/ca.crt: CN=old expired on" in (warnings(made(authorities=old), NOW) or "")


def test_files_that_do_not_count_yet_or_any_more_replace_no_good_ones(made: Made) -> None:
    good, expired, early = made(), made(-3, 2), made(1, 2)
    assert refusal(good, expired, NOW) is None
    assert refusal(good, made(), NOW) is None
    assert refusal(early, expired, NOW) is None  # nothing is lost
    for bad in (expired, early):
        text = refusal(bad, good, NOW) or ""
        assert text.startswith("the new files are not used: ")
        assert "archive/tls.crt" in text


def test_every_certificate_is_described_for_the_status(made: Made) -> None:
    found = described(made(authorities=CA.certificate + Authority("next").certificate))
    assert [(one["file"], one["subject"]) for one in found] == [
        ("archive/ca.crt", "CN=tests"),
        ("archive/ca.crt", "CN=next"),
        ("archive/tls.crt", "CN=client,O=tests"),
    ]
    assert all(one["notBefore"] < one["notAfter"] for one in found)

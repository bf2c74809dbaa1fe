"""PyMongo clients of both tiers, logged in as a service's own user."""

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from thermocline_common import driver_waits, logs
from thermocline_common.coverage import Tier
from thermocline_common.errors import ConfigError
from thermocline_common.spec.models import Manifest, TierSpec
from thermocline_common.tiers import Tiers
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place
from thermocline_common.uri.render import driver_options, seeds

log = logging.getLogger(__name__)

DIRECTORIES: Final[Mapping[Tier, str]] = {Tier.ARCHIVE: "archive", Tier.FAST: "fast-tier"}
"""Where a tier's files lie below the credentials directory."""

SELECTION_MS: Final = 5_000
"""How long an operation waits for a member: short enough for a work loop to beat and to say what is wrong."""
CONNECT_MS: Final = 5_000
"""Also bounds how long a monitor waits for a silent member, before its connections are given up."""

CLOSE_SECONDS: Final = 10.0

_TAKEN_OVER: Final = (
    "authSource", "authMechanism", "connectTimeoutMS", "heartbeatFrequencyMS", "serverMonitoringMode",
    "srvServiceName", "tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames",
    "tlsDisableOCSPEndpointCheck",
)  # fmt: skip
"""Options of the URI that a service's own client uses; those on reads are for the applications' reads."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What lies in a tier's directory. ``ca_file`` and the certificate's are paths; contents aren't kept."""

    username: str | None = None
    password: str | None = None
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r}, password=***)"


def _text(path: Path) -> str | None:
    """The file's text without the newline that editors and ``echo`` put behind it; None: no such file."""
    try:
        text = path.read_text("utf-8").rstrip("\r\n")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    if not text:
        raise ConfigError(f"{path} is empty")
    return text


def _file(path: Path) -> Path | None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    if not size:
        raise ConfigError(f"{path} is empty")
    return path


def read_credentials(tier: Tier, spec: TierSpec, directory: Path | None) -> Credentials:
    """What the tier's directory holds. Raises :class:`ConfigError` where ``spec`` asks for what isn't there."""
    field = f"spec.{'archive' if tier is Tier.ARCHIVE else 'fastTier'}"
    if directory is None:
        if spec.credentials_secret_ref or spec.tls.ca_secret_ref or spec.tls.certificate_secret_ref:
            raise ConfigError(f"{field} names Secrets; give their files with --credentials DIR")
        return Credentials()
    base = directory / DIRECTORIES[tier]
    username, password = _text(base / "username"), _text(base / "password")
    if password is not None:
        logs.add_secret(password)
    if (username is None) != (password is None) or (spec.credentials_secret_ref and not username):
        missing = base / ("username" if username is None else "password")
        reason = f": {field}.credentialsSecretRef needs it" if spec.credentials_secret_ref else ""
        raise ConfigError(f"{missing} is missing{reason}")
    ca_file = _file(base / "ca.crt")
    if spec.tls.ca_secret_ref and ca_file is None:
        raise ConfigError(f"{base / 'ca.crt'} is missing: {field}.tls.caSecretRef needs it")
    certificate, key = _file(base / "tls.pem"), None
    if certificate is None:
        certificate, key = _file(base / "tls.crt"), _file(base / "tls.key")
        if (certificate is None) != (key is None):
            missing = base / ("tls.crt" if certificate is None else "tls.key")
            raise ConfigError(f"{missing} is missing beside the other half of the certificate")
    if spec.tls.certificate_secret_ref and certificate is None:
        raise ConfigError(
            f"{base / 'tls.crt'} is missing: {field}.tls.certificateSecretRef needs tls.crt and "
            "tls.key, or tls.pem"
        )
    return Credentials(username, password, ca_file, certificate, key)


@contextlib.contextmanager
def _one_pem(credentials: Credentials) -> Iterator[str | None]:
    """The path of certificate and key in one file, as PyMongo wants them; it reads it when it is made."""
    if credentials.certificate is None:
        yield None
        return
    if credentials.key is None:
        yield str(credentials.certificate)
        return
    handle, path = tempfile.mkstemp(prefix="thermocline-", suffix=".pem")  # only we can read it
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(credentials.certificate.read_bytes().rstrip(b"\n") + b"\n")
            file.write(credentials.key.read_bytes())
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def open_client(
    tier: Tier,
    spec: TierSpec,
    credentials: Credentials,
    app_name: str,
    *,
    member: str | None = None,
    most: int | None = None,
) -> AsyncMongoClient[dict[str, Any]]:
    """A client of one tier; nothing is connected yet. Raises :class:`ConfigError` for unusable files or URI.

    Reads go to the primary, writes wait for the majority, whatever the URI says: the read
    preference there is the clients'. Reads and writes are retried once by the driver: every write
    of the services is either idempotent or carries its own check, and a lease is measured from
    before its first request, so a repeated read only makes it shorter. ``member``: connect to this
    ``host:port`` alone, whatever it is. ``most``: connections to one member, at most, besides two
    that watch it.
    """
    driver_waits.mend()
    connection = check(spec.uri, Place.MANIFEST)  # the manifest was checked: this can't fail
    options: dict[str, Any] = {
        "appname": app_name,
        "retryReads": True,
        "retryWrites": True,
        "w": "majority",
        "readPreference": "primary",
        "serverSelectionTimeoutMS": SELECTION_MS,
        "connectTimeoutMS": CONNECT_MS,
        "localThresholdMS": spec.local_threshold_ms,
        "tz_aware": True,
        "uuidRepresentation": "standard",
        **driver_options(connection, _TAKEN_OVER),
    }
    if most is not None:
        options["maxPoolSize"] = most
    if connection.tls:
        options["tls"] = True
    if credentials.username is None and options.get("authMechanism") != "MONGODB-X509":
        options.pop("authMechanism", None)  # PyMongo refuses one that has nobody to log in
    if credentials.username is not None:
        options |= {"username": credentials.username, "password": credentials.password}
    if credentials.ca_file is not None and connection.tls:
        options["tlsCAFile"] = str(credentials.ca_file)
    try:
        with _one_pem(credentials) as pem:
            if pem is not None and connection.tls:
                options["tlsCertificateKeyFile"] = pem
            if member is None:
                return AsyncMongoClient(seeds(connection), **options)
            options.pop("srvServiceName", None)
            options |= {"directConnection": True, "readPreference": "primaryPreferred"}
            return AsyncMongoClient(f"mongodb://{member}/", **options)
    except (PyMongoError, OSError, ValueError) as error:
        text = logs.redact(str(error))
        raise ConfigError(f"the {tier.value} tier's connection can't be set up: {text}") from error


def member_opener(
    manifest: Manifest, credentials_dir: Path | None, app_name: str, *, log_in: bool = True
) -> Callable[[Tier, str], AsyncMongoClient[dict[str, Any]]]:
    """A function that opens a direct connection to one member (``host:port``) of a tier.

    Without ``log_in`` it can say ``hello`` and little else. Close the client, or use it as an async context manager. Raises :class:`ConfigError` as
    :func:`open_tiers` does.
    """

    def open_member(tier: Tier, address: str) -> AsyncMongoClient[dict[str, Any]]:
        spec = manifest.spec.fast_tier if tier is Tier.FAST else manifest.spec.archive
        credentials = read_credentials(tier, spec, credentials_dir)
        if not log_in:
            credentials = replace(credentials, username=None, password=None)
        return open_client(tier, spec, credentials, app_name, member=address)

    return open_member


def open_tiers(
    manifest: Manifest, credentials_dir: Path | None, app_name: str, most: int | None = None
) -> Tiers:
    """Clients of both tiers, for the service ``app_name``. Raises :class:`ConfigError`; connects nothing yet.

    A tier that is down is no error here: operations fail with PyMongo's
    ``ServerSelectionTimeoutError`` after five seconds, and work again by themselves. ``most``: as of
    :func:`open_client`.
    """
    spec = manifest.spec
    read = {
        tier: read_credentials(tier, tier_spec, credentials_dir)
        for tier, tier_spec in ((Tier.FAST, spec.fast_tier), (Tier.ARCHIVE, spec.archive))
    }
    return Tiers(
        fast=open_client(Tier.FAST, spec.fast_tier, read[Tier.FAST], app_name, most=most),
        archive=open_client(Tier.ARCHIVE, spec.archive, read[Tier.ARCHIVE], app_name, most=most),
    )


async def close_tiers(tiers: Tiers) -> None:
    """Close both clients; one that doesn't end in time is left behind."""
    for tier, client in ((Tier.FAST, tiers.fast), (Tier.ARCHIVE, tiers.archive)):
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()
        except TimeoutError:
            log.warning("a client doesn't close", extra={"tier": tier.value})

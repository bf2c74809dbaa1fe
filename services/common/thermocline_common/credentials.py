"""The credentials directory, laid out as projected Secrets are: what lies there, and what is wrong with it."""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from thermocline_common import logs
from thermocline_common.certificates import Certificate, Unusable, check_key, read_certificates
from thermocline_common.coverage import Tier
from thermocline_common.errors import ConfigError
from thermocline_common.spec.models import Manifest, ProxySpec, SecretRef, TierSpec

DIRECTORIES: Final[Mapping[Tier, str]] = {Tier.ARCHIVE: "archive", Tier.FAST: "fast-tier"}
"""Where a tier's files lie below the credentials directory."""
LISTENER: Final = "proxy"
"""Where the files of the proxy's own port lie."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and the Secret's key that it comes from, as a problem names it."""

    path: Path
    ref: SecretRef | None
    field: str

    def __str__(self) -> str:
        if self.ref is None:
            return str(self.path)
        return f"{self.path} (key {self.path.name} of Secret {self.ref.name}, {self.field})"

    @property
    def short(self) -> str:
        """Such as ``archive/tls.crt``."""
        return f"{self.path.parent.name}/{self.path.name}"


@dataclass(frozen=True, slots=True)
class Pem:
    """A file's content, and the certificates in it."""

    place: Place = field(compare=False)
    content: bytes = field(repr=False)
    certificates: tuple[Certificate, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What lies in one directory. ``certificate`` and ``key`` come together; one ``tls.pem`` is both.

    ``authorities``: of the tier; in the listener's, of its clients.
    """

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    authorities: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None

    @property
    def certificates(self) -> Iterator[tuple[Place, Certificate]]:
        """Every certificate, with its file."""
        for pem in (self.authorities, self.certificate):
            if pem is not None:
                yield from ((pem.place, one) for one in pem.certificates)

    def untimely(self, now: dt.datetime) -> list[str]:
        """What has expired or isn't valid yet: the own certificate, or all authorities."""
        found = []
        if self.certificate is not None:
            own = self.certificate.certificates[0]
            if (reason := own.untimely(now)) is not None:
                found.append(f"{self.certificate.place}: {own.subject} {reason}")
        if self.authorities is not None:
            reasons = [one.untimely(now) for one in self.authorities.certificates]
            if all(reason is not None for reason in reasons):
                told = "; ".join(
                    f"{one.subject} {reason}"
                    for one, reason in zip(self.authorities.certificates, reasons, strict=True)
                )
                found.append(f"{self.authorities.place}: {told}")
        return found


def _content(place: Place) -> bytes | None:
    """The file's bytes; None: no such file. Raises :class:`ConfigError`."""
    try:
        content = place.path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{place} can't be read: {error.strerror}") from error
    if not content.strip():
        raise ConfigError(f"{place} is empty")
    return content


def _text(place: Place) -> str | None:
    """The text without the newline that editors and ``echo`` put behind it; None: no such file."""
    content = _content(place)
    if content is None:
        return None
    try:
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{place} can't be read: it is not UTF-8") from None


def _pem(place: Place) -> Pem | None:
    content = _content(place)
    if content is None:
        return None
    try:
        return Pem(place, content, read_certificates(content))
    except Unusable as error:
        raise ConfigError(f"{place} {error}") from None


def _pair(
    base: Path, ref: SecretRef | None, name: str, *, single: bool
) -> tuple[Pem | None, Pem | None]:
    """Certificate and key. ``single``: one ``tls.pem`` is taken, too, and goes before."""

    def place(file: str) -> Place:
        return Place(base / file, ref, name)

    certificate = _pem(place("tls.pem")) if single else None
    key = certificate
    if certificate is None:
        certificate, secret = _pem(place("tls.crt")), _content(place("tls.key"))
        if (certificate is None) != (secret is None):
            missing = place("tls.crt" if certificate is None else "tls.key")
            raise ConfigError(f"{missing} is missing beside the other half of the certificate")
        key = None if secret is None else Pem(place("tls.key"), secret)
    if certificate is None or key is None:
        if ref is not None:
            also = ", and so is tls.pem" if single else ""
            raise ConfigError(f"{place('tls.crt')} is missing{also}")
        return None, None
    try:
        check_key(key.content, certificate.certificates)
    except Unusable as error:
        raise ConfigError(f"{key.place} {error}") from None
    return certificate, key


def read_credentials(tier: Tier, spec: TierSpec, directory: Path | None) -> Credentials:
    """What the tier's directory holds.

    Raises :class:`ConfigError`, which names file and Secret, where ``spec`` asks for what isn't there,
    or a file can't be used.
    """
    name = f"spec.{'archive' if tier is Tier.ARCHIVE else 'fastTier'}"
    if directory is None:
        if spec.credentials_secret_ref or spec.tls.ca_secret_ref or spec.tls.certificate_secret_ref:
            raise ConfigError(f"{name} names Secrets; give their files with --credentials DIR")
        return Credentials()
    base = directory / DIRECTORIES[tier]
    ref = spec.credentials_secret_ref
    places = [
        Place(base / key, ref, f"{name}.credentialsSecretRef") for key in ("username", "password")
    ]
    username, password = map(_text, places)
    if password is not None:
        logs.add_secret(password)
    if (username is None) != (password is None) or (ref is not None and username is None):
        raise ConfigError(f"{places[0 if username is None else 1]} is missing")
    authorities = _authorities(base, spec.tls.ca_secret_ref, f"{name}.tls.caSecretRef")
    certificate, key = _pair(
        base, spec.tls.certificate_secret_ref, f"{name}.tls.certificateSecretRef", single=True
    )
    return Credentials(username, password, authorities, certificate, key)


def _authorities(base: Path, ref: SecretRef | None, name: str) -> Pem | None:
    place = Place(base / "ca.crt", ref, name)
    found = _pem(place)
    if ref is not None and found is None:
        raise ConfigError(f"{place} is missing")
    return found


def read_listener(spec: ProxySpec, directory: Path | None) -> Credentials:
    """The files of the proxy's own port; without a certificate it has no TLS.

    Raises :class:`ConfigError`: never is a port left without TLS, or without the check of its
    clients' certificates, because a file is missing.
    """
    certificate_ref, ca_ref = spec.tls.certificate_secret_ref, spec.tls.client_ca_secret_ref
    if directory is None:
        if certificate_ref or ca_ref:
            raise ConfigError(
                "spec.proxy.tls names Secrets; give their files with --credentials DIR"
            )
        return Credentials()
    base = directory / LISTENER
    certificate, key = _pair(
        base, certificate_ref, "spec.proxy.tls.certificateSecretRef", single=False
    )
    authorities = _authorities(base, ca_ref, "spec.proxy.tls.clientCASecretRef")
    if authorities is not None and certificate is None:
        raise ConfigError(
            f"{authorities.place} has no effect without a certificate: give tls.crt and tls.key, too"
        )
    return Credentials(None, None, authorities, certificate, key)


@dataclass(frozen=True, slots=True)
class AllCredentials:
    """Everything that a service reads from its credentials directory."""

    tiers: Mapping[Tier, Credentials]
    listener: Credentials = Credentials()

    @property
    def each(self) -> Iterator[Credentials]:
        """Of both tiers and the listener."""
        yield from self.tiers.values()
        yield self.listener


def read_all(manifest: Manifest, directory: Path | None, *, listener: bool) -> AllCredentials:
    """Of both tiers, and of the proxy's port where ``listener`` is set. Raises :class:`ConfigError`."""
    spec = manifest.spec
    tiers = {
        tier: read_credentials(tier, tier_spec, directory)
        for tier, tier_spec in ((Tier.ARCHIVE, spec.archive), (Tier.FAST, spec.fast_tier))
    }
    return AllCredentials(
        tiers, read_listener(spec.proxy, directory) if listener else Credentials()
    )

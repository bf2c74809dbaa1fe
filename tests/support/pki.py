"""Certificate authorities and certificates for tests, made in milliseconds."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    @property
    def both(self) -> bytes:
        """As one PEM."""
        return self.certificate + self.key

    def write(self, directory: Path) -> None:
        """As a Secret of type kubernetes.io/tls: ``tls.crt`` and ``tls.key``, each replaced at once."""
        directory.mkdir(parents=True, exist_ok=True)
        put(directory / "tls.crt", self.certificate)
        put(directory / "tls.key", self.key)


def put(path: Path, content: bytes) -> None:
    """Replace a file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_bytes(content)
    scratch.replace(path)


class Authority:
    """A self-signed authority. ``begin`` and ``days``: of its own time, from now."""

    def __init__(self, name: str, *, begin: float = -1, days: float = 30) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = _sign(
            self._name, self._name, self._key, self._key, begin, days, authority=True
        )

    @property
    def certificate(self) -> bytes:
        """In PEM: ``ca.crt``."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = LOCAL,
        *,
        begin: float = -1,
        days: float = 30,
        organization: str = "tests",
    ) -> Issued:
        """A certificate for ``hosts`` (names and addresses), for servers and clients alike.

        mongod takes a client of its own certificate's ``organization`` for a member of its set.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        made = _sign(subject, self._name, key, self._key, begin, days, hosts=hosts)
        return Issued(
            made.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    begin: float,
    days: float,
    *,
    hosts: Sequence[str] = (),
    authority: bool = False,
) -> x509.Certificate:
    start = dt.datetime.now(dt.UTC) + dt.timedelta(days=begin)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if hosts:
        names = [_general_name(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

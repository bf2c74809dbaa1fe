"""What certificates and keys in PEM say, and what is wrong with them. Pure; never quotes a key."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
NEAR_END: Final = 0.1
"""A certificate is near its end in the last tenth of its time: 9 days of 90, 2.4 hours of a day."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """``subject`` as in RFC 4514, such as ``CN=archive-0``. Times are aware, in UTC."""

    subject: str
    not_before: dt.datetime
    not_after: dt.datetime
    der: bytes = field(repr=False)

    def untimely(self, now: dt.datetime) -> str | None:
        """Why it doesn't count now ("expired on ..."); None: it does."""
        if now > self.not_after:
            return f"expired on {_day(self.not_after)}"
        if now < self.not_before:
            return f"isn't valid before {_day(self.not_before)}"
        return None

    def ending(self, now: dt.datetime) -> bool:
        """Whether little of its time is left."""
        return self.not_after - now < (self.not_after - self.not_before) * NEAR_END


def _day(when: dt.datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")


class Unusable(ValueError):
    """A file that can't be used. The text continues "<file> ..."."""


def read_certificates(pem: bytes) -> tuple[Certificate, ...]:
    """Every certificate in ``pem``, in order. Raises :class:`Unusable` where there is none."""
    if _CERTIFICATE not in pem:
        if _KEY in pem:
            raise Unusable("holds a private key, but no certificate: was it swapped with tls.key?")
        raise Unusable("holds no certificate in PEM")
    try:
        return tuple(map(_certificate, x509.load_pem_x509_certificates(pem)))
    except Exception:  # noqa: BLE001  # parsers of certificates fail in many ways
        raise Unusable("holds a certificate that can't be read: is it whole?") from None


def _certificate(found: x509.Certificate) -> Certificate:
    return Certificate(
        found.subject.rfc4514_string(),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        found.public_bytes(serialization.Encoding.DER),
    )


def check_key(pem: bytes, chain: Sequence[Certificate]) -> None:
    """Whether ``pem`` holds the key of the chain's first certificate. Raises :class:`Unusable`."""
    if _KEY not in pem:
        if _CERTIFICATE in pem:
            raise Unusable("holds a certificate, but no private key: was it swapped with tls.crt?")
        raise Unusable("holds no private key in PEM")
    begin = pem.rfind(b"-----BEGIN", 0, pem.find(_KEY))
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        key = serialization.load_pem_private_key(pem[max(begin, 0) :], None)
        own = x509.load_der_x509_certificate(chain[0].der).public_key()
        same = key.public_key().public_bytes(*form) == own.public_bytes(*form)
    except TypeError:
        raise Unusable("holds an encrypted key: store it without a passphrase") from None
    except Exception:  # noqa: BLE001  # as above
        raise Unusable("holds a private key that can't be read: is it whole?") from None
    if not same:
        raise Unusable("holds the private key of another certificate")

"""When the certificates in Secrets end."""

import base64
import binascii
import datetime as dt
import functools
from collections.abc import Mapping
from typing import Any

from cryptography import x509


def certificate_ends(secrets: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dt.datetime]:
    """By Secret; those that hold no certificate, or none that can be read, are left out."""
    found = {}
    for name, body in secrets.items():
        data = {} if body is None else body.get("data") or {}
        ends = [
            end
            for key in ("tls.crt", "tls.pem", "ca.crt")
            if isinstance(data.get(key), str) and (end := _end(data[key])) is not None
        ]
        if ends:
            found[name] = min(ends)
    return found


@functools.lru_cache(maxsize=1_000)
def _end(text: str) -> dt.datetime | None:
    """The first end of the certificates in a base64 text of PEM."""
    try:
        pem = base64.b64decode(text, validate=True)
        return min(c.not_valid_after_utc for c in x509.load_pem_x509_certificates(pem))
    except (binascii.Error, ValueError):
        return None

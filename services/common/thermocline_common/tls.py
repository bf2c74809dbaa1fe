"""TLS: contexts from the files of Secrets, for tiers and for the proxy's own port, that can be renewed in place."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from thermocline_common.credentials import Credentials, Pem
from thermocline_common.errors import ConfigError
from thermocline_common.uri.check import Connection


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path to read ``content`` from: in memory where the system can, since it may be a key."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("thermocline", os.MFD_CLOEXEC)
        path, remove = f"/proc/self/fd/{handle}", False
    else:
        handle, path = tempfile.mkstemp(prefix="thermocline-")  # only we can read it
        remove = True
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            yield path
    finally:
        if remove:
            Path(path).unlink(missing_ok=True)


def _load(context: ssl.SSLContext, credentials: Credentials) -> None:
    """The own certificate. Raises :class:`ConfigError`."""
    certificate, key = credentials.certificate, credentials.key
    if certificate is None or key is None:
        return
    content = certificate.content
    if key.content != content:
        content = content.rstrip(b"\n") + b"\n" + key.content
    try:
        with _as_file(content) as path:
            context.load_cert_chain(path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{certificate.place} can't be used: {_reason(error)}") from None


def _trust(context: ssl.SSLContext, authorities: Pem) -> None:
    # Exactly these certificates count, an intermediate one or a server's own among them, too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=b"".join(one.der for one in authorities.certificates))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{authorities.place} can't be used: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def client_context(credentials: Credentials, connection: Connection) -> ssl.SSLContext:
    """For connections to a tier, as its URI says. Raises :class:`ConfigError`.

    Authorities that are given replace the system's. Host names are checked unless the URI says otherwise.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if credentials.authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(context, credentials.authorities)
    options = connection.options
    anything = options.get("tlsInsecure") or options.get("tlsAllowInvalidCertificates")
    if anything or options.get("tlsAllowInvalidHostnames"):
        context.check_hostname = False
    if anything:
        context.verify_mode = ssl.CERT_NONE
    _load(context, credentials)
    return context


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """For the proxy's own port; clients have to show a certificate where authorities are given.

    Raises :class:`ConfigError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if credentials.authorities is not None:
        _trust(context, credentials.authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    _load(context, credentials)
    return context


class RenewableContext(ssl.SSLContext):
    """A context for libraries that take one and keep it: each handshake uses the newest one."""

    current: ssl.SSLContext

    def __new__(cls, current: ssl.SSLContext) -> Self:
        """See the class."""
        made = super().__new__(cls, current.protocol)
        made.renew(current)
        return made

    def __init__(self, current: ssl.SSLContext) -> None:
        """See the class."""

    def renew(self, current: ssl.SSLContext) -> None:
        """Use ``current`` from the next handshake on."""
        self.current = current
        # Drivers look at these.
        self.check_hostname = False
        self.verify_mode = current.verify_mode
        self.check_hostname = current.check_hostname

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As of :class:`ssl.SSLContext`. A session could be another context's: it isn't resumed."""
        return self.current.wrap_bio(incoming, outgoing, server_side, server_hostname)

    def wrap_socket(self, sock: Any, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """As of :class:`ssl.SSLContext`."""
        options.pop("session", None)
        return self.current.wrap_socket(sock, *arguments, **options)

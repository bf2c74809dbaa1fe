"""The proxy's own port: with TLS or without, and what is said to those who speak the other.

With TLS, connections are accepted here and shaken hands with one by one, so that a failed handshake
is known, with the reason and who it was; asyncio's own servers drop it in silence.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from thermocline_common.admin import Address
from thermocline_common.errors import ConfigError
from thermocline_common.tls import RenewableContext

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 30.0
_BACKLOG: Final = 1_024
_QUIET_SECONDS: Final = 10.0
"""The same complaint about the same host isn't logged again before."""
_MOST_COMPLAINTS: Final = 1_000
_SHORTAGE_SECONDS: Final = 0.5
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
NOT_TLS: Final = frozenset(
    {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
)
_REASONS: Final = {
    **dict.fromkeys(NOT_TLS, "it doesn't speak TLS, which this port wants: it needs tls=true"),
    "UNSUPPORTED_PROTOCOL": "its TLS is older than 1.2",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, which this port wants",
    "CERTIFICATE_VERIFY_FAILED": "its certificate isn't signed by the client authority, or has expired",
    "TLSV1_ALERT_UNKNOWN_CA": "it doesn't trust this port's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this port's certificate has expired for it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it takes this port's certificate for a bad one",
    "NO_SHARED_CIPHER": "no cipher suits both",
}

_SPEAKS_TLS: Final = (
    "it speaks TLS, which this port doesn't have: name a certificate in spec.proxy.tls, or take tls=true "
    "out of its connection string"
)
_CLIENT_HELLO: Final = b"\x16\x03"
"""How a TLS handshake begins."""


def explain(error: Exception) -> str | None:
    """Why a handshake failed, for people; None: the peer just went away. Pure."""
    reason = getattr(error, "reason", None)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(str(reason), f"the TLS handshake failed: {reason or error}")
    if isinstance(error, ConnectionAbortedError) and "handshake" in str(error):
        return f"no TLS handshake within {HANDSHAKE_SECONDS:.0f} s"
    return None


class Complaints:
    """One log line about each host and reason, and not again for a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str], float] = {}
        self.count = 0

    def add(self, host: str, reason: str) -> None:
        """A client at ``host`` was turned away."""
        self.count += 1
        now = self._clock()
        if now - self._told.get((host, reason), float("-inf")) < _QUIET_SECONDS:
            return
        if len(self._told) >= _MOST_COMPLAINTS:
            self._told.clear()
        self._told[host, reason] = now
        log.warning("a client is turned away: %s", reason, extra={"client": host})

    def unreadable(self, host: str, data: bytes) -> None:
        """Bytes came, without TLS, that are no message of MongoDB."""
        if data.startswith(_CLIENT_HELLO):
            self.add(host, _SPEAKS_TLS)


class Listener:
    """Accepts connections at ``address`` and makes a protocol for each; with TLS where there is a ``context``."""

    def __init__(
        self,
        address: Address,
        factory: Callable[[], asyncio.Protocol],
        context: RenewableContext | None,
        complaints: Complaints,
        *,
        shared: bool = False,
    ) -> None:
        """``shared``: other processes may listen at the same address, and each gets its part of the connections."""
        self._address = address
        self._shared = shared
        self._factory = factory
        self._context = context
        self._complaints = complaints
        self._server: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._greeting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. Raises :class:`ConfigError` where the address can't be used."""
        loop = asyncio.get_running_loop()
        host, port = self._address.host, self._address.port
        try:
            if self._context is None:
                self._server = await loop.create_server(
                    self._factory,
                    host,
                    port,
                    backlog=_BACKLOG,
                    reuse_address=True,
                    reuse_port=self._shared,
                )
                return
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, name in dict.fromkeys(found):
                self._sockets.append(_bound(family, name, shared=self._shared))
        except OSError as error:
            raise ConfigError(f"{host}:{port} can't be listened on: {error}") from error
        context = self._context
        self._accepting = [loop.create_task(self._accept(one, context)) for one in self._sockets]

    async def _accept(self, listening: socket.socket, context: RenewableContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _SHORTAGES:  # others end, and give back what is short
                    await asyncio.sleep(_SHORTAGE_SECONDS)
                continue
            task = loop.create_task(self._greet(connection, str(peer[0]), context))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, connection: socket.socket, host: str, context: RenewableContext) -> None:
        try:
            connection.setblocking(False)  # the standard library's own way
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            connection.close()
            reason = explain(error)
            if reason is not None:
                self._complaints.add(host, reason)

    def close(self) -> None:
        """Accept no more; connections stay."""
        if self._server is not None:
            self._server.close()
        for accepting in self._accepting:
            accepting.cancel()
        for listening in self._sockets:
            listening.close()


def _bound(family: int, name: tuple[object, ...], *, shared: bool) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)  # the standard library's own way
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(name)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening

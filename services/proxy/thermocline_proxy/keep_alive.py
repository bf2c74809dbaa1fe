"""Notices peers that vanished without a word: a host that lost its power sends no end of a connection."""

import asyncio
import contextlib
import socket
from typing import Final

CLIENT_SECONDS: Final = 120
"""After so long without a sign, a client's connection ends."""
MEMBER_SECONDS: Final = 30
"""The same for a member of a tier: commands wait there."""
_PROBES: Final = 3


def keep_alive(transport: asyncio.BaseTransport, seconds: int) -> None:
    """End the connection once the other side hasn't acknowledged anything for about ``seconds``."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    every = max(1, seconds // (2 * _PROBES))
    options = [
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", seconds - every * _PROBES),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", every),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", _PROBES),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", seconds * 1000),
    ]
    for level, name, value in options:
        # Not every system has them all; without one, its own waits count.
        with contextlib.suppress(OSError, AttributeError):
            found.setsockopt(level, getattr(socket, name), value)

"""The reserved range of session ids: transactions of Thermocline's own that change streams leave out.

Change events of transactions carry ``lsid``, so one ``$match`` on a range of UUIDs drops the events
of copies and evictions on the server. Clients' sessions may not lie in the range.
"""

import os
import uuid
from typing import Final

PREFIX: Final = bytes.fromhex("7468657263 6c696e".replace(" ", ""))  # "therclin"
RANGE: Final = (PREFIX + b"\x00" * 8, PREFIX + b"\xff" * 8)
"""Lowest and highest UUID bytes of the range, both included."""


def new_reserved_id() -> uuid.UUID:
    """A fresh session id in the reserved range (UUID bytes, not of any RFC version)."""
    return uuid.UUID(bytes=PREFIX + os.urandom(8))


def is_reserved(lsid: bytes) -> bool:
    """Whether these 16 bytes of a session's UUID lie in the reserved range."""
    return lsid.startswith(PREFIX)

"""The message header, opcodes and limits of MongoDB's wire protocol."""

import struct
from typing import Final

HEADER: Final = struct.Struct("<iiii")
"""Message length (header included), request id, response to, opcode."""
INT32: Final = struct.Struct("<i")
UINT32: Final = struct.Struct("<I")

HEADER_SIZE: Final = 16
MAX_MESSAGE_SIZE: Final = 48_000_000
"""``maxMessageSizeBytes`` of every supported MongoDB: the limit while no member was seen yet."""
MAX_REPLY_SIZE: Final = MAX_MESSAGE_SIZE + 16_384
MAX_DOCUMENT_SIZE: Final = 16 * 1024 * 1024

OP_REPLY: Final = 1
OP_UPDATE: Final = 2001
OP_INSERT: Final = 2002
OP_QUERY: Final = 2004
OP_GET_MORE: Final = 2005
OP_DELETE: Final = 2006
OP_KILL_CURSORS: Final = 2007
OP_COMPRESSED: Final = 2012
OP_MSG: Final = 2013
OPCODES: Final = frozenset(
    {OP_REPLY, *range(OP_UPDATE, OP_KILL_CURSORS + 1), OP_COMPRESSED, OP_MSG}
)

CHECKSUM_PRESENT: Final = 1
MORE_TO_COME: Final = 1 << 1
EXHAUST_ALLOWED: Final = 1 << 16
KNOWN_REQUIRED_FLAGS: Final = CHECKSUM_PRESENT | MORE_TO_COME
REQUIRED_FLAGS: Final = 0xFFFF
"""A flag of the lower half that the receiver doesn't know ends the connection."""


class ProtocolViolation(Exception):
    """The peer's bytes can't be answered; the connection must be closed, without a reply."""


class WireError(Exception):
    """The message is malformed in a way that MongoDB answers with an error and then goes on."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

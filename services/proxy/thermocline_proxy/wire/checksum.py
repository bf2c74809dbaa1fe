"""CRC-32C, the checksum that an OP_MSG may end with."""

from google_crc32c import value as crc32c

from thermocline_proxy.wire.header import (
    CHECKSUM_PRESENT,
    INT32,
    UINT32,
    ProtocolViolation,
)

__all__ = ["crc32c", "sign", "verify"]


def verify(frame: bytes) -> None:
    """Check the last four bytes of a message. Raises :class:`ProtocolViolation`, as mongod closes."""
    if UINT32.unpack_from(frame, len(frame) - 4)[0] != crc32c(frame[:-4]):
        raise ProtocolViolation("a wrong checksum")


def sign(frame: bytes) -> bytes:
    """An OP_MSG with its checksum: what asks with one is answered with one."""
    flags = UINT32.unpack_from(frame, 16)[0] | CHECKSUM_PRESENT
    signed = INT32.pack(len(frame) + 4) + frame[4:16] + UINT32.pack(flags) + frame[20:]
    return signed + UINT32.pack(crc32c(signed))

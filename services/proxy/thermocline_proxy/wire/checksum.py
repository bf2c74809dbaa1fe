"""CRC-32C, the checksum that an OP_MSG may end with."""

from thermocline_proxy.wire.header import UINT32, ProtocolViolation

_POLYNOMIAL = 0x82F63B78


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of ``data``."""
    value = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def verify(frame: bytes) -> None:
    """Check the last four bytes of a message. Raises :class:`ProtocolViolation`, as mongod closes."""
    if UINT32.unpack_from(frame, len(frame) - 4)[0] != crc32c(frame[:-4]):
        raise ProtocolViolation("a wrong checksum")

"""OP_COMPRESSED: any message, packed as a whole. Behaves as mongod 6.0 does, but for nesting."""

import mmap
import struct
import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import cramjam

from thermocline_proxy.wire.header import (
    HEADER,
    HEADER_SIZE,
    OP_COMPRESSED,
    OPCODES,
    ProtocolViolation,
)

_PACKED: Final = struct.Struct("<iiB")
"""Opcode, size without the header, and compressor of what is packed."""
_START: Final = HEADER_SIZE + _PACKED.size
_NOT_ANNOUNCED: Final = "its size is not the announced one"
COMPRESSED: Final = struct.pack("<i", OP_COMPRESSED)
"""The opcode as it stands in a header."""


class Compressor(IntEnum):
    """How a message is packed; the values are the protocol's."""

    SNAPPY = 1
    ZLIB = 2
    ZSTD = 3


NAMES: Final = {one.name.lower(): one for one in Compressor}
"""The names of hello."""


def agreed(wanted: Iterable[str]) -> tuple[str, ...]:
    """What hello answers to a client's list: the same, without names that nobody here knows."""
    return tuple(name for name in wanted if name in NAMES)


def announced(frame: bytes) -> int:
    """How many bytes the message will have. Raises :class:`ProtocolViolation`."""
    if len(frame) < _START:
        raise ProtocolViolation("a truncated OP_COMPRESSED")
    size: int = _PACKED.unpack_from(frame, HEADER_SIZE)[1]
    if size < 0:
        raise ProtocolViolation("a negative size of a compressed message")
    return HEADER_SIZE + size


def unpack(frame: bytes, limit: int) -> tuple[bytes, Compressor]:
    """The message in an OP_COMPRESSED, and how it was packed.

    ``limit``: the longest message in bytes. Never more than the announced size is produced, and never
    more than ``limit``, whatever the bytes would become. Raises :class:`ProtocolViolation`, also where
    mongod goes on reading: a message shorter than announced (it takes what its buffer held for the
    rest), and a packed message within a packed message (it gives no answer).
    """
    size = announced(frame)
    if size > limit:
        raise ProtocolViolation(f"a compressed message of {size} bytes")
    opcode, size, number = _PACKED.unpack_from(frame, HEADER_SIZE)
    if opcode == OP_COMPRESSED or opcode not in OPCODES:
        raise ProtocolViolation(f"opcode {opcode} in a compressed message")
    try:
        compressor = Compressor(number)
        payload = _payload(memoryview(frame)[_START:], size, compressor)
    except (ValueError, zlib.error, cramjam.DecompressionError) as error:
        raise ProtocolViolation(f"a compressed message can't be read: {error}") from error
    _, request_id, response_to, _ = HEADER.unpack_from(frame)
    header = HEADER.pack(HEADER_SIZE + len(payload), request_id, response_to, opcode)
    return header + payload, compressor


def _payload(data: memoryview, size: int, compressor: Compressor) -> bytes:
    if compressor is Compressor.ZLIB:
        stream = zlib.decompressobj()
        # A maximum of 0 would mean none.
        payload = stream.decompress(data, size + 1)
        if len(payload) != size or not stream.eof:
            raise ValueError(_NOT_ANNOUNCED)
        return payload
    if compressor is Compressor.SNAPPY:
        # Says its size itself, so that a lie about it costs no memory.
        if cramjam.snappy.decompress_raw_len(data) != size:
            raise ValueError(_NOT_ANNOUNCED)
        return bytes(cramjam.snappy.decompress_raw(data, size))
    if size == 0:
        raise ValueError(_NOT_ANNOUNCED)
    # Pages of a map cost nothing until they are written to: nor does a lie.
    with mmap.mmap(-1, size) as buffer:
        if cramjam.zstd.decompress_into(data, buffer) != size:
            raise ValueError(_NOT_ANNOUNCED)
        return buffer[:size]


def pack(frame: bytes, compressor: Compressor) -> bytes:
    """A message as OP_COMPRESSED."""
    _, request_id, response_to, opcode = HEADER.unpack_from(frame)
    payload = frame[HEADER_SIZE:]
    if compressor is Compressor.ZLIB:
        packed = zlib.compress(payload)
    elif compressor is Compressor.SNAPPY:
        packed = bytes(cramjam.snappy.compress_raw(payload))
    else:
        packed = bytes(cramjam.zstd.compress(payload))
    header = HEADER.pack(_START + len(packed), request_id, response_to, OP_COMPRESSED)
    return header + _PACKED.pack(opcode, len(payload), compressor) + packed

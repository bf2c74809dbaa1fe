"""Cuts a stream of bytes into whole messages."""

from thermocline_proxy.wire.header import (
    HEADER_SIZE,
    INT32,
    MAX_MESSAGE_SIZE,
    OPCODES,
    ProtocolViolation,
)


class FrameBuffer:
    """Collects bytes until messages are whole. ``limit``: the longest message in bytes."""

    __slots__ = ("_limit", "_needed", "held")

    def __init__(self, limit: int = MAX_MESSAGE_SIZE) -> None:
        self.held = bytearray()
        """Bytes of an unfinished message."""
        self._limit = limit
        self._needed = 0

    def __len__(self) -> int:
        """How many bytes of an unfinished message are held."""
        return len(self.held)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream; the messages that are whole now, in order.

        Raises :class:`ProtocolViolation` as soon as a length can't be one.
        """
        held = self.held
        if not held and len(data) >= HEADER_SIZE and self._length(data, 0) == len(data):
            return [data]
        held += data
        if len(held) < self._needed:
            return []
        frames: list[bytes] = []
        start = 0
        while True:
            if len(held) - start < 4:
                self._needed = 4
                break
            length = self._length(held, start)
            if len(held) - start < length:
                self._needed = length
                break
            with memoryview(held) as view:
                frames.append(bytes(view[start : start + length]))
            start += length
        if start:
            del held[:start]
        return frames

    def _length(self, data: bytes | bytearray, start: int) -> int:
        length: int = INT32.unpack_from(data, start)[0]
        if (
            len(data) - start >= HEADER_SIZE
            and INT32.unpack_from(data, start + 12)[0] not in OPCODES
        ):
            raise ProtocolViolation("no opcode: the peer speaks another protocol, perhaps TLS")
        if not HEADER_SIZE <= length <= self._limit:
            raise ProtocolViolation(f"a message length of {length} bytes")
        return length

"""A wire-level client: sends bytes as they are, so that malformed ones can be tried too."""

import itertools
import socket
import struct
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import bson
import cramjam
import google_crc32c

_HEADER = struct.Struct("<iiii")
_ids = itertools.count(1)


class Closed(Exception):
    """The server closed the connection."""


def frame(payload: bytes, opcode: int = 2013) -> bytes:
    """A message with a fresh request id."""
    return _HEADER.pack(16 + len(payload), next(_ids), 0, opcode) + payload


def message(
    document: dict[str, Any] | bytes, flags: int = 0, before: bytes = b"", behind: bytes = b""
) -> bytes:
    """An OP_MSG with a body, and further sections before or behind it."""
    raw = document if isinstance(document, bytes) else bson.encode(document)
    return frame(struct.pack("<I", flags) + before + b"\0" + raw + behind)


def sequence(name: str, documents: list[dict[str, Any]], size: int | None = None) -> bytes:
    """A kind-1 section; ``size`` makes its length a lie."""
    raw = name.encode() + b"\0" + b"".join(bson.encode(d) for d in documents)
    return b"\1" + struct.pack("<i", 4 + len(raw) if size is None else size) + raw


def query(namespace: str, document: dict[str, Any]) -> bytes:
    """A legacy OP_QUERY."""
    head = struct.pack("<I", 0) + namespace.encode() + b"\0" + struct.pack("<ii", 0, -1)
    return frame(head + bson.encode(document), 2004)


_PACKERS: dict[int, tuple[Callable[[bytes], Any], Callable[[bytes], Any]]] = {
    0: (bytes, bytes),
    1: (cramjam.snappy.compress_raw, cramjam.snappy.decompress_raw),
    2: (zlib.compress, zlib.decompress),
    3: (cramjam.zstd.compress, cramjam.zstd.decompress),
}


def packed(
    inner: bytes,
    compressor: int = 2,
    size: int | None = None,
    opcode: int | None = None,
    data: bytes | None = None,
) -> bytes:
    """A message as OP_COMPRESSED, under its own request id; the other arguments make it a lie."""
    _, request_id, response_to, real = _HEADER.unpack_from(inner)
    payload = inner[16:]
    if data is None:
        data = bytes(_PACKERS.get(compressor, _PACKERS[0])[0](payload))
    body = struct.pack("<iiB", opcode or real, len(payload) if size is None else size, compressor)
    return _HEADER.pack(25 + len(data), request_id, response_to, 2012) + body + data


def signed(inner: bytes) -> bytes:
    """An OP_MSG with its checksum."""
    flags = struct.unpack_from("<I", inner, 16)[0] | 1
    raw = struct.pack("<i", len(inner) + 4) + inner[4:16] + struct.pack("<I", flags) + inner[20:]
    return raw + struct.pack("<I", google_crc32c.value(raw))


class Answer(NamedTuple):
    """A reply. ``compressor``: how it was packed; None: it wasn't. ``checked``: its checksum is right."""

    opcode: int
    request_id: int
    response_to: int
    flags: int
    document: dict[str, Any]
    compressor: int | None
    checked: bool


def read_answer(frame: bytes) -> Answer:
    """A whole reply message, decoded."""
    _, request_id, response_to, opcode = _HEADER.unpack_from(frame)
    compressor = None
    if opcode == 2012:
        opcode, size, compressor = struct.unpack_from("<iiB", frame, 16)
        payload = bytes(_PACKERS[compressor][1](frame[25:]))
        assert len(payload) == size
        frame = _HEADER.pack(16 + size, request_id, response_to, opcode) + payload
    flags = struct.unpack_from("<I", frame, 16)[0]
    start = 36 if opcode == 1 else 21
    end = start + struct.unpack_from("<i", frame, start)[0]
    checked = frame[end:] == struct.pack("<I", google_crc32c.value(frame[:end]))
    document = bson.decode(frame[start:end])
    return Answer(opcode, request_id, response_to, flags, document, compressor, checked)


class Wire:
    """One connection."""

    def __init__(self, port: int, timeout: float = 5.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.socket.sendall(data)

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except ConnectionError as error:
                raise Closed from error
            if not part:
                raise Closed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def answer(self) -> Answer:
        """The next reply. Raises :class:`Closed`."""
        head = self._exactly(16)
        return read_answer(head + self._exactly(_HEADER.unpack(head)[0] - 16))

    def receive(self) -> tuple[int, int, dict[str, Any]]:
        """The next reply: opcode, what it answers, its document. Raises :class:`Closed`."""
        found = self.answer()
        return found.opcode, found.response_to, found.document

    def ask(self, document: dict[str, Any]) -> dict[str, Any]:
        """One command and its reply."""
        self.send(message(document))
        return self.receive()[2]

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

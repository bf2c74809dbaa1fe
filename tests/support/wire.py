"""A wire-level client: sends bytes as they are, so that malformed ones can be tried too."""

import itertools
import socket
import struct
from types import TracebackType
from typing import Any, Self

import bson

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

    def receive(self) -> tuple[int, int, dict[str, Any]]:
        """The next reply: opcode, what it answers, its document. Raises :class:`Closed`."""
        length, _, response_to, opcode = _HEADER.unpack(self._exactly(16))
        payload = self._exactly(length - 16)
        return opcode, response_to, bson.decode(payload[20 if opcode == 1 else 5 :])

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

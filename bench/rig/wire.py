"""One connection that speaks MongoDB's wire protocol, without a driver's cost: the generator must not be the limit."""

import os
import socket
import struct
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.int64 import Int64

from rig.documents import Document, id_of

HEADER: Final = struct.Struct("<iiii")
OP_MSG: Final = 2013
DATABASE: Final = "rig"
COLLECTION: Final = "orders"
NAMESPACE: Final = f"{DATABASE}.{COLLECTION}"


def frame(command: dict[str, Any], number: int = 1) -> bytes:
    """An OP_MSG with one body."""
    body = bson.encode(command)
    return HEADER.pack(21 + len(body), number, 0, OP_MSG) + bytes(5) + body


class Connection:
    """A socket with a session of its own, as a driver's; writes are retryable ones, as drivers' are."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = {"id": Binary(os.urandom(16), 4)}
        self._transaction = 0
        self._buffer = bytearray()
        hello = self._ask({"hello": 1, "$db": "admin"})
        self._time = hello.get("$clusterTime")
        self.socket.setblocking(False)

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        self.socket.sendall(frame(command))
        while (reply := self._whole()) is None:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError("closed at its start")
            self._buffer += data
        return reply

    def _common(self) -> dict[str, Any]:
        common: dict[str, Any] = {"lsid": self._session, "$db": DATABASE}
        if self._time is not None:
            common["$clusterTime"] = self._time
        return common

    def _write(self) -> dict[str, Any]:
        self._transaction += 1
        return {"txnNumber": Int64(self._transaction), **self._common()}

    def find(self, number: int) -> None:
        """Ask for a document by ``_id``."""
        command = {
            "find": COLLECTION,
            "filter": {"_id": id_of(number)},
            "limit": 1,
            "singleBatch": True,
        }
        self._send({**command, **self._common()})

    def update(self, number: int, field: bytes) -> None:
        """Count a document's updates up and replace its field ``f``."""
        change = {
            "q": {"_id": id_of(number)},
            "u": {"$inc": {"v": 1}, "$set": {"f": field}},
        }
        self._send({"update": COLLECTION, "updates": [change], **self._write()})

    def insert(self, document: Document) -> None:
        """Insert a document."""
        self._send({"insert": COLLECTION, "documents": [document], **self._write()})

    def _send(self, command: dict[str, Any]) -> None:
        data = frame(command)
        if self.socket.send(data) != len(data):
            raise ConnectionError("its buffer is full: it doesn't take requests")

    def receive(self) -> dict[str, Any] | None:
        """Take what has come; the reply once it is whole. Raises ``ConnectionError`` if it was closed."""
        data = self.socket.recv(262_144)
        if not data:
            raise ConnectionError("closed")
        self._buffer += data
        return self._whole()

    def _whole(self) -> dict[str, Any] | None:
        if len(self._buffer) < 16:
            return None
        size = struct.unpack_from("<i", self._buffer)[0]
        if len(self._buffer) < size:
            return None
        reply: dict[str, Any] = bson.decode(bytes(self._buffer[21:size]))
        del self._buffer[:size]
        return reply

    def close(self) -> None:
        """End it."""
        self.socket.close()

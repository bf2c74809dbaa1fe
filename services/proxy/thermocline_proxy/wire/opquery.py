"""Legacy OP_QUERY, which drivers still use for their first hello, and OP_REPLY."""

import struct
from dataclasses import dataclass

from thermocline_proxy.wire.header import HEADER, INT32, OP_REPLY, ProtocolViolation
from thermocline_proxy.wire.scan import scan

HELLO_NAMES = frozenset({"hello", "isMaster", "ismaster"})
_REPLY = struct.Struct("<iqii")
_AWAIT_CAPABLE = 8
_QUERY_FAILURE = 2
REMOVED = (
    "{what} is no longer supported. The client driver may require an upgrade. "
    "For more details see https://dochub.mongodb.org/core/legacy-opcode-removal"
)


@dataclass(frozen=True, slots=True)
class Query:
    """A legacy query on ``namespace`` (``db.$cmd`` for commands), its document raw."""

    request_id: int
    namespace: str
    document: bytes

    @property
    def is_command(self) -> bool:
        """Whether it is a command rather than a query on a collection."""
        return self.namespace.endswith(".$cmd")


def parse(frame: bytes) -> Query:
    """Parse a whole OP_QUERY. Raises :class:`ProtocolViolation` or ``WireError``."""
    terminator = frame.find(b"\0", 20)
    start = terminator + 9
    if terminator < 0 or len(frame) < start + 5:
        raise ProtocolViolation("a truncated OP_QUERY")
    length: int = INT32.unpack_from(frame, start)[0]
    if not 5 <= length <= len(frame) - start:
        raise ProtocolViolation("an OP_QUERY whose document doesn't fit")
    document = frame[start : start + length]
    spans = scan(document, 0)
    for wrapper in (b"$query", b"query"):
        inner = spans.get(wrapper)
        if inner is not None and inner[0] == 3 and next(iter(spans)) == wrapper:
            document = document[inner[2] : inner[3]]
            scan(document, 0)
            break
    namespace = frame[20:terminator].decode("utf-8", "replace")
    return Query(HEADER.unpack_from(frame)[1], namespace, document)


def encode_reply(
    request_id: int, response_to: int, document: bytes, *, failure: bool = False
) -> bytes:
    """An OP_REPLY with one document."""
    flags = _QUERY_FAILURE if failure else _AWAIT_CAPABLE
    body = _REPLY.pack(flags, 0, 0, 1) + document
    return HEADER.pack(16 + len(body), request_id, response_to, OP_REPLY) + body

"""Raw replies, read as far as the routes need. Pure."""

from dataclasses import dataclass

from thermocline_common.coverage import Tier
from thermocline_common.errors import NOT_PRIMARY, Code
from thermocline_common.ids import ARRAY, DOCUMENT, elements, string, wrap
from thermocline_proxy.wire.decoding import decoded

# Errors of the fast tier that say nothing about whether it *could* answer: the client gets them.
# Any other (a hint or a text index that F lacks, say) is answered by the archive, which then
# reports what is truly wrong with the command.
_FINAL = NOT_PRIMARY | {
    Code.HostUnreachable,
    Code.NetworkTimeout,
    Code.Unauthorized,
    Code.MaxTimeMSExpired,
    Code.Interrupted,
    Code.ExceededTimeLimit,
    7,  # HostNotFound
    9001,  # SocketException
    391,  # ReauthenticationRequired
}


@dataclass(frozen=True, slots=True)
class Batch:
    """The first batch of a cursor; ``cursor_id`` 0: there is no more."""

    cursor_id: int
    namespace: str
    documents: tuple[bytes, ...]


def first_batch(reply: bytes) -> Batch | None:
    """The cursor in a raw reply, or None where there is none."""
    for name, kind, _, start, end in elements(reply):
        if name == b"cursor" and kind == DOCUMENT:
            return _batch(reply[start:end])
    return None


def _batch(cursor: bytes) -> Batch | None:
    cursor_id, namespace = 0, ""
    documents: tuple[bytes, ...] | None = None
    for name, kind, _, start, end in elements(cursor):
        if name == b"firstBatch" and kind == ARRAY:
            array = cursor[start:end]
            documents = tuple(array[begin:stop] for _, _, _, begin, stop in elements(array))
        elif name == b"id":
            cursor_id = int.from_bytes(cursor[start:end], "little", signed=True)
        elif name == b"ns":
            namespace = cursor[start + 4 : end - 1].decode("utf-8", "replace")
    return None if documents is None else Batch(cursor_id, namespace, documents)


def is_final_error(code: int) -> bool:
    """Whether an error of the fast tier is the client's answer, rather than a reason to ask the archive."""
    return code in _FINAL


def name_tier(reply: bytes, tier: Tier) -> bytes:
    """An explanation with ``serverInfo.tier`` added, so that a reader sees who would answer."""
    parts = []
    for name, kind, begin, start, end in elements(reply):
        if name == b"serverInfo" and kind == DOCUMENT:
            inside = reply[start + 4 : end - 1]
            parts.append(b"\x03serverInfo\0" + wrap(inside, string(b"tier", tier.value)))
        else:
            parts.append(reply[begin:end])
    return wrap(*parts)


def error_code(reply: bytes) -> int:
    """The ``code`` of a raw error reply; 0 where there is none."""
    code = decoded(reply).get("code", 0)
    return int(code)

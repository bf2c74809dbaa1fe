"""Replies that carry change events, read and rewritten as raw bytes. Pure."""

from dataclasses import dataclass
from typing import Final

from thermocline_common.ids import ARRAY, DOCUMENT, STRING, DocId, elements, string, wrap
from thermocline_proxy.commands.resume_tokens import marked

_TOKEN: Final = b"postBatchResumeToken"
_CURSOR: Final = b"cursor"
_NULL_DOCUMENT: Final = b"\x0afullDocument\0"
_UPDATE: Final = b"update"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """One reply of a change stream. ``invalidated``: the collection was dropped or renamed, and the
    cursor is closed. ``token``: where the stream stands after it."""

    cursor_id: int
    namespace: str
    invalidated: bool
    token: str
    events: bytes


def stream_batch(reply: bytes) -> StreamBatch | None:
    """The batch; None where the reply isn't one of a change stream."""
    if _TOKEN not in reply:
        return None
    for name, kind, _, start, end in elements(reply):
        if name == _CURSOR:
            return _batch(reply[start:end]) if kind == DOCUMENT else None
    return None


def _batch(cursor: bytes) -> StreamBatch | None:
    cursor_id, namespace, invalidated, events = 0, "", False, wrap()
    token: str | None = None
    for name, kind, _, start, end in elements(cursor):
        if name == _TOKEN and kind == DOCUMENT:
            token = _data(cursor[start:end])
        elif name in (b"firstBatch", b"nextBatch") and kind == ARRAY:
            events = cursor[start:end]
        elif name == b"id":
            cursor_id = int.from_bytes(cursor[start:end], "little", signed=True)
        elif name == b"ns":
            namespace = cursor[start + 4 : end - 1].decode("utf-8", "replace")
        elif name == b"invalidated":
            invalidated = cursor[start:end] == b"\x01"
    if token is None:
        return None
    return StreamBatch(cursor_id, namespace, invalidated, token, events)


def _data(token: bytes) -> str:
    for name, kind, _, start, end in elements(token):
        if name == b"_data" and kind == STRING:
            return token[start + 4 : end - 1].decode("utf-8", "replace")
    return ""


def with_mark(reply: bytes, batch: StreamBatch, origin: bytes) -> bytes:
    """The reply with its token marked as the fast tier's, where it stands for no event."""
    data = marked(batch.token, origin)
    if data == batch.token:
        return reply
    token = b"\x03" + _TOKEN + b"\0" + wrap(string(b"_data", data))
    parts = []
    for name, kind, begin, start, end in elements(reply):
        if name == _CURSOR and kind == DOCUMENT:
            parts.append(b"\x03cursor\0" + _replaced(reply[start:end], _TOKEN, token))
        else:
            parts.append(reply[begin:end])
    return wrap(*parts)


def _replaced(document: bytes, wanted: bytes, element: bytes) -> bytes:
    return wrap(
        *(
            element if name == wanted else document[begin:end]
            for name, _, begin, _, end in elements(document)
        )
    )


def not_found(batch: StreamBatch) -> tuple[DocId, ...]:
    """Ids of the updated documents that the server looked up and didn't find."""
    if _NULL_DOCUMENT not in batch.events:
        return ()
    found = []
    for _, kind, _, start, end in elements(batch.events):
        if kind == DOCUMENT:
            doc_id = _missing(batch.events[start:end])
            if doc_id is not None:
                found.append(doc_id)
    return tuple(dict.fromkeys(found))


def _missing(event: bytes) -> DocId | None:
    doc_id: DocId | None = None
    null = False
    for name, kind, _, start, end in elements(event):
        if name == b"fullDocument":
            null = kind == 0x0A
        elif name == b"documentKey" and kind == DOCUMENT:
            try:
                doc_id = DocId.of_document(event[start:end])
            except KeyError:
                return None
        elif name == b"operationType" and event[start + 4 : end - 1] != _UPDATE:
            return None
    return doc_id if null else None

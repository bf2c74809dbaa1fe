"""OP_MSG: sections in, sections out. Errors are the ones that mongod 6.0 answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON

from thermocline_proxy.wire.checksum import sign, verify
from thermocline_proxy.wire.header import (
    CHECKSUM_PRESENT,
    HEADER,
    INT32,
    KNOWN_REQUIRED_FLAGS,
    MAX_DOCUMENT_SIZE,
    OP_MSG,
    REQUIRED_FLAGS,
    UINT32,
    ProtocolViolation,
    WireError,
)
from thermocline_proxy.wire.scan import Spans, scan

MIN_SIZE = 20
_MAX_BODY = MAX_DOCUMENT_SIZE + 16_384
_WHOLE: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS
)


@dataclass(frozen=True, slots=True)
class Message:
    """One OP_MSG request, parsed. ``body``: the kind-0 document; ``sequences``: kind-1 sections."""

    request_id: int
    flags: int
    body: bytes
    spans: Spans
    sequences: Mapping[str, Sequence[bytes]]


def read_flags(frame: bytes) -> int:
    """The flag bits. Raises :class:`ProtocolViolation` where they can't be served."""
    if len(frame) < MIN_SIZE:
        raise ProtocolViolation("an OP_MSG without flags")
    flags: int = UINT32.unpack_from(frame, 16)[0]
    if flags & REQUIRED_FLAGS & ~KNOWN_REQUIRED_FLAGS:
        raise ProtocolViolation(f"unknown required flags {flags:#x}")
    return flags


def parse(frame: bytes) -> Message:
    """Parse a whole OP_MSG. Raises :class:`WireError` (answer it) or :class:`ProtocolViolation`."""
    flags = read_flags(frame)
    end = len(frame)
    if flags & CHECKSUM_PRESENT:
        if end < MIN_SIZE + 4:
            raise ProtocolViolation("an OP_MSG too short for its checksum")
        verify(frame)
        end -= 4
    body: bytes | None = None
    sequences: dict[str, list[bytes]] = {}
    position = MIN_SIZE
    while position < end:
        kind = frame[position]
        position += 1
        if kind == 0:
            if body is not None:
                raise WireError(40430, "Multiple body sections in message")
            body, position = _document(frame, position, end, _MAX_BODY)
        elif kind == 1:
            name, documents, position = _sequence(frame, position, end)
            if name in sequences:
                raise WireError(40431, f"Duplicate document sequence: {name}")
            sequences[name] = documents
        elif kind == 2:
            raise WireError(13, "Unsupported Security Token provided")
        else:
            raise WireError(40432, f"Unknown section kind {kind}")
    if body is None:
        raise WireError(40587, "OP_MSG messages must have a body")
    spans = scan(body, 0)
    for name in sequences:
        if name.encode() in spans:
            raise WireError(40433, f"Duplicate field between body and document sequence {name}")
    return Message(HEADER.unpack_from(frame)[1], flags, body, spans, sequences)


def damage(frame: bytes) -> WireError | None:
    """What is wrong with the documents of a message that nobody could make sense of; None: nothing.

    A command is read only as deep as its decision goes, so that nested damage shows late or never. Text
    that isn't UTF-8 counts: it can be passed on, but not made part of anything.
    """
    try:
        message = parse(frame)
        for document in (message.body, *(d for part in message.sequences.values() for d in part)):
            bson.decode(document, _WHOLE)
    except WireError as error:
        return error
    except InvalidBSON as error:
        return WireError(22, str(error))
    return None


def _document(frame: bytes, start: int, end: int, limit: int) -> tuple[bytes, int]:
    if end - start < 5:
        raise WireError(22, "BSON data has to be at least 5 bytes")
    length: int = INT32.unpack_from(frame, start)[0]
    if length < 5:
        raise WireError(22, "BSON data has to be at least 5 bytes")
    if length > limit:
        raise WireError(
            10334, f"BSONObj size: {length} is invalid. Size must be between 0 and {limit}"
        )
    if length > end - start:
        raise WireError(22, "Incorrect BSON length")
    if frame[start + length - 1] != 0:
        raise WireError(22, "BSON object not terminated with EOO")
    return frame[start : start + length], start + length


def _sequence(frame: bytes, start: int, end: int) -> tuple[str, list[bytes], int]:
    if end - start < 4:
        raise WireError(15, "a document sequence without a length")
    size: int = UINT32.unpack_from(frame, start)[0]
    stop = start + size
    if size < 5 or stop > end:
        raise WireError(
            15, f"Invalid advance ({size - 4}) past end of buffer[{end - start - 4}] at offset: 0"
        )
    terminator = frame.find(b"\0", start + 4, stop)
    if terminator < 0:
        raise WireError(22, "a document sequence without a name")
    name = frame[start + 4 : terminator].decode("utf-8", "replace")
    position = terminator + 1
    documents = []
    while position < stop:
        document, position = _document(frame, position, stop, _MAX_BODY)
        documents.append(document)
    return name, documents, stop


def encode(
    request_id: int,
    response_to: int,
    body: bytes,
    sequences: Mapping[str, Sequence[bytes]] | None = None,
    flags: int = 0,
) -> bytes:
    """A whole OP_MSG of a raw body and raw document sequences, with a checksum if the flags say so."""
    parts = [b"\0", body]
    for name, documents in (sequences or {}).items():
        encoded = name.encode() + b"\0"
        parts += (b"\1", INT32.pack(4 + len(encoded) + sum(map(len, documents))), encoded)
        parts += documents
    payload = b"".join(parts)
    header = HEADER.pack(MIN_SIZE + len(payload), request_id, response_to, OP_MSG)
    frame = header + UINT32.pack(flags) + payload
    return sign(frame) if flags & CHECKSUM_PRESENT else frame

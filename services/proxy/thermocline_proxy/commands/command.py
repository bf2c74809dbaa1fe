"""A command as the client sent it: raw bytes, decoded only where somebody asks."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from thermocline_common.ids import ARRAY, DOCUMENT, STRING, elements, wrap

CODEC: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument,
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="surrogateescape",
)
"""Nested documents stay raw; dates are ``DatetimeMS``, because years beyond 9999 occur. Strings that
aren't UTF-8, which MongoDB takes, can be read here but not written again: nothing alters them."""


class Command:
    """One command: ``body`` is the raw kind-0 document, ``sequences`` the kind-1 sections by name.

    Immutable by convention: the methods that change something return a new command.
    """

    def __init__(self, body: bytes, sequences: Mapping[str, Sequence[bytes]] | None = None) -> None:
        self.body = body
        self.sequences: Mapping[str, Sequence[bytes]] = sequences or {}
        stop = body.index(b"\0", 5)
        self.name = body[5:stop].decode("utf-8", "replace")

    @cached_property
    def fields(self) -> dict[str, tuple[int, bytes]]:
        """Top-level fields of the body, in order: name -> (BSON type, raw value)."""
        return {
            name.decode("utf-8", "replace"): (kind, self.body[start:end])
            for name, kind, _, start, end in elements(self.body)
        }

    @property
    def size(self) -> int:
        """Bytes of the body and all sequences."""
        return len(self.body) + sum(
            len(document) for documents in self.sequences.values() for document in documents
        )

    @cached_property
    def document(self) -> RawBSONDocument:
        """The body, decoded one level at a time."""
        return RawBSONDocument(self.body, CODEC)

    def get(self, field: str, default: Any = None) -> Any:
        """The decoded value of a top-level field of the body."""
        return self.document.get(field, default) if field in self.fields else default

    @cached_property
    def database(self) -> str:
        """``$db``; empty where the client sent none."""
        return self._text("$db") or ""

    @cached_property
    def collection(self) -> str | None:
        """The collection that the first field names, where it is a string."""
        return self._text(self.name)

    def _text(self, field: str) -> str | None:
        # Asked of every command: decoding the whole body for it would cost more than the decision.
        kind, raw = self.fields.get(field, (0, b""))
        return raw[4:-1].decode("utf-8", "replace") if kind == STRING else None

    @property
    def namespace(self) -> str:
        """``db.collection`` of the command's target; only ``db`` where it names no collection."""
        return f"{self.database}.{self.collection}" if self.collection else self.database

    def documents(self, field: str) -> list[bytes]:
        """Raw documents of an array field, whether it came in the body or as a document sequence."""
        if field in self.sequences:
            return list(self.sequences[field])
        entry = self.fields.get(field)
        if entry is None or entry[0] != ARRAY:
            return []
        return [
            entry[1][start:end] for _, kind, _, start, end in elements(entry[1]) if kind == DOCUMENT
        ]

    def changed(
        self,
        fields: Mapping[str, bytes | None],
        sequences: Mapping[str, Sequence[bytes]] | None = None,
    ) -> "Command":
        """A command with these raw *elements* in place of, or behind, its own; None takes a field out.

        ``sequences`` replaces all document sequences where it is given.
        """
        left = dict(fields)
        parts = []
        for name, _, begin, _, end in elements(self.body):
            key = name.decode("utf-8", "replace")
            if key in left:
                new = left.pop(key)
                if new is not None:
                    parts.append(new)
            else:
                parts.append(self.body[begin:end])
        parts += [element for element in left.values() if element is not None]
        return Command(wrap(*parts), self.sequences if sequences is None else sequences)


def element(name: str, value: Any) -> bytes:
    """One raw BSON element of a Python value (documents may be ``RawBSONDocument``)."""
    return bytes(bson.encode({name: value})[4:-1])


def raw_element(name: str, kind: int, value: bytes) -> bytes:
    """One raw BSON element of a BSON type and raw value bytes."""
    return bytes((kind,)) + name.encode() + b"\0" + value


def build(fields: Mapping[str, Any], raw: Iterable[bytes] = ()) -> Command:
    """A command of Python values, with further raw elements behind them."""
    return Command(wrap(bytes(bson.encode(fields)[4:-1]), *raw))

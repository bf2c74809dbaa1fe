"""Removal records: what one says about a document, as a pure table.

A record is ``{_id: {ns, id}, kind, token: <UUID>}`` in ``thermocline.removed`` of the fast tier.
F's copy of a document, where there is one, always wins over the record.
"""

import uuid
from dataclasses import dataclass
from enum import StrEnum

from bson.raw_bson import RawBSONDocument

from thermocline_common.ids import DocId, elements


class Kind(StrEnum):
    """What a record announces."""

    DELETED = "deleted"
    """Is, or is about to be, deleted; written before the delete."""
    LEAVING = "leaving"
    """The evictor will evict this document 60 s later."""
    EVICTED = "evicted"
    """Written with the eviction: the archive holds the document."""
    EXPIRED = "expired"
    """Like ``deleted``, but by a TTL rule: the feeder deletes nothing in the archive for it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One removal record."""

    namespace: str
    id: DocId
    kind: Kind
    token: uuid.UUID

    @classmethod
    def parse(cls, document: RawBSONDocument) -> "Record":
        """From a raw document of ``thermocline.removed``. Raises ``KeyError``/``ValueError`` on foreign data."""
        # Never by decoding: the id may be something that Python can't represent.
        raw = bytes(document.raw)
        found = {name: (kind, raw[start:end]) for name, kind, _, start, end in elements(raw)}
        key = found[b"_id"][1]
        parts = {name: (kind, key[start:end]) for name, kind, _, start, end in elements(key)}
        token = found[b"token"][1]
        return cls(
            parts[b"ns"][1][4:-1].decode(),
            DocId.of_value(*parts[b"id"]),
            Kind(found[b"kind"][1][4:-1].decode()),
            uuid.UUID(bytes=token[5:21]),
        )

    @property
    def hides(self) -> bool:
        """Whether a document absent from F doesn't exist, whatever the archive still holds."""
        return self.kind in (Kind.DELETED, Kind.EXPIRED)


def hides(record: Record | None) -> bool:
    """Whether ``record`` (None: there is none) says that a document absent from F doesn't exist."""
    return record is not None and record.hides

"""Removal records: what one says about a document, as a pure table.

A record is ``{_id: {ns, id}, kind, token: <UUID>}`` in ``thermocline.removed`` of the fast tier.
F's copy of a document, where there is one, always wins over the record.
"""

import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
        for name, _, _, start, end in elements(bytes(document.raw)):
            if name == b"_id":
                key = bytes(document.raw[start:end])
                break
        else:
            raise KeyError("_id")
        for name, kind, _, start, end in elements(key):
            if name == b"id":
                doc_id = DocId.of_value(kind, key[start:end])
                break
        else:
            raise KeyError("id")
        token: Any = document["token"]
        if not isinstance(token, uuid.UUID):
            token = token.as_uuid()
        return cls(document["_id"]["ns"], doc_id, Kind(document["kind"]), token)

    @property
    def hides(self) -> bool:
        """Whether a document absent from F doesn't exist, whatever the archive still holds."""
        return self.kind in (Kind.DELETED, Kind.EXPIRED)


def hides(record: Record | None) -> bool:
    """Whether ``record`` (None: there is none) says that a document absent from F doesn't exist."""
    return record is not None and record.hides

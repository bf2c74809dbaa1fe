"""Removal records: which ones of a namespace, and which may go."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from thermocline_common.ids import DocId, string, wrap
from thermocline_common.removals import Record


def records_of(namespace: str) -> bytes:
    """The raw filter for every removal record of a namespace, a range of ``_id``."""
    low = wrap(string(b"ns", namespace), b"\xffid\0")
    high = wrap(string(b"ns", namespace), b"\x7fid\0")
    return wrap(b"\x03_id\0" + wrap(b"\x03$gte\0" + low, b"\x03$lte\0" + high))


@dataclass(slots=True)
class FirstSeen:
    """When each record's token was first seen, by this process's monotonic clock."""

    seconds: float
    """How long a record stays after that."""
    _seen: dict[tuple[str, DocId], tuple[uuid.UUID, float]] = field(default_factory=dict)

    def due(self, records: list[Record], now: float) -> list[Record]:
        """One whole scan's records -> those old enough to go. What a scan doesn't show is forgotten."""
        before, self._seen = self._seen, {}
        due = []
        for record in records:
            key = (record.namespace, record.id)
            token, since = before.get(key, (record.token, now))
            if token != record.token:
                token, since = record.token, now
            self._seen[key] = (token, since)
            if now - since >= self.seconds:
                due.append(record)
        return due


def removable(
    due: list[Record], in_fast: Mapping[DocId, object], in_archive: Mapping[DocId, object]
) -> list[Record]:
    """Of one namespace's due records those that say nothing any more.

    A record that hides a document goes only when the archive lacks the document, or F has it
    (the removal never happened, or it was inserted again). Both maps were read after replay had
    passed the beginning of the scan.
    """
    return [r for r in due if not r.hides or r.id in in_fast or r.id not in in_archive]

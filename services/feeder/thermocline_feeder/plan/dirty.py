"""Change events -> batches of dirty ids. An event says *which* document changed, never what to write."""

import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bson.timestamp import Timestamp

from thermocline_common import names
from thermocline_common.ids import DOCUMENT, DocId
from thermocline_feeder.plan.replies import fields, id_of

DATA_OPERATIONS = frozenset({b"insert", b"update", b"replace", b"delete"})
DDL_OPERATIONS = frozenset({b"create", b"drop", b"rename", b"dropDatabase"})
_TIMESTAMP = struct.Struct("<II")
_SIZE = struct.Struct("<i")
# The bytes between the token and the key of almost every event. Names and strings can't hold a NUL, so this
# matches nothing else; an event that looks different is taken apart field by field.
_USUAL = re.compile(
    rb"\x02operationType\0.{4}(insert|update|replace|delete)\0"
    rb"\x11clusterTime\0(.{8})"
    rb"\x05collectionUUID\0\x10\0\0\0\x04(.{16}\x03ns\0.{4}\x02db\0.{4}[^\0]*\0\x02coll\0.{4}[^\0]*\0\0)"
    rb"\x03documentKey\0",
    re.DOTALL,
)


class Change(NamedTuple):
    """One event. ``id``: the raw ``{_id: ...}`` of a dirty document, None where only time moves on.

    ``collection``: the UUID of the collection it happened in; None for removal records, which say
    nothing about it. ``time``: F's cluster time; events of one transaction share it. ``insert``: the
    document wasn't there before.
    """

    time: Timestamp
    namespace: str = ""
    collection: uuid.UUID | None = None
    id: bytes | None = None
    ddl: bool = False
    insert: bool = False


class Parser:
    """Raw change events -> changes. Remembers names, UUIDs and the last time: most events repeat them."""

    def __init__(self) -> None:
        self._names: dict[bytes, tuple[str, str, str]] = {}
        self._uuids: dict[bytes, uuid.UUID] = {}
        self._time_raw = b""
        self._time = Timestamp(0, 0)
        self._places: dict[bytes, tuple[str, uuid.UUID]] = {}
        self._match = _USUAL.match

    def parse(self, event: bytes) -> Change:
        """One event with ``operationType``, ``ns``, ``documentKey``, ``clusterTime``, ``collectionUUID``.

        An event that names no document of a namespace (a marker, DDL) only moves time on. Raises
        ``KeyError`` on what isn't a change event.
        """
        # Behind the token, which is the first field.
        usual = self._match(event, 9 + int(_SIZE.unpack_from(event, 9)[0]))
        if usual is not None:
            start = usual.end()
            end = start + int(_SIZE.unpack_from(event, start)[0])
            if end == len(event) - 1:
                kind, time_raw, place_raw = usual.groups()
                place = self._places.get(place_raw)
                if place is None:
                    place = self._place(place_raw)
                if place[0] is not names.DATABASE:
                    key, insert = event[start:end], kind == b"insert"
                    time = self._timestamp(time_raw)
                    return Change(time, place[0], place[1], key, False, insert)
        found = fields(event)
        time = self._timestamp(found[b"clusterTime"][1])
        kind = found[b"operationType"][1][4:-1]
        if kind not in DATA_OPERATIONS:
            if kind in DDL_OPERATIONS and b"ns" in found:
                namespace = self._name(found[b"ns"][1])[2]
                return Change(time, namespace, self._uuid(found), None, True)
            return Change(time)
        database, name, namespace = self._name(found[b"ns"][1])
        key = found[b"documentKey"][1]
        if database == names.DATABASE:
            return _of_record(time, key) if name == names.REMOVED else Change(time)
        return Change(time, namespace, self._uuid(found), key, False, kind == b"insert")

    def _place(self, raw: bytes) -> tuple[str, uuid.UUID]:
        """Namespace and UUID; for coordination data the database alone."""
        database, _, namespace = self._name(raw[20:])
        if database == names.DATABASE:
            namespace = names.DATABASE
        place = self._places[raw] = (namespace, uuid.UUID(bytes=raw[:16]))
        return place

    def _timestamp(self, raw: bytes) -> Timestamp:
        if raw != self._time_raw:
            increment, seconds = _TIMESTAMP.unpack(raw)
            self._time_raw, self._time = raw, Timestamp(seconds, increment)
        return self._time

    def _uuid(self, found: Mapping[bytes, tuple[int, bytes]]) -> uuid.UUID | None:
        value = found.get(b"collectionUUID")
        if value is None:
            return None
        raw = value[1]
        known = self._uuids.get(raw)
        if known is None:
            known = self._uuids[raw] = uuid.UUID(bytes=raw[5:21])
        return known

    def _name(self, raw: bytes) -> tuple[str, str, str]:
        known = self._names.get(raw)
        if known is None:
            parts = fields(raw)
            database = parts[b"db"][1][4:-1].decode()
            name = parts[b"coll"][1][4:-1].decode() if b"coll" in parts else ""
            known = self._names[raw] = (database, name, f"{database}.{name}")
        return known


def _of_record(time: Timestamp, key: bytes) -> Change:
    """The document that a removal record is about."""
    kind, record = fields(key).get(b"_id", (0, b""))
    parts = fields(record) if kind == DOCUMENT else {}
    if b"ns" not in parts or b"id" not in parts:
        return Change(time)
    doc_id = DocId.of_value(*parts[b"id"])
    return Change(time, parts[b"ns"][1][4:-1].decode(), None, doc_id.document())


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that are applied together; ``time`` is the last one's: the state to write is F's at it."""

    changes: Sequence[Change]

    @property
    def time(self) -> Timestamp:
        """The cluster time at which F is read for this batch."""
        return self.changes[-1].time

    def dirty(self) -> dict[str, set[DocId]]:
        """The distinct dirty ids, by namespace."""
        raw: dict[str, set[bytes]] = {}
        for change in self.changes:
            if change.id is not None:
                raw.setdefault(change.namespace, set()).add(change.id)
        return {ns: {id_of(i) for i in ids} for ns, ids in raw.items()}

    def inserted(self) -> dict[str, set[DocId]]:
        """Of the dirty ids, those whose first change is an insert: they weren't there before the batch."""
        first: dict[tuple[str, bytes], bool] = {}
        if not any(change.insert for change in self.changes):
            return {}
        for change in self.changes:
            if change.id is not None:
                first.setdefault((change.namespace, change.id), change.insert)
        found: dict[str, set[DocId]] = {}
        for (namespace, raw), insert in first.items():
            if insert:
                found.setdefault(namespace, set()).add(id_of(raw))
        return found

    def collections(self) -> dict[str, set[uuid.UUID]]:
        """The UUIDs of collections in which the changes happened, by namespace."""
        found: dict[str, set[uuid.UUID]] = {}
        for change in self.changes:
            if change.collection is not None:
                found.setdefault(change.namespace, set()).add(change.collection)
        return found

    def ddl(self) -> set[str]:
        """Namespaces (``db.`` for a whole database) with a create, drop or rename."""
        return {change.namespace for change in self.changes if change.ddl}

    def split(self) -> "tuple[Batch, Batch] | None":
        """Two halves that keep each transaction whole; None if the batch is one transaction."""
        middle = boundary(self.changes, len(self.changes) // 2, len(self.changes))
        if middle == len(self.changes):
            middle = _boundary_before(self.changes, len(self.changes) // 2)
        if middle in (0, len(self.changes)):
            return None
        return Batch(self.changes[:middle]), Batch(self.changes[middle:])


def boundary(changes: Sequence[Change], start: int, end: int) -> int:
    """The first position from ``start`` on at which no transaction is cut; ``end`` at the latest."""
    if start <= 0:
        start = 1
    while start < end and changes[start].time == changes[start - 1].time:
        start += 1
    return min(start, end)


def _boundary_before(changes: Sequence[Change], start: int) -> int:
    while start > 0 and changes[start].time == changes[start - 1].time:
        start -= 1
    return start


class Backlog:
    """Changes that were read and not yet handed out. A transaction is handed out whole."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._complete = 0

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def ready(self) -> int:
        """How many changes can be handed out."""
        return self._complete

    def add(self, changes: Iterable[Change], *, caught_up: bool) -> None:
        """Append one reply's changes.

        ``caught_up``: the server had nothing more, so the last transaction is complete. Otherwise it
        is taken as complete only when a later event has arrived.
        """
        self._changes.extend(changes)
        end = len(self._changes)
        if caught_up or not end:
            self._complete = end
            return
        self._complete = max(self._complete, _boundary_before(self._changes, end - 1))

    def take(self, limit: int) -> Batch | None:
        """The oldest complete changes: about ``limit``, more only to keep a transaction whole."""
        if not self._complete:
            return None
        end = (
            self._complete
            if self._complete <= limit
            else boundary(self._changes, limit, self._complete)
        )
        taken, self._changes = self._changes[:end], self._changes[end:]
        self._complete -= end
        return Batch(taken)

    def clear(self) -> None:
        """Forget everything: the stream is opened anew from the checkpoint."""
        self._changes = []
        self._complete = 0

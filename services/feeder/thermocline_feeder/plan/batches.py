"""Verdicts -> the write commands of one transaction on the archive."""

import re
import struct
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from thermocline_common.fidelity import Form, form_of, zeroing
from thermocline_common.ids import DocId, wrap
from thermocline_feeder.plan.verdicts import Verdict

MAX_COMMAND_BYTES = 12 * 1024 * 1024
"""Statements in one command body; the server takes 16 MB and a little."""
MAX_COMMAND_STATEMENTS = 20_000
MAX_BATCH_BYTES = 24 * 1024 * 1024
"""Documents in one transaction, unless one transaction of the application alone is bigger."""

MOST_WITH_ID = 16 * 1024 * 1024 + 14 * 1024
"""A document and its ``_id`` again, as a statement and the server's oplog hold them: 16 MB and 16 KB,
less what stands around them."""
SURELY_FITS = 8 * 1024 * 1024
"""A document up to here fits whatever its ``_id``, which is a part of it."""

SLOW_SECONDS = 2.0

_MAYBE_ZERO_TIMESTAMP = re.compile(rb"\x11[^\0]*\0{9}")
_NOTHING: Mapping[str, Container[DocId]] = {}
_UPSERT_AND_END = b"\x08upsert\0\1\0"
_INT = struct.Struct("<i")
_KINDS = [bytes((kind,)) for kind in range(256)]
_LIMIT_ONE = b"\x10limit\0\1\0\0\0"


class Verb(Enum):
    """The write commands, with the name of their list of statements."""

    DELETE = "deletes"
    UPDATE = "updates"
    INSERT = "documents"


@dataclass(frozen=True, slots=True)
class Command:
    """One write command; ``ids[i]`` is the document of ``statements[i]`` (raw BSON)."""

    namespace: str
    archive_uuid: uuid.UUID | None
    verb: Verb
    statements: Sequence[bytes]
    ids: Sequence[DocId]


class Unwritable(ValueError):
    """No write keeps this document's bytes."""

    def __init__(self, namespace: str, doc_id: DocId, reason: str) -> None:
        super().__init__(reason)
        self.namespace = namespace
        self.id = doc_id


_NO_FORM = "repeats field names and has a top-level Timestamp(0, 0) that no update can name: no write keeps its bytes"
_TOO_LARGE = "is too large together with its long _id: no write can bring both at once"


def exact_form(document: bytes) -> Form:
    """:func:`form_of`, with a quick look first that settles almost every document."""
    if b"$" in document or _MAYBE_ZERO_TIMESTAMP.search(document):
        return form_of(document)
    return Form.REPLACEMENT


def commands(
    verdicts: Iterable[Verdict],
    reinsert: frozenset[tuple[str, DocId]] = frozenset(),
    anew: frozenset[str] = frozenset(),
    fresh: Mapping[str, Container[DocId]] = _NOTHING,
    alike: Mapping[str, Container[DocId]] = _NOTHING,
) -> list[Command]:
    """Deletes first, then writes, within the size of a command.

    ``fresh``: by namespace, documents that the archive probably lacks: they are inserted, which costs it two
    thirds of an upsert, and fails with a duplicate key where one is there. ``alike``: documents that are plain
    (:func:`is_plain`) and are surely so in the archive too, as far as they are there: they are written by a
    pipeline. The archive then logs only what changed and leaves alone the indexes that it doesn't concern,
    where a replacement in a transaction looks each of them up in the catalog anew. Neither counts where
    ``anew`` or ``reinsert`` say otherwise.

    ``reinsert``: documents that are deleted before they are written (a replacement can't change the
    type of an ``_id``, for example). ``anew``: namespaces in which everything is deleted first, so
    that unique keys may change hands within the batch. Raises :class:`Unwritable`.
    """
    deletes: _Groups = {}
    updates: _Groups = {}
    inserts: _Groups = {}
    settings: _Groups = {}
    ordinary = not anew and not reinsert
    group: _Group | None = None
    new: _Group | None = None
    fresh_here: Container[DocId] = ()
    alike_here: Container[DocId] = ()
    last = Verdict("", DocId(0, b"", b""), None)
    for verdict in verdicts:
        namespace, doc_id, document, archive_uuid = verdict
        if (
            ordinary
            and document is not None
            and len(document) <= SURELY_FITS
            and exact_form(document) is Form.REPLACEMENT
        ):
            if (
                group is None
                or new is None
                or (namespace, archive_uuid) != (last.namespace, last.archive_uuid)
            ):
                group, new, last = _group(updates, verdict), _group(inserts, verdict), verdict
                fresh_here, alike_here = fresh.get(namespace, ()), alike.get(namespace, ())
            if doc_id in fresh_here:
                new.add(document, doc_id)
            elif doc_id in alike_here:
                group.add(_literal(doc_id, document), doc_id)
            else:
                group.add(_replacement(doc_id, document), doc_id)
            continue
        again = namespace in anew or (namespace, doc_id) in reinsert
        form = Form.REPLACEMENT if document is None else exact_form(document)
        if document is None or again or form in (Form.PIPELINE, Form.INSERT):
            statement = wrap(b"\x03q\0" + doc_id.document(), _LIMIT_ONE)
            _group(deletes, verdict).add(statement, doc_id)
        if document is None:
            continue
        if len(document) > SURELY_FITS and len(document) + len(doc_id.value) > MOST_WITH_ID:
            raise Unwritable(namespace, doc_id, _TOO_LARGE)
        if form is Form.NONE:
            raise Unwritable(namespace, doc_id, _NO_FORM)
        if form is Form.INSERT:
            _group(inserts, verdict).add(document, doc_id)
            zeros = zeroing(document)
            if zeros is not None:
                _group(settings, verdict).add(zeros, doc_id)
        elif form is Form.REPLACEMENT and again:
            _group(inserts, verdict).add(document, doc_id)
        elif form is Form.REPLACEMENT:
            _group(updates, verdict).add(_replacement(doc_id, document), doc_id)
        else:
            _group(updates, verdict).add(_literal(doc_id, document), doc_id)
    result: list[Command] = []
    in_order = (
        (Verb.DELETE, deletes),
        (Verb.UPDATE, updates),
        (Verb.INSERT, inserts),
        (Verb.UPDATE, settings),
    )
    for verb, groups in in_order:
        for (namespace, archive_uuid), group in groups.items():
            result += [
                Command(namespace, archive_uuid, verb, group.statements[part], group.ids[part])
                for part in _by_size(group.statements)
            ]
    return result


@dataclass(slots=True)
class _Group:
    """Statements of one kind for one collection."""

    statements: list[bytes] = field(default_factory=list)
    ids: list[DocId] = field(default_factory=list)

    def add(self, statement: bytes, doc_id: DocId) -> None:
        self.statements.append(statement)
        self.ids.append(doc_id)


_Groups = dict[tuple[str, uuid.UUID | None], _Group]


def _group(groups: _Groups, verdict: Verdict) -> _Group:
    return groups.setdefault((verdict.namespace, verdict.archive_uuid), _Group())


def _replacement(doc_id: DocId, document: bytes) -> bytes:
    """``{q: {_id}, u: document, upsert: true}``, in one go: this is made for almost every document."""
    value = doc_id.value
    length = len(value)
    return b"".join(
        (
            _INT.pack(length + len(document) + 30),
            b"\x03q\0",
            _INT.pack(length + 10),
            _KINDS[doc_id.kind],
            b"_id\0",
            value,
            b"\0\x03u\0",
            document,
            _UPSERT_AND_END,
        )
    )


def _literal(doc_id: DocId, document: bytes) -> bytes:
    """``{q: {_id}, u: [{$replaceWith: {$literal: document}}], upsert: true}``, in one go as well."""
    value = doc_id.value
    length, size = len(value), len(document)
    return b"".join(
        (
            _INT.pack(length + size + 72),
            b"\x03q\0",
            _INT.pack(length + 10),
            _KINDS[doc_id.kind],
            b"_id\0",
            value,
            b"\0\x04u\0",
            _INT.pack(size + 42),
            b"\x030\0",
            _INT.pack(size + 34),
            b"\x03$replaceWith\0",
            _INT.pack(size + 15),
            b"\x03$literal\0",
            document,
            b"\0\0\0",
            _UPSERT_AND_END,
        )
    )


def _by_size(statements: Sequence[bytes]) -> Iterator[slice]:
    """Slices that fit into a command each."""
    start = size = 0
    for position, statement in enumerate(statements):
        length = len(statement) + 8
        full = size + length > MAX_COMMAND_BYTES or position - start >= MAX_COMMAND_STATEMENTS
        if full and position > start:
            yield slice(start, position)
            start, size = position, 0
        size += length
    if len(statements) > start:
        yield slice(start, len(statements))


def parts(verdicts: Sequence[Verdict], max_bytes: int) -> list[list[Verdict]]:
    """Split verdicts for several transactions, each at most ``max_bytes`` (or one document)."""
    if total_bytes(verdicts) + 1_024 * len(verdicts) <= max_bytes:
        return [list(verdicts)] if verdicts else []
    result: list[list[Verdict]] = []
    part: list[Verdict] = []
    size = 0
    for verdict in verdicts:
        length = len(verdict.document or b"") + len(verdict.id.value) + 64
        if part and size + length > max_bytes:
            result.append(part)
            part, size = [], 0
        part.append(verdict)
        size += length
    if part:
        result.append(part)
    return result


def total_bytes(verdicts: Iterable[Verdict]) -> int:
    """Bytes of the documents to be written."""
    return sum([len(v.document) for v in verdicts if v.document is not None])


class Pace:
    """How many changes to take at once, learned from the sizes seen: full batches near a byte limit."""

    def __init__(self, most: int, target_bytes: int = MAX_BATCH_BYTES // 3) -> None:
        self._highest = self._most = most
        self._target = target_bytes
        self._average = 1_024.0

    @property
    def limit(self) -> int:
        """Changes to take next."""
        return max(50, min(self._most, int(self._target / self._average)))

    def saw(self, documents: int, size: int) -> None:
        """Learn from a batch of ``documents`` documents of ``size`` bytes."""
        if documents:
            share = min(1.0, documents / 500)
            self._average += (max(64.0, size / documents) - self._average) * max(0.05, share * 0.5)

    def took(self, seconds: float) -> None:
        """Learn from how long the archive took: a slow one gets smaller transactions.

        A transaction holds the checkpoint's heartbeat back, and may live a minute at most.
        """
        if seconds > SLOW_SECONDS:
            self._most = max(100, self._most // 2)
        else:
            self._most = min(self._highest, self._most + self._most // 4 + 1)

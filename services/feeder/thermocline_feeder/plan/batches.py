"""Verdicts -> the write commands of one transaction on the archive."""

import re
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from thermocline_common.fidelity import Form, form_of, zeroing
from thermocline_common.ids import DocId, wrap
from thermocline_feeder.plan.statements import (
    COMPARABLE,
    LEAST_TOGETHER,
    MOST_BYTES_TOGETHER,
    MOST_TOGETHER,
    literal,
    replacement,
    together,
)
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
FIRST_CHANGES = 100
"""Taken at once to begin with: that an archive is slow is known only once it was, and a full batch would meet the end
of transactions (a minute) before. A quick one is at full batches after twenty, in a fraction of a second."""

_MAYBE_ZERO_TIMESTAMP = re.compile(rb"\x11[^\0]*\0{9}")
_NOTHING: Mapping[str, Container[DocId]] = {}
_LIMIT_ONE = b"\x10limit\0\1\0\0\0"


class Verb(Enum):
    """The write commands, with the name of their list of statements."""

    DELETE = "deletes"
    UPDATE = "updates"
    INSERT = "documents"


@dataclass(frozen=True, slots=True)
class Command:
    """One write command; ``ids[i]`` is the document of ``statements[i]`` (raw BSON).

    ``together``: each statement is for several of the ids, in their order, and all of them must be there.
    """

    namespace: str
    archive_uuid: uuid.UUID | None
    verb: Verb
    statements: Sequence[bytes]
    ids: Sequence[DocId]
    together: bool = False


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
    if b"$" in document or (b"\x11" in document and _MAYBE_ZERO_TIMESTAMP.search(document)):
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
    (:func:`is_plain`) and are surely there and so in the archive too: they are written by a pipeline, several in
    a statement, which fails as a whole where one isn't there after all. The archive then logs only what changed and leaves alone the indexes that it doesn't concern,
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
    known: _Groups = {}
    ordinary = not anew and not reinsert
    group: _Group | None = None
    new: _Group | None = None
    old: _Group | None = None
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
                or old is None
                or (namespace, archive_uuid) != (last.namespace, last.archive_uuid)
            ):
                group, new, last = _group(updates, verdict), _group(inserts, verdict), verdict
                old = _group(known, verdict)
                fresh_here, alike_here = fresh.get(namespace, ()), alike.get(namespace, ())
            if doc_id in fresh_here:
                new.add(document, doc_id)
            elif doc_id in alike_here:
                old.add(document, doc_id)
            else:
                group.add(replacement(doc_id, document), doc_id)
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
            _group(updates, verdict).add(replacement(doc_id, document), doc_id)
        else:
            _group(updates, verdict).add(literal(doc_id, document), doc_id)
    several: list[Command] = []
    for place, documents in known.items():
        several += _over(*place, documents, updates.setdefault(place, _Group()))
    return [
        *_commands(Verb.DELETE, deletes),
        *several,
        *_commands(Verb.UPDATE, updates),
        *_commands(Verb.INSERT, inserts),
        *_commands(Verb.UPDATE, settings),
    ]


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


def _commands(verb: Verb, groups: _Groups) -> Iterator[Command]:
    for (namespace, archive_uuid), group in groups.items():
        for part in _by_size(group.statements):
            yield Command(namespace, archive_uuid, verb, group.statements[part], group.ids[part])


def _over(
    namespace: str, archive_uuid: uuid.UUID | None, documents: _Group, alone: _Group
) -> list[Command]:
    """Documents over those that are surely there, several in a statement; those that are ``alone`` go there."""
    portions: list[_Group] = []
    portion, size = _Group(), 0
    for document, doc_id in zip(documents.statements, documents.ids, strict=True):
        if doc_id.kind not in COMPARABLE:
            alone.add(literal(doc_id, document), doc_id)
            continue
        size += len(document)
        if len(portion.ids) == MOST_TOGETHER or (portion.ids and size > MOST_BYTES_TOGETHER):
            portions.append(portion)
            portion, size = _Group(), len(document)
        portion.add(document, doc_id)
    portions.append(portion)
    statements: list[bytes] = []
    ids: list[list[DocId]] = []
    for portion in portions:
        if len(portion.ids) < LEAST_TOGETHER:
            for document, doc_id in zip(portion.statements, portion.ids, strict=True):
                alone.add(literal(doc_id, document), doc_id)
        else:
            statements.append(together(portion.ids, portion.statements))
            ids.append(portion.ids)
    return [
        Command(
            namespace,
            archive_uuid,
            Verb.UPDATE,
            statements[part],
            [doc_id for several in ids[part] for doc_id in several],
            together=True,
        )
        for part in _by_size(statements)
    ]


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
        self._highest = most
        self._most = min(most, FIRST_CHANGES)
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

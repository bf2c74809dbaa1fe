"""Verdicts -> the write commands of one transaction on the archive."""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from thermocline_common.fidelity import Form, form_of
from thermocline_common.ids import DocId, array, wrap
from thermocline_feeder.plan.verdicts import Verdict

MAX_COMMAND_BYTES = 12 * 1024 * 1024
"""Statements in one command body; the server takes 16 MB and a little."""
MAX_COMMAND_STATEMENTS = 20_000
MAX_BATCH_BYTES = 24 * 1024 * 1024
"""Documents in one transaction, unless one transaction of the application alone is bigger."""

SLOW_SECONDS = 2.0

_MAYBE_ZERO_TIMESTAMP = re.compile(rb"\x11[^\0]*\0{9}")
_UPSERT = b"\x08upsert\0\1"
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

    def __init__(self, namespace: str, doc_id: DocId) -> None:
        super().__init__(
            "repeats field names and has a top-level '$' name or Timestamp(0, 0): no write keeps its bytes"
        )
        self.namespace = namespace
        self.id = doc_id


def exact_form(document: bytes) -> Form:
    """:func:`form_of`, with a quick look first that settles almost every document."""
    if b"$" in document or _MAYBE_ZERO_TIMESTAMP.search(document):
        return form_of(document)
    return Form.REPLACEMENT


def commands(
    verdicts: Iterable[Verdict],
    reinsert: frozenset[tuple[str, DocId]] = frozenset(),
    anew: frozenset[str] = frozenset(),
) -> list[Command]:
    """Deletes first, then writes, within the size of a command.

    ``reinsert``: documents that are deleted before they are written (a replacement can't change the
    type of an ``_id``, for example). ``anew``: namespaces in which everything is deleted first, so
    that unique keys may change hands within the batch. Raises :class:`Unwritable`.
    """
    deletes: dict[tuple[str, uuid.UUID | None], list[tuple[bytes, DocId]]] = {}
    updates: dict[tuple[str, uuid.UUID | None], list[tuple[bytes, DocId]]] = {}
    inserts: dict[tuple[str, uuid.UUID | None], list[tuple[bytes, DocId]]] = {}
    for verdict in verdicts:
        place = (verdict.namespace, verdict.archive_uuid)
        document = verdict.document
        again = verdict.namespace in anew or (verdict.namespace, verdict.id) in reinsert
        if document is None or again:
            statement = wrap(b"\x03q\0" + verdict.id.document(), _LIMIT_ONE)
            deletes.setdefault(place, []).append((statement, verdict.id))
        if document is None:
            continue
        form = exact_form(document)
        if form is Form.NONE:
            raise Unwritable(verdict.namespace, verdict.id)
        if form is Form.REPLACEMENT and again:
            inserts.setdefault(place, []).append((document, verdict.id))
            continue
        query = b"\x03q\0" + verdict.id.document()
        if form is Form.REPLACEMENT:
            update = b"\x03u\0" + document
        else:
            literal = wrap(b"\x03$literal\0" + document)
            update = b"\x04u\0" + array([(0x03, wrap(b"\x03$replaceWith\0" + literal))])
        updates.setdefault(place, []).append((wrap(query, update, _UPSERT), verdict.id))
    result: list[Command] = []
    for verb, groups in ((Verb.DELETE, deletes), (Verb.UPDATE, updates), (Verb.INSERT, inserts)):
        for (namespace, archive_uuid), group in groups.items():
            result += [
                Command(namespace, archive_uuid, verb, [s for s, _ in part], [i for _, i in part])
                for part in _by_size(group)
            ]
    return result


def _by_size(statements: list[tuple[bytes, DocId]]) -> Iterator[list[tuple[bytes, DocId]]]:
    part: list[tuple[bytes, DocId]] = []
    size = 0
    for statement in statements:
        length = len(statement[0]) + 8
        if part and (size + length > MAX_COMMAND_BYTES or len(part) >= MAX_COMMAND_STATEMENTS):
            yield part
            part, size = [], 0
        part.append(statement)
        size += length
    if part:
        yield part


def parts(verdicts: Sequence[Verdict], max_bytes: int) -> list[list[Verdict]]:
    """Split verdicts for several transactions, each at most ``max_bytes`` (or one document)."""
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
    return sum(len(v.document) for v in verdicts if v.document is not None)


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

"""Reads of single documents: by ``_id``, by a list of ids, by a unique key.

The order of the questions is the protocol's: first F, then the removal record, then A. A document
that is absent from F at the first was removed before, so its record is there at the second unless
A has caught up, which the third then shows. No barrier is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import bson
from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Coverage, Tier
from thermocline_common.ids import DOCUMENT, DocId, array, in_filter, wrap
from thermocline_common.removals import Kind, Record, hides
from thermocline_common.timing import KEEP_SECONDS
from thermocline_proxy.commands.command import Command, element, raw_element
from thermocline_proxy.commands.readconcern import SNAPSHOT, read_concern
from thermocline_proxy.ports import Reply
from thermocline_proxy.reads.lookups import Lookups
from thermocline_proxy.reads.replies import error_code, first_batch, is_final_error
from thermocline_proxy.reads.sender import Sender
from thermocline_proxy.routing.questions import EMPTY, number, raw_document
from thermocline_proxy.routing.routes import (
    ArchiveRead,
    IdsRead,
    PointRead,
    Reason,
    UniqueRead,
)

KEPT_SECONDS: Final = KEEP_SECONDS
"""An eviction comes at least 60 s after its announcement: what isn't announced stays this long."""


class Elsewhere(Exception):
    """F isn't enough for this read: the archive answers, behind the barrier."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Held(Enum):
    """Where ids are, as far as F and its records tell."""

    SETTLED = auto()
    """Each is in F and not announced to leave, or has a record that says it doesn't exist."""
    ABSENT = auto()
    """F lacks some that may be in A."""
    LEAVING = auto()
    """F has every one that exists, but some may leave any moment."""


def classify(
    ids: tuple[DocId, ...], present: frozenset[DocId], records: Mapping[DocId, Record]
) -> Held:
    """Judge ids by F's answer, and by the records read *after* it."""
    if any(doc_id not in present and not hides(records.get(doc_id)) for doc_id in ids):
        return Held.ABSENT
    # ``evicted``: gone between the two questions, or promoted since; the caller asks again.
    kinds = {record.kind for doc_id, record in records.items() if doc_id in present}
    return Held.LEAVING if kinds & {Kind.LEAVING, Kind.EVICTED} else Held.SETTLED


@dataclass(slots=True)
class KeyReads:
    """The reads of this module for one request on one tiered namespace."""

    sender: Sender
    lookups: Lookups
    coverage: Coverage

    async def by_id(self, route: PointRead) -> Reply:
        """A read by ``_id``: ``find`` as the client sent it, or a command that hides what it found."""
        if self.sender.command.name != "find":
            return await self._without_seeing((route.id,))
        reply = await self._fast_find()
        if _found(reply):
            return reply
        if not (route.whole and self.sender.primary) and await self._in_fast(route.id):
            return await self._once_more()
        return await self._after_absence(route.id)

    async def by_ids(self, route: IdsRead) -> Reply:
        """A read by ``_id: {$in: [...]}``: F's answer counts if F has them all."""
        command = self.sender.command
        bare = number(command, "skip") == 0 and number(command, "limit") == 0
        if command.name != "find" or not route.whole or not bare:
            return await self._without_seeing(route.ids)
        size = number(command, "batchSize", -1)
        if size == -1:
            command = command.changed({"batchSize": element("batchSize", len(route.ids) + 1)})
        reply = await self._fast_find(command)
        batch = first_batch(reply.raw)
        if batch is not None and batch.cursor_id == 0 and len(batch.documents) == len(route.ids):
            return reply
        await self.sender.kill(reply)
        raise Elsewhere(Reason.FAST_MISS)

    async def by_unique_key(self, route: UniqueRead) -> Reply:
        """A ``find`` by a unique key: what A would return is checked against F by its ``_id``."""
        reply = await self._fast_find()
        if _found(reply):
            return reply
        namespace, deadline = self.coverage.namespace, self.sender.request.deadline
        if not (route.whole and self.sender.primary):
            self.sender.check_lease()
            if await self.lookups.fast_has_key(namespace, route.key, deadline):
                return await self._once_more()
        self._no_snapshot()
        self.sender.check_lease()
        ids = await self.lookups.archive_ids(self.coverage, route.key, deadline)
        if not ids:
            return reply if self.sender.primary else await self._once_more()
        if len(ids) > 1:
            raise Elsewhere(Reason.FAST_MISS)
        if await self._in_fast(ids[0]):
            return await self._once_more()
        answer = await self._after_absence(ids[0], narrowed(self.sender.command, ids[0]))
        if answer.tier is Tier.ARCHIVE and answer.ok and not _found(answer):
            # The key moved to another document meanwhile, or the filter says more than the key.
            raise Elsewhere(Reason.FAST_MISS)
        return answer

    async def _after_absence(self, doc_id: DocId, command: Command | None = None) -> Reply:
        """F lacks the document: its record decides, else A."""
        self._no_snapshot()
        namespace, deadline = self.coverage.namespace, self.sender.request.deadline
        self.sender.check_lease()
        records = await self.lookups.records(namespace, (doc_id,), deadline)
        if hides(records.get(doc_id)):
            return await self._once_more()
        self.sender.count(Reason.FAST_MISS, Tier.ARCHIVE)
        return await self.sender.archive(ArchiveRead(Reason.FAST_MISS, barrier=False), command)

    async def _without_seeing(self, ids: tuple[DocId, ...]) -> Reply:
        """For answers that don't show whether a document was found: first look, then ask F."""
        self._no_snapshot()
        clock = self.sender.gateway.clock
        started = clock()
        present = await self._present(ids)
        self.sender.check_lease()
        deadline = self.sender.request.deadline
        records = await self.lookups.records(self.coverage.namespace, ids, deadline)
        held = classify(ids, present, records)
        if held is Held.LEAVING and not _announced(records):
            # Only ``evicted``: promoted before the first question, or gone since. F tells which.
            held = Held.SETTLED if await self._present(ids) >= present else Held.ABSENT
        if held is Held.SETTLED:
            reply = await self._once_more()
            batch = first_batch(reply.raw)
            # What a later batch would read may be evicted by then: nothing keeps it but the time.
            whole = batch is None or batch.cursor_id == 0
            if whole and clock() - started < KEPT_SECONDS:
                return reply
            await self.sender.kill(reply)
            raise Elsewhere(Reason.FAST_INCOMPLETE)
        if held is Held.ABSENT and len(ids) == 1:
            self.sender.count(Reason.FAST_MISS, Tier.ARCHIVE)
            return await self.sender.archive(ArchiveRead(Reason.FAST_MISS, barrier=False))
        raise Elsewhere(Reason.FAST_MISS)

    async def _present(self, ids: tuple[DocId, ...]) -> frozenset[DocId]:
        """Which ids F's primary has, asked as the client: MongoDB judges whether it may read."""
        database, _, collection = self.coverage.namespace.partition(".")
        command = Command(
            bson.encode(
                {
                    "find": collection,
                    "filter": RawBSONDocument(in_filter(ids)),
                    "projection": {"_id": 1},
                    "batchSize": len(ids) + 1,
                    "singleBatch": True,
                    "$db": database,
                }
            )
        )
        reply = await self._fast(command, to_primary=True)
        batch = first_batch(reply.raw)
        if batch is None:
            raise Elsewhere(Reason.FAST_ERROR)
        return frozenset(DocId.of_document(document) for document in batch.documents)

    async def _in_fast(self, doc_id: DocId) -> bool:
        self.sender.check_lease()
        return doc_id in await self.lookups.in_fast(
            self.coverage.namespace, (doc_id,), self.sender.request.deadline
        )

    async def _fast_find(self, command: Command | None = None) -> Reply:
        return await self._fast(command, to_primary=False)

    async def _once_more(self) -> Reply:
        """F's primary has, or lacks for good, what the read is about: its answer now is the truth."""
        return await self._fast(None, to_primary=True)

    async def _fast(self, command: Command | None, *, to_primary: bool) -> Reply:
        reply = await self.sender.fast(command, to_primary=to_primary)
        if not reply.ok and not is_final_error(error_code(reply.raw)):
            raise Elsewhere(Reason.FAST_ERROR)
        return reply

    def _no_snapshot(self) -> None:
        """A snapshot can't go on to A: let the archive's route say so."""
        concern = read_concern(self.sender.command)
        if concern.level == SNAPSHOT or concern.at is not None:
            raise Elsewhere(Reason.FAST_MISS)


def _announced(records: dict[DocId, Record]) -> bool:
    return any(record.kind is Kind.LEAVING for record in records.values())


def _found(reply: Reply) -> bool:
    """Whether the client's answer is settled: a document came, or an error that is final."""
    batch = first_batch(reply.raw)
    return batch is None or bool(batch.documents)


def narrowed(command: Command, doc_id: DocId) -> Command:
    """A ``find`` that matches at most the document with this id."""
    query = raw_document(command, "filter")
    parts = [(DOCUMENT, query)] if query != EMPTY else []
    parts.append((DOCUMENT, doc_id.document()))
    both = wrap(b"\x04$and\0" + array(parts))
    return command.changed({"filter": raw_element("filter", DOCUMENT, both)})

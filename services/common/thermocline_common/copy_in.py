"""Copying documents from the archive into the fast tier: the one way in, for warmer and promotion.

Section 3 of the architecture. Why it is safe: an insert of an ``_id`` that was inserted or deleted
after the transaction's snapshot fails with WriteConflict, every removal writes the document's own
``_id`` in F, and an evicted document's record has another token than the one seen before A was read.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from pymongo import WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from thermocline_common import names
from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, ThermoclineError
from thermocline_common.fidelity import Form, form_of, zeroing
from thermocline_common.ids import DocId, records_filter, wrap
from thermocline_common.portions import MOST_ID_BYTES, portions
from thermocline_common.raw_reads import find_by_ids, read_records, run_raw
from thermocline_common.removals import Kind, Record
from thermocline_common.reserved import reserved_sessions
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written

__all__ = [
    "CannotCopy",
    "CollectionChanged",
    "CopyPlan",
    "Kept",
    "StillChanging",
    "Tiers",
    "keep",
    "plan_copy",
]

READ_TO_WRITE_SECONDS = 30.0
"""From the read of A to the transaction's first reply; records are removed only after five minutes."""
MAX_TRANSACTION_BYTES = 8 * 1024 * 1024
MAX_COMMAND_BYTES = 12 * 1024 * 1024
MAX_IDS = 500
ATTEMPTS = 20
LONGEST_BACK_OFF_SECONDS = 0.1
"""Between two attempts; all of them together take more than a second."""

Pause = Callable[[str], Awaitable[None]]
"""A test's pause point: awaited with the name of the step that comes next."""


class CannotCopy(ThermoclineError):
    """A document can't be written to the fast tier with its bytes unchanged, or conflicts never ended."""


class StillChanging(CannotCopy):
    """Others kept writing the documents while they were copied; later it works."""


class CollectionChanged(ThermoclineError):
    """A collection isn't the one that the coverage document names: it was dropped, renamed or made anew."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the ids asked for are now. Every id is in exactly one of ``present``, ``hidden``, ``absent``.

    ``present``: in F and not ``leaving``; ``copied`` are those of them that this call brought in.
    ``hidden``: a ``deleted`` or ``expired`` record says that they don't exist.
    ``absent``: in neither tier (or, with ``promote=False``, not in F).
    """

    present: frozenset[DocId] = frozenset()
    copied: frozenset[DocId] = frozenset()
    hidden: frozenset[DocId] = frozenset()
    absent: frozenset[DocId] = frozenset()

    def __or__(self, other: "Kept") -> "Kept":
        return Kept(
            self.present | other.present,
            self.copied | other.copied,
            self.hidden | other.hidden,
            self.absent | other.absent,
        )


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What one transaction does, decided from what it read."""

    outcome: Kept
    write: tuple[RawBSONDocument, ...] = ()
    stay: tuple[DocId, ...] = ()
    """Ids whose ``leaving`` record is removed."""
    again: frozenset[DocId] = frozenset()
    """Ids whose record changed since A was read: start over with them."""


def plan_copy(
    ids: Iterable[DocId],
    existing: Iterable[DocId],
    records: Mapping[DocId, Record],
    before: Mapping[DocId, Record],
    documents: Mapping[DocId, RawBSONDocument],
) -> CopyPlan:
    """Decide, for each id, from F's snapshot (``existing``, ``records``), the records seen before A
    was read (``before``) and A's documents."""
    have = set(existing)
    present, copied, hidden, absent, again = set(), set(), set(), set(), set()
    write, stay = [], []
    for doc_id in ids:
        record = records.get(doc_id)
        seen = before.get(doc_id)
        if doc_id in have:
            present.add(doc_id)
            if record is not None and record.kind is Kind.LEAVING:
                stay.append(doc_id)
        elif record is not None and record.hides:
            hidden.add(doc_id)
        elif (record and record.token) != (seen and seen.token):
            again.add(doc_id)
        elif doc_id in documents:
            present.add(doc_id)
            copied.add(doc_id)
            write.append(documents[doc_id])
            if record is not None and record.kind is Kind.LEAVING:
                stay.append(doc_id)
        else:
            absent.add(doc_id)
    outcome = Kept(frozenset(present), frozenset(copied), frozenset(hidden), frozenset(absent))
    return CopyPlan(outcome, tuple(write), tuple(stay), frozenset(again))


@dataclass(slots=True)
class _Work:
    tiers: Tiers
    coverage: Coverage
    promote: bool
    pause: Pause | None
    clock: Callable[[], float]
    result: Kept = field(default_factory=Kept)


async def keep(
    tiers: Tiers,
    coverage: Coverage,
    ids: Iterable[DocId],
    *,
    promote: bool = True,
    pause: Pause | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Kept:
    """Make documents stay in F: those that exist are in F and not ``leaving`` afterwards.

    ``promote=False`` copies nothing, it only cancels ``leaving`` of what is in F. The result holds
    for ten seconds, because an eviction comes at least sixty seconds after a new announcement.
    Raises :class:`CollectionChanged` (take a fresh coverage document), :class:`CannotCopy`, or
    PyMongo's errors where a tier can't be reached; nothing half-done is left in any case.
    """
    work = _Work(tiers, coverage, promote, pause, clock)
    for portion in portions(list(dict.fromkeys(ids)), MAX_IDS):
        await _keep_chunk(work, portion)
    return work.result


async def _keep_chunk(work: _Work, ids: list[DocId]) -> None:
    left = ids
    for attempt in range(ATTEMPTS):
        if not left:
            return
        if attempt > 1:
            # An eviction's open transaction refuses each of our writes at once until it has ended.
            await asyncio.sleep(min(LONGEST_BACK_OFF_SECONDS, 0.001 * 2**attempt))
        before = await read_records(work.tiers.fast, work.coverage.namespace, left)
        if work.promote:
            await _refresh_archive_time(work)
        await _paused(work, "read archive")
        started = work.clock()
        documents = await _read_archive(work, left, before) if work.promote else {}
        try:
            left = await _copy(work, left, before, documents, started)
        except OperationFailure as error:
            if error.code == Code.CollectionUUIDMismatch:
                raise CollectionChanged(f"{work.coverage.namespace}: {error}") from error
            if not _transient(error):
                raise
        except PyMongoError as error:
            # An unknown outcome is no harm: the next turn finds the copies in F, or writes them.
            if not error.has_error_label("TransientTransactionError"):
                raise
    if left:
        raise StillChanging(
            f"{work.coverage.namespace}: {len(left)} documents kept changing while they were copied "
            f"into the fast tier; {ATTEMPTS} attempts"
        )


def _transient(error: OperationFailure) -> bool:
    return error.has_error_label("TransientTransactionError") or error.code in (
        Code.WriteConflict,
        Code.NoSuchTransaction,
        Code.DuplicateKey,
    )


async def _paused(work: _Work, step: str) -> None:
    if work.pause is not None:
        await work.pause(step)


async def _refresh_archive_time(work: _Work) -> None:
    """Take the archive time of now, after the records: what was evicted before they were read left it
    there in the same transaction, and no member of A that is behind it may answer."""
    known = work.coverage
    coverages = work.tiers.fast.get_database(names.DATABASE, codec_options=PLAIN)[names.COVERAGE]
    fields = {"archiveTime": 1, "archiveClusterTime": 1}
    found = await coverages.find_one({"_id": known.namespace}, fields) or {}
    time = found.get("archiveTime")
    if time is not None and (known.archive_time is None or time > known.archive_time):
        work.coverage = replace(
            known, archive_time=time, archive_cluster_time=found.get("archiveClusterTime")
        )


async def _read_archive(
    work: _Work, ids: list[DocId], before: Mapping[DocId, Record]
) -> dict[DocId, RawBSONDocument]:
    coverage = work.coverage
    wanted = [i for i in ids if not (i in before and before[i].hides)]
    if coverage.archive_uuid is None or not wanted:
        return {}
    concern: dict[str, Any] = {"level": "majority"}
    if coverage.archive_time is not None:
        concern["afterClusterTime"] = coverage.archive_time
    fields = {"readConcern": concern, "collectionUUID": Binary.from_uuid(coverage.archive_uuid)}
    try:
        return await find_by_ids(
            work.tiers.archive,
            coverage.namespace,
            wanted,
            fields=fields,
            cluster_time=coverage.archive_cluster_time,
        )
    except OperationFailure as error:
        if error.code == Code.CollectionUUIDMismatch:
            raise CollectionChanged(f"{coverage.namespace}: {error}") from error
        raise


async def _copy(
    work: _Work,
    ids: list[DocId],
    before: Mapping[DocId, Record],
    documents: Mapping[DocId, RawBSONDocument],
    started: float,
) -> list[DocId]:
    """One transaction; returns the ids that are left for another turn."""
    taken: list[DocId] = []
    size = 0
    for doc_id in ids:
        size += len(documents[doc_id].raw) if doc_id in documents else 0
        if taken and size > MAX_TRANSACTION_BYTES:
            break
        taken.append(doc_id)
    rest = ids[len(taken) :]
    client = work.tiers.fast
    async with reserved_sessions(client).session() as session:
        await session.start_transaction(
            read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
        )
        try:
            plan = await _read_and_plan(work, session, taken, before, documents)
            if work.clock() - started > READ_TO_WRITE_SECONDS:
                await session.abort_transaction()
                return ids
            await _paused(work, "write copies")
            await _write(work, session, plan)
            await _paused(work, "commit copies")
            await session.commit_transaction()
        except BaseException:
            if session.in_transaction:
                await session.abort_transaction()
            raise
    work.result |= plan.outcome
    return [*plan.again, *rest]


async def _read_and_plan(
    work: _Work,
    session: AsyncClientSession,
    ids: list[DocId],
    before: Mapping[DocId, Record],
    documents: Mapping[DocId, RawBSONDocument],
) -> CopyPlan:
    coverage = work.coverage
    fields: dict[str, Any] = {"projection": {"_id": 1}}
    if coverage.fast_uuid is not None:
        fields["collectionUUID"] = Binary.from_uuid(coverage.fast_uuid)
    existing = await find_by_ids(
        work.tiers.fast, coverage.namespace, ids, fields=fields, session=session
    )
    records = await read_records(work.tiers.fast, coverage.namespace, ids, session=session)
    return plan_copy(ids, existing, records, before, documents)


async def _write(work: _Work, session: AsyncClientSession, plan: CopyPlan) -> None:
    coverage = work.coverage
    database, collection = coverage.namespace.split(".", 1)
    if plan.stay:
        raw = records_filter(coverage.namespace, plan.stay)
        query = RawBSONDocument(raw)
        command = {"delete": names.REMOVED, "deletes": [{"q": query, "limit": 0}]}
        require_written(await run_raw(work.tiers.fast, names.DATABASE, command, session=session))
    extra: dict[str, Any] = {"bypassDocumentValidation": True}
    if coverage.fast_uuid is not None:
        extra["collectionUUID"] = Binary.from_uuid(coverage.fast_uuid)
    for form, documents in _command_batches(plan.write):
        if form in (Form.REPLACEMENT, Form.INSERT):
            command = {"insert": collection, "documents": documents, **extra}
        else:
            updates = [
                {
                    "q": RawBSONDocument(DocId.of_document(bytes(d.raw)).document()),
                    "u": [{"$replaceWith": {"$literal": d}}],
                    "upsert": True,
                }
                for d in documents
            ]
            command = {"update": collection, "updates": updates, **extra}
        require_written(await run_raw(work.tiers.fast, database, command, session=session))
        zeros = [s for d in documents if (s := zeroing(bytes(d.raw))) is not None]
        if form is Form.INSERT and zeros:
            command = {
                "update": collection,
                "updates": [RawBSONDocument(z) for z in zeros],
                **extra,
            }
            require_written(await run_raw(work.tiers.fast, database, command, session=session))


def _command_batches(
    documents: Iterable[RawBSONDocument],
) -> Iterable[tuple[Form, list[RawBSONDocument]]]:
    """Group documents by the form that writes their bytes unchanged, within a command's size."""
    by_form: dict[Form, list[RawBSONDocument]] = {}
    for document in documents:
        form = form_of(bytes(document.raw))
        identity = DocId.of_document(bytes(document.raw))
        if len(identity.value) > MOST_ID_BYTES:
            raise CannotCopy(
                f"a document's _id has {len(identity.value)} bytes, and the fast tier takes "
                f"{MOST_ID_BYTES} at most; the _id begins with (BSON): {identity.element()[:100].hex()}"
            )
        if form is Form.NONE:
            raise CannotCopy(
                "a document repeats field names and has a top-level Timestamp(0, 0) that no update can name: no "
                f"write keeps its bytes; _id (BSON): {wrap(identity.element()).hex()}"
            )
        by_form.setdefault(form, []).append(document)
    for form, group in by_form.items():
        batch: list[RawBSONDocument] = []
        size = 0
        for document in group:
            if batch and size + len(document.raw) > MAX_COMMAND_BYTES:
                yield form, batch
                batch, size = [], 0
            batch.append(document)
            size += len(document.raw)
        if batch:
            yield form, batch

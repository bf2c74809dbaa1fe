"""The transaction that evicts: at the feeder's checkpoint, so that nothing unconfirmed can leave.

Whatever was written after that time to a document, to its record or to the coverage document makes
it fail with WriteConflict, also what was changed and changed back.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from thermocline_common import names
from thermocline_common.clock import Clock
from thermocline_common.coverage import Coverage, State, parse_coverage
from thermocline_common.errors import Code
from thermocline_common.ids import DocId, in_filter
from thermocline_common.raw_reads import find_by_ids, read_records, run_raw
from thermocline_common.removals import Kind
from thermocline_common.reserved import reserved_sessions
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written
from thermocline_evictor.confirm import ArchiveView
from thermocline_evictor.plan.verdicts import Verdict, final
from thermocline_evictor.records import record_query

Pause = Callable[[str], Awaitable[None]]
"""A test's pause point: awaited with the name of the step that comes next."""
Announced = Mapping[DocId, tuple[uuid.UUID, bytes]]


_TOO_LATE = frozenset(
    {
        Code.WriteConflict,
        Code.NoSuchTransaction,
        Code.SnapshotTooOld,
        Code.SnapshotUnavailable,
    }
)
"""Another time may work."""


class SnapshotAt(ReadConcern):
    """``snapshot`` at a given cluster time, which PyMongo has no name for."""

    def __init__(self, time: Timestamp) -> None:
        super().__init__("snapshot")
        self._time = time

    @property
    def document(self) -> dict[str, Any]:
        """What the transaction's first command carries."""
        return {"level": "snapshot", "atClusterTime": self._time}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One transaction's outcome.

    ``deleted``: what was found equal in both tiers, with the tokens of their ``evicted`` records; where ``doubtful``, nobody knows yet
    whether it committed. ``others``: what else became of candidates. ``conflict``: something was
    written after the checkpoint; nothing was done. ``removed``: deletions as the server counted
    them. ``stale``: the coverage document isn't the one
    that was waited for; nothing was done. ``open_seconds``: how long
    documents were held before the commit.
    """

    deleted: Mapping[DocId, uuid.UUID]
    others: Mapping[DocId, Verdict]
    conflict: bool = False
    stale: bool = False
    doubtful: bool = False
    removed: int = 0
    open_seconds: float = 0.0


@dataclass(slots=True)
class Deleter:
    """Evicts from one namespace. ``judge``: verdicts from F's bytes, the archive's view and the coverage."""

    tiers: Tiers
    clock: Clock
    pause: Pause | None = None

    async def evict(
        self,
        waited: Coverage,
        view: ArchiveView,
        announced: Announced,
        judge: Callable[[Coverage, Mapping[DocId, bytes]], dict[DocId, Verdict]],
    ) -> Attempt:
        """Evict what may go of ``announced``.

        ``waited``: the coverage document whose ``raised`` was waited for. Raises PyMongo's errors;
        then nothing was done, but where the commit's outcome is unknown, which is told as doubtful.
        """
        state = _Running({}, {})
        try:
            async with reserved_sessions(self.tiers.fast).session() as session:
                await session.start_transaction(
                    read_concern=SnapshotAt(view.checkpoint),
                    write_concern=WriteConcern("majority", wtimeout=10_000),
                )
                try:
                    return await self._run(session, state, waited, view, announced, judge)
                except BaseException:
                    if session.in_transaction:
                        await session.abort_transaction()
                    raise
        except OperationFailure as error:
            if state.committing and error.has_error_label("UnknownTransactionCommitResult"):
                return Attempt(state.deleting, state.others, doubtful=True)
            if error.code in _TOO_LATE or error.has_error_label("TransientTransactionError"):
                return Attempt({}, {}, conflict=True)
            raise
        except PyMongoError:
            if state.committing:
                return Attempt(state.deleting, state.others, doubtful=True)
            raise

    async def _run(
        self,
        session: AsyncClientSession,
        state: "_Running",
        waited: Coverage,
        view: ArchiveView,
        announced: Announced,
        judge: Callable[[Coverage, Mapping[DocId, bytes]], dict[DocId, Verdict]],
    ) -> Attempt:
        tiers, namespace = self.tiers, waited.namespace
        fields: dict[str, Any] = {}
        if waited.fast_uuid is not None:
            fields["collectionUUID"] = Binary.from_uuid(waited.fast_uuid)
        found = await find_by_ids(tiers.fast, namespace, announced, fields=fields, session=session)
        fast = {i: bytes(document.raw) for i, document in found.items()}
        records = await read_records(tiers.fast, namespace, announced, session=session)
        coverage = await _coverage_in(tiers, session, namespace)
        if coverage is None or not same_footing(coverage, waited):
            await session.abort_transaction()
            return Attempt({}, {}, stale=True)
        verdicts = final(judge(coverage, fast), fast, records, announced)
        deleting = [i for i, verdict in verdicts.items() if verdict is Verdict.DELETABLE]
        state.others = {i: v for i, v in verdicts.items() if v is not Verdict.DELETABLE}
        if not deleting:
            await session.abort_transaction()
            return Attempt({}, state.others)
        await self._paused("delete")
        state.deleting = {i: uuid.uuid4() for i in deleting}
        await _record(tiers, session, namespace, state.deleting)
        await _touch(tiers, session, namespace, view)
        # The documents last: from here to the commit, writers of these documents wait.
        opened = self.clock()
        removed = await _delete(tiers, session, namespace, deleting, fields)
        open_seconds = self.clock() - opened
        await self._paused("commit")
        state.committing = True
        await session.commit_transaction()
        return Attempt(state.deleting, state.others, removed=removed, open_seconds=open_seconds)

    async def _paused(self, step: str) -> None:
        if self.pause is not None:
            await self.pause(step)


@dataclass(slots=True)
class _Running:
    """How far a transaction got."""

    deleting: dict[DocId, uuid.UUID]
    others: dict[DocId, Verdict]
    committing: bool = False


def same_footing(now: Coverage, waited: Coverage) -> bool:
    """Whether eviction may go on under ``now`` after the wait for ``waited``."""
    return (
        now.raised == waited.raised
        and now.epoch == waited.epoch
        and now.state is State.ACTIVE
        and now.target is State.ACTIVE
        and now.age_field == waited.age_field
        and now.fast_uuid == waited.fast_uuid
        and now.archive_uuid == waited.archive_uuid
    )


async def _coverage_in(
    tiers: Tiers, session: AsyncClientSession, namespace: str
) -> Coverage | None:
    database = tiers.fast.get_database(names.DATABASE, codec_options=PLAIN)
    found = await database[names.COVERAGE].find_one({"_id": namespace}, session=session)
    return parse_coverage(found) if found is not None else None


async def _delete(
    tiers: Tiers,
    session: AsyncClientSession,
    namespace: str,
    ids: Iterable[DocId],
    fields: Mapping[str, Any],
) -> int:
    database, collection = namespace.split(".", 1)
    wanted = list(ids)
    query = RawBSONDocument(in_filter(wanted))
    command = {"delete": collection, "deletes": [{"q": query, "limit": 0}], **fields}
    return await _expect(tiers, session, database, command, len(wanted))


async def _record(
    tiers: Tiers, session: AsyncClientSession, namespace: str, tokens: Mapping[DocId, uuid.UUID]
) -> None:
    updates = [
        {
            "q": record_query(namespace, doc_id),
            "u": {"$set": {"kind": Kind.EVICTED.value, "token": Binary.from_uuid(token)}},
        }
        for doc_id, token in tokens.items()
    ]
    command = {"update": names.REMOVED, "updates": updates}
    await _expect(tiers, session, names.DATABASE, command, len(tokens))


async def _touch(
    tiers: Tiers, session: AsyncClientSession, namespace: str, view: ArchiveView
) -> None:
    """Write the coverage document, so that a claim or a raise conflicts; with it goes the time from
    which on the archive is known to hold what leaves here."""
    later = {"$lt": ["$archiveTime", view.time]}
    change = {
        "touched": {"$add": [{"$ifNull": ["$touched", 0]}, 1]},
        "archiveTime": {"$cond": [later, view.time, "$archiveTime"]},
        "archiveClusterTime": {
            "$cond": [later, {"$literal": dict(view.cluster_time)}, "$archiveClusterTime"]
        },
    }
    command = {
        "update": names.COVERAGE,
        "updates": [{"q": {"_id": namespace}, "u": [{"$set": change}]}],
    }
    await _expect(tiers, session, names.DATABASE, command, 1)


async def _expect(
    tiers: Tiers,
    session: AsyncClientSession,
    database: str,
    command: Mapping[str, Any],
    count: int,
) -> int:
    reply = await run_raw(tiers.fast, database, command, session=session)
    require_written(reply)
    if int(reply["n"]) != count:
        # In the snapshot that was just read it can't be: better nothing than something unexplained.
        raise OperationFailure(
            f"a transaction changed {reply['n']} documents instead of {count}", Code.WriteConflict
        )
    return int(reply["n"])

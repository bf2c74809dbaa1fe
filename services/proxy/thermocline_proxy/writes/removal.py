"""The record transaction: ``deleted`` records for documents that F has, before a client's delete."""

import uuid
from collections.abc import Iterable
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from pymongo import WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from thermocline_common import names
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DOCUMENT, DocId, record_id, wrap
from thermocline_common.raw_reads import find_by_ids, run_raw
from thermocline_common.removals import Kind
from thermocline_common.tiers import Tiers
from thermocline_common.write_replies import require_written
from thermocline_proxy.commands.command import raw_element

ATTEMPTS = 20


async def record_deletions(tiers: Tiers, namespace: str, ids: Iterable[DocId]) -> frozenset[DocId]:
    """Write ``deleted`` records for those of the ids that F has, at majority; returns them.

    Never in a reserved session: the feeder must see these records. A ``leaving`` record is replaced,
    which cancels the departure. Raises PyMongo's errors, or ``CommandError`` 262 where conflicts
    never ended.
    """
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return frozenset()
    async with tiers.fast.start_session(causal_consistency=False) as session:
        for _ in range(ATTEMPTS):
            try:
                return await _transaction(tiers, session, namespace, wanted)
            except PyMongoError as error:
                # An outcome that isn't known does no harm: records are written anew, with new tokens.
                if not _transient(error):
                    raise
    raise CommandError(
        Code.ExceededTimeLimit, f"{namespace}: removal records met conflicts {ATTEMPTS} times"
    )


def _transient(error: PyMongoError) -> bool:
    return (
        error.has_error_label("TransientTransactionError")
        or error.has_error_label("UnknownTransactionCommitResult")
        or (isinstance(error, OperationFailure) and error.code == Code.DuplicateKey)
    )


async def _transaction(
    tiers: Tiers, session: AsyncClientSession, namespace: str, ids: list[DocId]
) -> frozenset[DocId]:
    await session.start_transaction(
        read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
    )
    try:
        there = await find_by_ids(
            tiers.fast, namespace, ids, fields={"projection": {"_id": 1}}, session=session
        )
        if there:
            reply = await run_raw(
                tiers.fast, names.DATABASE, _records_command(namespace, there), session=session
            )
            require_written(reply)
            await session.commit_transaction()
        else:
            await session.abort_transaction()
    except BaseException:
        if session.in_transaction:
            await session.abort_transaction()
        raise
    return frozenset(there)


def _records_command(namespace: str, ids: Iterable[DocId]) -> dict[str, Any]:
    change = {"$set": {"kind": Kind.DELETED.value, "token": Binary.from_uuid(uuid.uuid4())}}
    updates = []
    for doc_id in ids:
        key = raw_element("_id", DOCUMENT, record_id(namespace, doc_id))
        updates.append({"q": RawBSONDocument(wrap(key)), "u": change, "upsert": True})
    return {"update": names.REMOVED, "updates": updates}

"""One transaction on A: the checkpoint first, then the documents. A fenced feeder applies nothing."""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from thermocline_common import names
from thermocline_common.raw_reads import Client, run_raw
from thermocline_common.reserved import reserved_sessions
from thermocline_common.write_replies import first_write_error, require_written
from thermocline_feeder.checkpoint import Fenced
from thermocline_feeder.plan.batches import Command, Verb

COMMIT_ATTEMPTS = 3


class Statement(RawBSONDocument):
    """Bytes that are BSON for sure: as a ``RawBSONDocument``, without its checks, which cost as much as the rest."""

    __slots__ = ("raw",)
    raw: bytes

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class Refused(Exception):
    """The archive refused one statement; nothing of the transaction was applied.

    ``details`` is the server's write error. ``command`` and ``index`` name the document.
    """

    def __init__(self, command: Command, index: int, code: int, details: Mapping[str, Any]) -> None:
        super().__init__(str(details.get("errmsg", "")))
        self.command = command
        self.index = index
        self.code = code
        self.details = details

    @property
    def key(self) -> tuple[str, Any]:
        """Namespace and id of the document."""
        return (self.command.namespace, self.command.ids[self.index])


class Unexpected(Exception):
    """Documents that are written together aren't all there, or one is refused; nothing was applied.

    Which one it is isn't said: write each by itself.
    """


class RefusedWhole(Exception):
    """The archive refused a whole command, without naming a statement."""

    def __init__(self, command: Command, error: OperationFailure) -> None:
        super().__init__(str(error))
        self.command = command
        self.error = error


async def apply(
    archive: Client, me: uuid.UUID, commands: Sequence[Command], checkpoint: Mapping[str, Any]
) -> None:
    """Write the documents and set the checkpoint's fields in one transaction, ``w: majority``.

    Raises :class:`Fenced`, :class:`Refused`, :class:`RefusedWhole`, :class:`Unexpected`, or PyMongo's errors. Doing it
    again is no harm: the same state is written.
    """
    async with reserved_sessions(archive).session() as session:
        await session.start_transaction(
            read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
        )
        try:
            await _fence(archive, me, session, checkpoint)
            for command in commands:
                await _write(archive, session, command)
            await _commit(session)
        except BaseException:
            if session.in_transaction:
                await _abort(session)
            raise


async def _commit(session: AsyncClientSession) -> None:
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            await session.commit_transaction()
            return
        except PyMongoError as error:
            unknown = error.has_error_label("UnknownTransactionCommitResult")
            if not unknown or attempt + 1 == COMMIT_ATTEMPTS:
                raise


async def _abort(session: AsyncClientSession) -> None:
    with contextlib.suppress(PyMongoError):  # a server that is away ends it by itself
        await session.abort_transaction()


async def _fence(
    archive: Client, me: uuid.UUID, session: AsyncClientSession, fields: Mapping[str, Any]
) -> None:
    change: dict[str, Any] = {"$inc": {"heartbeat": Int64(1)}}
    if fields:
        change["$set"] = dict(fields)
    reply = await archive[names.DATABASE].command(
        {
            "update": names.CHECKPOINT,
            "updates": [
                {"q": {"_id": names.CHECKPOINT_ID, "feeder": Binary.from_uuid(me)}, "u": change}
            ],
        },
        session=session,
    )
    require_written(reply)
    if reply["n"] != 1:
        raise Fenced("another feeder has taken over replay")


async def _write(archive: Client, session: AsyncClientSession, command: Command) -> None:
    database, collection = command.namespace.split(".", 1)
    body: dict[str, Any] = {
        {Verb.DELETE: "delete", Verb.UPDATE: "update", Verb.INSERT: "insert"}[
            command.verb
        ]: collection,
        command.verb.value: list(map(Statement, command.statements)),
    }
    if command.verb is not Verb.DELETE:
        body["bypassDocumentValidation"] = True
    if command.archive_uuid is not None:
        body["collectionUUID"] = Binary.from_uuid(command.archive_uuid)
    try:
        reply = await run_raw(archive, database, body, session=session)
    except OperationFailure as error:
        if error.has_error_label("TransientTransactionError"):
            raise
        raise RefusedWhole(command, error) from error
    first = first_write_error(reply)
    if command.together and (first is not None or reply["n"] != len(command.ids)):
        raise Unexpected
    if first is not None:
        raise Refused(command, int(first["index"]), int(first["code"]), first)

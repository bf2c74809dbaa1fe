"""Trying a client's statement on F in a transaction that is aborted, to learn what it would write."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_raw, run_raw
from thermocline_common.reserved import reserved_sessions
from thermocline_proxy.commands.command import CODEC, Command
from thermocline_proxy.wire.decoding import decoded
from thermocline_proxy.writes.replies import parse_outcome
from thermocline_proxy.writes.run import Run
from thermocline_proxy.writes.statements import fields_of, replaced
from thermocline_proxy.writes.targets import Target

ATTEMPTS: Final = 20
_CLIENTS_OWN: Final = frozenset(
    {
        "$db", "lsid", "txnNumber", "stmtId", "stmtIds", "$clusterTime", "$readPreference",
        "writeConcern", "readConcern", "maxTimeMS", "apiVersion", "apiStrict", "apiDeprecationErrors",
        "new", "fields",
    }
)  # fmt: skip
_SESSIONS_OWN: Final[dict[bytes, bytes | None]] = {
    b"$clusterTime": None,
    b"operationTime": None,
    b"errorLabels": None,
    b"electionId": None,
    b"opTime": None,
}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the statement would do: the document before (None: nothing matches) and after it.

    ``error``: the raw reply with the error that it would meet.
    """

    before: bytes | None = None
    after: bytes | None = None
    error: bytes | None = None


async def rehearse_update(run: Run, target: Target, query: bytes) -> Rehearsal:
    """Try the update on the one document that ``query`` finds in F."""

    async def attempt(session: AsyncClientSession) -> Rehearsal:
        fields = {**target.lookup(), "limit": 1, "singleBatch": True}
        before = await _first(run, session, query, fields)
        if before is None:
            return Rehearsal()
        error = _error(await _try(run, session, target.command(query=query)))
        if error is not None:
            return Rehearsal(before, None, error)
        same = DocId.of_document(before).document()
        return Rehearsal(before, await _first(run, session, same, {"limit": 1}))

    return await _in_aborted_transaction(run, attempt)


async def rehearse_upsert(run: Run, target: Target) -> Rehearsal:
    """Try the upsert; ``before`` stays None, ``after`` is None if a document matched after all."""

    async def attempt(session: AsyncClientSession) -> Rehearsal:
        reply = await _try(run, session, target.command(upsert=True))
        error = _error(reply)
        if error is not None:
            return Rehearsal(error=error)
        inserted = _upserted(reply)
        if inserted is None:
            return Rehearsal()
        return Rehearsal(after=await _first(run, session, inserted.document(), {"limit": 1}))

    return await _in_aborted_transaction(run, attempt)


async def _in_aborted_transaction(
    run: Run, attempt: Callable[[AsyncClientSession], Awaitable[Rehearsal]]
) -> Rehearsal:
    for _ in range(ATTEMPTS):
        async with (
            run.bounded(),
            reserved_sessions(run.gateway.tiers.fast).session() as session,
        ):
            await session.start_transaction(
                read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
            )
            try:
                return await attempt(session)
            except OperationFailure as error:
                if not error.has_error_label("TransientTransactionError"):
                    return Rehearsal(error=_stripped(_details(error)))
            finally:
                if session.in_transaction:
                    await session.abort_transaction()
        await asyncio.sleep(0.005)
    raise CommandError(
        Code.ExceededTimeLimit,
        f"{run.namespace}: trying this update met conflicts {ATTEMPTS} times in a row",
    )


async def _first(
    run: Run, session: AsyncClientSession, query: bytes, fields: dict[str, Any]
) -> bytes | None:
    command = {"find": run.collection, "filter": RawBSONDocument(query), **fields}
    found = find_raw(run.gateway.tiers.fast, run.database, command, session=session)
    async for document in found:
        return bytes(document.raw)
    return None


async def _try(run: Run, session: AsyncClientSession, command: Command) -> bytes:
    fields: dict[str, Any] = {
        name: value
        for name, value in RawBSONDocument(command.body, CODEC).items()
        if name not in _CLIENTS_OWN
    }
    for name, documents in command.sequences.items():
        fields[name] = [RawBSONDocument(raw) for raw in documents]
    return bytes((await run_raw(run.gateway.tiers.fast, run.database, fields, session=session)).raw)


def _error(reply: bytes) -> bytes | None:
    outcome = parse_outcome(reply)
    if not outcome.failed:
        return None
    for _, error in outcome.errors:
        # In a transaction a conflict is a reason to try again, not the client's error.
        code = decoded(error)["code"]
        if code == Code.WriteConflict:
            raise OperationFailure(
                "WriteConflict", code, {"errorLabels": ["TransientTransactionError"]}
            )
    return _stripped(reply)


def _details(error: OperationFailure) -> bytes:
    details = error.details
    if isinstance(details, RawBSONDocument):
        return bytes(details.raw)
    return bson.encode(dict(details or {}))


def _stripped(reply: bytes) -> bytes:
    return replaced(reply, {n: None for n in _SESSIONS_OWN if n in fields_of(reply)})


def _upserted(reply: bytes) -> DocId | None:
    fields = fields_of(reply)
    if b"lastErrorObject" in fields:
        given = fields_of(fields[b"lastErrorObject"][1]).get(b"upserted")
        return None if given is None else DocId.of_value(*given)
    for _, entry in parse_outcome(reply).upserted:
        return DocId.of_value(*fields_of(entry)[b"_id"])
    return None

"""Writes in a transaction on F: F acts, then the archive is asked whether it held anything that counts."""

import dataclasses
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from thermocline_common.errors import CommandError
from thermocline_common.ids import DocId
from thermocline_proxy.ports import Reply
from thermocline_proxy.transactions.deleting import delete, find_and_remove
from thermocline_proxy.transactions.inside import Failed, LookUpFailed
from thermocline_proxy.transactions.statement import MOST_PROMOTED, Statement
from thermocline_proxy.writes import inserts
from thermocline_proxy.writes.changes import touches_unique
from thermocline_proxy.writes.choice import narrow
from thermocline_proxy.writes.filters import storable
from thermocline_proxy.writes.refusal import refuse_long
from thermocline_proxy.writes.replies import error_codes, merge, parse_outcome, write_error
from thermocline_proxy.writes.statements import KINDS, Batch, Kind, fields_of, number, parse_batch
from thermocline_proxy.writes.targets import FindAndModifyTarget, StatementTarget, Target


async def write(statement: Statement) -> Reply:
    """Carry out one write command. Raises ``Cold``, ``Failed`` or ``CommandError``."""
    command = statement.command
    if command.name in KINDS:
        batch = parse_batch(command)
        if batch is None:
            return await statement.inside.send(command)  # refused, in the server's words
        return await _batch(statement, batch)
    target = FindAndModifyTarget(command)
    if not target.well_formed:
        return await statement.inside.send(command)
    if target.remove:
        return await find_and_remove(statement, target)
    return await _find_and_modify(statement, target)


async def _batch(statement: Statement, batch: Batch) -> Reply:
    if batch.kind is Kind.INSERT:
        return await _insert(statement, batch)
    parts: list[tuple[Sequence[int], bytes]] = []
    last: Reply | None = None
    for indexes in _groups(statement, batch):
        try:
            last = await _piece(statement, batch, indexes)
        except LookUpFailed as failed:
            if not failed.of_statement:
                raise
            last = _as_write_error(failed.reply, batch.kind)
        parts.append((indexes, last.raw))
        if parse_outcome(last.raw).failed:
            break  # any error ends a transaction
    assert last is not None
    return Reply(merge(parts), last.tier, last.member, last.operation_time)


def _as_write_error(reply: Reply, kind: Kind) -> Reply:
    fields = reply.decode()
    error = CommandError(int(fields["code"]), str(fields["errmsg"]))
    return dataclasses.replace(reply, raw=write_error(error, kind))


def _groups(statement: Statement, batch: Batch) -> Iterator[list[int]]:
    """Statements that go together: consecutive ones, each about one ``_id`` and no unique key."""
    group: list[int] = []
    for index in range(len(batch.documents)):
        target = StatementTarget(batch, index)
        if target.doc_id is not None and not touches_unique(statement.coverage, target.update):
            group.append(index)
            continue
        if group:
            yield group
            group = []
        yield [index]
    if group:
        yield group


async def _piece(statement: Statement, batch: Batch, indexes: list[int]) -> Reply:
    if batch.kind is Kind.DELETE:
        return await delete(statement, batch, indexes)
    targets = [StatementTarget(batch, i) for i in indexes]
    if all(t.doc_id is not None for t in targets):
        return await _update_by_id(statement, batch, indexes, targets)
    if targets[0].statement.multi:
        return await _update_many(statement, targets[0])
    return await _update_one(statement, targets[0])


async def _insert(statement: Statement, batch: Batch) -> Reply:
    documents = [inserts.with_id(document) for document in batch.documents]
    refuse_long(map(DocId.of_document, documents))
    reply = await statement.inside.send(batch.part(range(len(documents)), documents))
    tried = documents[: _tried(reply.raw, len(documents))]
    await statement.expect_absent(map(DocId.of_document, tried))
    await statement.expect_no_rivals(tried)
    return reply


async def _update_by_id(
    statement: Statement, batch: Batch, indexes: list[int], targets: Sequence[StatementTarget]
) -> Reply:
    reply = await statement.inside.send(batch.part(indexes))
    outcome = parse_outcome(reply.raw)
    ids = [t.doc_id for t in targets if t.doc_id is not None and storable(t.doc_id)]
    if outcome.failed:
        # With the documents that the archive holds, another statement may have met an error first.
        await statement.expect_absent(ids[: _tried(reply.raw, len(ids))])
        return reply
    if outcome.upserted:
        await statement.expect_new(_upserted(reply.raw))
    if outcome.n < len(indexes):
        await statement.expect_seen(ids)
    if any(touches_unique(statement.coverage, t.update) for t in targets):
        await _ask_for_keys(statement, ids)
    return reply


async def _update_one(statement: Statement, target: StatementTarget) -> Reply:
    command = target.command(upsert=True)
    chosen: list[DocId] = []
    if touches_unique(statement.coverage, target.update):
        # The document has to be known, so that its new keys can be asked for.
        chosen = await statement.inside.matches(
            statement.namespace, target.query, target.lookup(), limit=1
        )
        if chosen:
            command = target.command(query=narrow(target, chosen), upsert=True)
    reply = await statement.inside.send(command)
    outcome = parse_outcome(reply.raw)
    if outcome.failed:
        if target.upsert and not chosen:
            looking = statement.expect_no_cold(target.query, target.lookup(), most=1)
            await _unless_refused_alike(reply.raw, looking)
        return reply
    if outcome.n == 0 or outcome.upserted or target.ordered:
        most = MOST_PROMOTED + 1 if target.ordered else 1
        await statement.expect_no_cold(target.query, target.lookup(), most=most)
        await statement.expect_new(_upserted(reply.raw))
    await _ask_for_keys(statement, chosen)
    return reply


async def _update_many(statement: Statement, target: StatementTarget) -> Reply:
    chosen: list[DocId] = []
    if touches_unique(statement.coverage, target.update):
        chosen = await statement.inside.matches(
            statement.namespace, target.query, _without_hint(target)
        )
    reply = await statement.inside.send(target.command(upsert=True))
    if parse_outcome(reply.raw).failed:
        return reply
    await statement.expect_no_cold(target.query, target.lookup(), most=MOST_PROMOTED + 1)
    await statement.expect_new(_upserted(reply.raw))
    await _ask_for_keys(statement, chosen)
    return reply


async def _find_and_modify(statement: Statement, target: FindAndModifyTarget) -> Reply:
    command = target.original
    chosen: list[DocId] = []
    touches = touches_unique(statement.coverage, target.update)
    if touches and target.doc_id is not None:
        chosen = [target.doc_id]
    elif touches:
        fields = {**target.lookup(), **_sort(target)}
        chosen = await statement.inside.matches(statement.namespace, target.query, fields, limit=1)
        if chosen:
            command = target.command(query=narrow(target, chosen), upsert=True)
    try:
        reply = await statement.inside.send(command)
    except Failed as failed:
        if failed.final and (target.upsert or target.ordered):
            looking = _nothing_cold(statement, target, matched=False)
            await _unless_refused_alike(failed.reply.raw, looking)
        raise
    matched, inserted = _find_and_modify_outcome(reply.raw)
    await _nothing_cold(statement, target, matched=matched)
    await statement.expect_new(inserted)
    await _ask_for_keys(statement, chosen)
    return reply


async def _nothing_cold(
    statement: Statement, target: FindAndModifyTarget, *, matched: bool
) -> None:
    """No document that the archive alone held is what the findAndModify is about."""
    if target.doc_id is not None and storable(target.doc_id):
        if not matched:
            await statement.expect_absent([target.doc_id])
    elif target.ordered:
        # A cold document could come first in that order.
        await statement.expect_no_cold(target.query, target.lookup(), most=MOST_PROMOTED + 1)
    elif not matched:
        await statement.expect_no_cold(target.query, target.lookup(), most=1)


async def _unless_refused_alike(reply: bytes, looking: Awaitable[None]) -> None:
    """Look for cold documents behind F's refusal ``reply``, unless the archive refuses the filter, too."""
    try:
        await looking
    except OperationFailure as error:
        if error.code not in error_codes(reply):
            raise


async def _ask_for_keys(statement: Statement, ids: Sequence[DocId]) -> None:
    if ids and statement.has_unique:
        documents = await statement.inside.documents(statement.namespace, ids)
        await statement.expect_no_rivals(documents)


def _tried(reply: bytes, count: int) -> int:
    """How many of the command's statements were tried: up to the first that failed, it included."""
    errors = parse_outcome(reply).errors
    return errors[0][0] + 1 if errors else count


def _upserted(reply: bytes) -> list[DocId]:
    entries = parse_outcome(reply).upserted
    return [DocId.of_value(*fields_of(entry)[b"_id"]) for _, entry in entries]


def _find_and_modify_outcome(reply: bytes) -> tuple[bool, list[DocId]]:
    """Whether it found a document, and the id of one that it inserted."""
    last = fields_of(reply).get(b"lastErrorObject")
    if last is None:
        return True, []
    fields = fields_of(last[1])
    given = fields.get(b"upserted")
    if given is not None:
        return False, [DocId.of_value(*given)]
    return number(fields.get(b"n")) > 0, []


def _without_hint(target: Target) -> dict[str, Any]:
    return {name: value for name, value in target.lookup().items() if name != "hint"}


def _sort(target: FindAndModifyTarget) -> dict[str, Any]:
    return {} if target.sort is None else {"sort": RawBSONDocument(target.sort)}

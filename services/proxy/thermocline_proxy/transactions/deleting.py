"""Deletes in a transaction on F: the ids are found inside, their records are written outside, then F deletes."""

from collections.abc import Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument

from thermocline_common.ids import DocId
from thermocline_proxy.ports import Reply
from thermocline_proxy.transactions.statement import MOST_PROMOTED, Statement
from thermocline_proxy.writes.choice import narrow
from thermocline_proxy.writes.filters import storable
from thermocline_proxy.writes.many import Narrowing
from thermocline_proxy.writes.replies import combined, parse_outcome
from thermocline_proxy.writes.statements import Batch
from thermocline_proxy.writes.targets import FindAndModifyTarget, StatementTarget


async def delete(statement: Statement, batch: Batch, indexes: Sequence[int]) -> Reply:
    """Statements that are each about one ``_id``, or one other statement."""
    targets = [StatementTarget(batch, i) for i in indexes]
    ids = [t.doc_id for t in targets if t.doc_id is not None]
    if len(ids) == len(targets):
        present = await statement.expect_seen(i for i in ids if storable(i))
        await statement.record([i for i in dict.fromkeys(ids) if i in present])
        # What isn't there can't come into a transaction: nothing has to be narrowed.
        return await statement.inside.send(batch.part(indexes))
    target = targets[0]
    if target.statement.multi:
        return await _delete_many(statement, target)
    return await _delete_one(statement, target)


async def _delete_one(statement: Statement, target: StatementTarget) -> Reply:
    chosen = await statement.inside.matches(
        statement.namespace, target.query, target.lookup(), limit=1
    )
    if target.ordered:
        # A cold document could come first in that order.
        await statement.expect_no_cold(target.query, target.lookup(), most=MOST_PROMOTED + 1)
    if not chosen:
        await statement.expect_no_cold(target.query, target.lookup(), most=1)
        return await statement.inside.send(target.command())
    await statement.record(chosen)
    return await statement.inside.send(target.command(query=narrow(target, chosen)))


async def _delete_many(statement: Statement, target: StatementTarget) -> Reply:
    found = await statement.inside.matches(statement.namespace, target.query, target.lookup())
    await statement.expect_no_cold(target.query, target.lookup(), most=MOST_PROMOTED + 1)
    if not found:
        return await statement.inside.send(target.command())
    await statement.record(found)
    replies: list[Reply] = []
    narrowing = Narrowing.of(target)
    for chunk in narrowing.chunks(found):
        narrowed = target.command(query=narrowing.query(chunk))
        replies.append(await statement.inside.send(narrowed))
        if parse_outcome(replies[-1].raw).failed:
            break
    last = replies[-1]
    merged = combined([each.raw for each in replies])
    return Reply(merged, last.tier, last.member, last.operation_time)


async def find_and_remove(statement: Statement, target: FindAndModifyTarget) -> Reply:
    """findAndModify with ``remove``."""
    namespace, doc_id = statement.namespace, target.doc_id
    if doc_id is not None and storable(doc_id):
        present = await statement.expect_seen([doc_id])
        await statement.record([i for i in (doc_id,) if i in present])
        return await statement.inside.send(target.original)
    fields: dict[str, Any] = target.lookup()
    if target.sort is not None:
        fields["sort"] = RawBSONDocument(target.sort)
    chosen: list[DocId] = await statement.inside.matches(namespace, target.query, fields, limit=1)
    if target.ordered:
        await statement.expect_no_cold(target.query, target.lookup(), most=MOST_PROMOTED + 1)
    if not chosen:
        await statement.expect_no_cold(target.query, target.lookup(), most=1)
        return await statement.inside.send(target.original)
    await statement.record(chosen)
    return await statement.inside.send(target.command(query=narrow(target, chosen)))

"""Updates and deletes of one document, findAndModify included: find it in either tier, then let F act."""

from typing import Any

from pymongo.errors import OperationFailure

from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_proxy.ports import Reply, Tier
from thermocline_proxy.writes import filters, upserts
from thermocline_proxy.writes.changes import touches_unique
from thermocline_proxy.writes.choice import choose, lost, narrow
from thermocline_proxy.writes.covered import covers_filter
from thermocline_proxy.writes.rehearsed import rehearsed_update
from thermocline_proxy.writes.removal import record_deletions
from thermocline_proxy.writes.run import ATTEMPTS, RECORDED_SECONDS, Moved, Run
from thermocline_proxy.writes.targets import Target


async def update_one(run: Run, coverage: Coverage, target: Target) -> Reply:
    """An update or replacement of one document, perhaps an upsert."""
    if target.upsert and filters.has_expression(target.query):
        return await run.send(coverage, target.command(upsert=True))  # refused, in MongoDB's words
    if touches_unique(coverage, target.update):
        return await rehearsed_update(run, coverage, target)
    if target.doc_id is None:
        return await _update_by_filter(run, coverage, target)
    return await _update_by_id(run, coverage, target, target.doc_id)


async def _update_by_id(run: Run, coverage: Coverage, target: Target, doc_id: DocId) -> Reply:
    reply = await run.attempt(coverage, target)
    if target.settled(reply.raw):
        run.gateway.count("write-by-id", Tier.FAST.value)
        return reply
    if not target.upsert and await _there_but_not_matching(run, target, doc_id):
        return reply
    since = run.gateway.clock()
    kept = await run.keep(coverage, [doc_id])
    if doc_id in kept.present:
        reply = await run.attempt(coverage, target, since=since)
        if target.settled(reply.raw):
            return reply
    if not target.upsert:
        return reply
    return await upserts.insert(run, coverage, target, known=doc_id, since=since)


async def _there_but_not_matching(run: Run, target: Target, doc_id: DocId) -> bool:
    """Whether F has the document and the filter doesn't match it: then 0 is the answer.

    Asked in one read: a document that only came in after the update wouldn't have been there for it.
    """
    fields = _without_hint(target.lookup())
    try:
        found, _ = await run.fast_matches(
            filters.not_matching(target.query, doc_id), fields, limit=1
        )
    except OperationFailure:
        return False  # such as $text, which $nor doesn't take: ask the long way
    return bool(found)


def _without_hint(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "hint"}


async def _update_by_filter(run: Run, coverage: Coverage, target: Target) -> Reply:
    first = filters.both(target.query, filters.NOTHING) if target.ordered else None
    reply = await run.attempt(coverage, target, query=first)
    if target.settled(reply.raw):
        run.gateway.count("write-by-match", Tier.FAST.value)
        return reply
    since = run.gateway.clock()
    held = run.held if not target.ordered and run.lease_runs else None
    if held is None or not covers_filter(held, target.query):
        for _ in range(ATTEMPTS):
            since = run.gateway.clock()
            winner = await choose(run, coverage, target, fast_first=False)
            if winner is None:
                break
            kept_at = run.gateway.clock()
            kept = await run.keep(coverage, [winner])
            if winner not in kept.present:
                continue
            narrowed = narrow(target, [winner])
            reply = await run.attempt(coverage, target, query=narrowed, since=kept_at)
            if target.settled(reply.raw):
                return reply
        else:
            raise lost(run)
    if not target.upsert:
        return reply
    return await upserts.insert(run, coverage, target, known=None, since=since)


async def delete_one(run: Run, coverage: Coverage, target: Target) -> Reply:
    """A delete of one document: it must be in F, then its record, then the client's own delete."""
    doc_id = target.doc_id
    nothing = target.command(query=filters.both(target.query, filters.NOTHING))
    if doc_id is None or not run.accepted("remove"):
        reply = await run.send(coverage, nothing)
        if target.settled(reply.raw):
            return reply
        run.note_accepted("remove")
    for _ in range(ATTEMPTS):
        chosen = doc_id or await choose(run, coverage, target, fast_first=True)
        if chosen is None:
            break
        since = run.gateway.clock()
        if not await removable(run, coverage, [chosen]):
            if doc_id is not None:
                break
            continue
        narrowed = target.command(query=narrow(target, [chosen]))
        reply = await run.send(coverage, narrowed, since=since, within=RECORDED_SECONDS)
        # By _id, a document with a fresh record that doesn't match was there and didn't match.
        if target.settled(reply.raw) or doc_id is not None:
            return reply
    else:
        raise lost(run)
    return await run.send(coverage, nothing)


async def removable(run: Run, coverage: Coverage, ids: list[DocId]) -> frozenset[DocId]:
    """Have the documents in F with ``deleted`` records; those of the ids that exist."""
    pending = frozenset(ids)
    recorded: frozenset[DocId] = frozenset()
    for _ in range(ATTEMPTS):
        await run.on_same_footing(coverage)
        async with run.bounded():
            recorded |= await record_deletions(run.gateway.tiers, run.namespace, pending)
        pending -= recorded
        if not pending:
            return recorded
        kept = await run.keep(coverage, pending)
        pending &= kept.present
        if not pending:
            return recorded
    raise Moved

"""The inserting half of an upsert: nothing matches in either tier, so ask for the new document's keys."""

from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_proxy.ports import Reply, Tier
from thermocline_proxy.writes import changes, filters
from thermocline_proxy.writes.changes import NewId, touches_unique
from thermocline_proxy.writes.filters import storable
from thermocline_proxy.writes.guards import Field, guarded, stopped
from thermocline_proxy.writes.refusal import refuse_long
from thermocline_proxy.writes.rehearsal import rehearse_upsert
from thermocline_proxy.writes.replies import duplicate_of_id
from thermocline_proxy.writes.run import Moved, Run
from thermocline_proxy.writes.targets import Target
from thermocline_proxy.writes.unique import keep_holders, unique_specs


async def insert(
    run: Run, coverage: Coverage, target: Target, *, known: DocId | None, since: float
) -> Reply:
    """Send the real upsert, once whoever could stand in its way in A is in F.

    ``known``: the ``_id`` that the filter gives, already looked for in A. ``since``: when the search
    for matches began.
    """
    assert target.update is not None
    new = known or changes.new_id(target.query, target.update)
    if new is NewId.UNKNOWN or coverage.unique:
        specs = await unique_specs(run, coverage)
        trial = await rehearse_upsert(run, target)
        if trial.error is not None:
            return Reply(trial.error, Tier.FAST, "")
        if trial.after is None:
            raise Moved  # something matches by now
        refuse_long([DocId.of_document(trial.after)])
        await _keep_id(run, coverage, DocId.of_document(trial.after))
        await keep_holders(run, coverage, [trial.after], specs)
        if touches_unique(coverage, target.update):
            guard = None
            if changes.is_pipeline(target.update):
                guard = guarded(target.update, trial.after, coverage.unique)
            return await _insert_only(run, coverage, target, guard, since)
    elif isinstance(new, DocId):
        refuse_long([new])
        if new is not known:
            await _keep_id(run, coverage, new)
    run.gateway.count("write-upsert-insert", Tier.FAST.value)
    return await run.send(coverage, target.command(upsert=True), since=since)


async def _insert_only(
    run: Run, coverage: Coverage, target: Target, guard: Field | None, since: float
) -> Reply:
    """The upsert with a filter that matches nothing: a match that came up meanwhile would get keys that
    nobody asked A about. Two upserts that both insert are possible in MongoDB as well."""
    query = filters.both(target.query, filters.IMPOSSIBLE)
    command = target.command(query=query, upsert=True, update=guard)
    reply = await run.send(coverage, command, since=since)
    if guard is not None and stopped(reply.raw):
        raise Moved  # the pipeline computed other keys than on trial
    if target.doc_id is not None and duplicate_of_id(reply.raw):
        raise Moved  # there by now: one MongoDB would update it
    return reply


async def _keep_id(run: Run, coverage: Coverage, doc_id: DocId) -> None:
    if storable(doc_id):
        await run.keep(coverage, [doc_id])

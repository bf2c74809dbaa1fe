"""updateMany, deleteMany: list the matching documents, then act on them by ``_id``, 1,000 at a time."""

from collections.abc import Iterator, Sequence
from typing import Final

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_proxy.ports import Reply, Tier
from thermocline_proxy.writes import filters, upserts
from thermocline_proxy.writes.changes import touches_unique
from thermocline_proxy.writes.choice import narrow
from thermocline_proxy.writes.covered import covers_filter
from thermocline_proxy.writes.rehearsed import rehearsed_update
from thermocline_proxy.writes.replies import combined, parse_outcome
from thermocline_proxy.writes.run import (
    ATTEMPTS,
    IN_CHUNK,
    KEPT_SECONDS,
    RECORDED_SECONDS,
    Moved,
    Run,
)
from thermocline_proxy.writes.singles import removable
from thermocline_proxy.writes.statements import Kind
from thermocline_proxy.writes.targets import NarrowedTarget, StatementTarget

MAX_IDS_BYTES: Final = 4 * 1024 * 1024


async def write_many(run: Run, coverage: Coverage, target: StatementTarget) -> Reply:
    """One statement that is meant for every match. Not atomic, as in MongoDB."""
    nothing = target.command(query=filters.both(target.query, filters.NOTHING))
    reply = await run.send(coverage, nothing)
    if parse_outcome(reply.raw).failed:
        return reply
    since = run.gateway.clock()
    ids = await list_matches(run, coverage, target)
    replies = [reply]
    for chunk in chunks(ids, 1 if touches_unique(coverage, target.update) else IN_CHUNK):
        replies.append(await _chunk(run, target, chunk))
        if parse_outcome(replies[-1].raw).failed:
            break
    merged = combined([each.raw for each in replies])
    last = replies[-1]
    outcome = parse_outcome(merged)
    if outcome.n == 0 and not outcome.failed and target.upsert:
        return await upserts.insert(run, coverage, target, known=target.doc_id, since=since)
    return Reply(merged, last.tier, last.member, last.operation_time)


async def list_matches(run: Run, coverage: Coverage, target: StatementTarget) -> list[DocId]:
    """Every document that matches: from F if that holds them all, else from both tiers."""
    given = filters.id_choices(target.query, collated=target.collated)
    if given is not None:
        return [i for i in given if filters.storable(i)]
    fields = target.lookup()
    coverage = await run.on_same_footing(coverage)
    if covers_filter(coverage, target.query):
        found, in_time = await run.fast_matches(target.query, fields)
        if in_time:
            run.gateway.count("write-listed-covered", Tier.FAST.value)
            return list(dict.fromkeys(found))
    time = await run.behind_barrier()
    run.gateway.count("write-listed-archive", Tier.ARCHIVE.value)
    cold = await run.archive_matches(coverage, target.query, fields, after=time)
    hot, _ = await run.fast_matches(target.query, fields)
    return list(dict.fromkeys([*cold, *hot]))


def chunks(ids: Sequence[DocId], size: int) -> Iterator[list[DocId]]:
    """The ids in groups of at most ``size``, and of a few megabytes, that fit into one filter."""
    group: list[DocId] = []
    held = 0
    for doc_id in ids:
        if group and (len(group) == size or held + len(doc_id.value) > MAX_IDS_BYTES):
            yield group
            group, held = [], 0
        group.append(doc_id)
        held += len(doc_id.value)
    if group:
        yield group


async def _chunk(run: Run, target: StatementTarget, ids: list[DocId]) -> Reply:
    """Carry the statement out on these documents, on the tier that takes writes now.

    Each is written once: a turn that has to be planned anew has written nothing.
    """
    for _ in range(ATTEMPTS):
        coverage = await run.coverage()
        try:
            if coverage is None:
                return await run.send_archive(target.command(query=narrow(target, ids)))
            if not touches_unique(coverage, target.update):
                return await _narrowed(run, coverage, target, ids)
            if len(ids) == 1:
                return await rehearsed_update(run, coverage, NarrowedTarget(target, ids[0]))
        except Moved:
            continue
        # A unique index came up since the listing began: one document at a time from here on.
        done = [await _chunk(run, target, [doc_id]) for doc_id in ids]
        last = done[-1]
        merged = combined([each.raw for each in done])
        return Reply(merged, last.tier, last.member, last.operation_time)
    raise CommandError(
        Code.ExceededTimeLimit,
        f"{run.namespace}: {len(ids)} documents couldn't be made ready for this write in time",
    )


async def _narrowed(
    run: Run, coverage: Coverage, target: StatementTarget, ids: Sequence[DocId]
) -> Reply:
    since = run.gateway.clock()
    if target.batch.kind is Kind.DELETE:
        there = await removable(run, coverage, list(ids))
        within = RECORDED_SECONDS
    else:
        there = await run.ensure(coverage, ids)
        within = KEPT_SECONDS
    chosen = [i for i in ids if i in there]
    command = target.command(query=narrow(target, chosen))
    return await run.send(coverage, command, since=since, within=within)

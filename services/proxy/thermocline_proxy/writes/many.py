"""updateMany, deleteMany: list the matching documents, then act on them by ``_id``, 1,000 at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId, in_filter
from thermocline_common.portions import MOST_IDS, portions, room_beside
from thermocline_proxy.ports import Reply, Tier
from thermocline_proxy.writes import filters, upserts
from thermocline_proxy.writes.changes import touches_unique
from thermocline_proxy.writes.choice import narrow
from thermocline_proxy.writes.covered import covers_filter
from thermocline_proxy.writes.rehearsed import rehearsed_update
from thermocline_proxy.writes.replies import combined, parse_outcome
from thermocline_proxy.writes.run import (
    ATTEMPTS,
    KEPT_SECONDS,
    RECORDED_SECONDS,
    Moved,
    Run,
)
from thermocline_proxy.writes.singles import removable
from thermocline_proxy.writes.statements import Kind
from thermocline_proxy.writes.targets import NarrowedTarget, StatementTarget


async def write_many(run: Run, coverage: Coverage, target: StatementTarget) -> Reply:
    """One statement that is meant for every match. Not atomic, as in MongoDB."""
    if target.upsert and filters.has_expression(target.query):
        return await run.send(coverage, target.command(upsert=True))  # refused, in MongoDB's words
    nothing = target.command(query=filters.both(target.query, filters.NOTHING))
    reply = await run.send(coverage, nothing)
    if parse_outcome(reply.raw).failed:
        return reply
    since = run.gateway.clock()
    ids = await list_matches(run, coverage, target)
    replies = [reply]
    narrowing = Narrowing.of(target)
    one = touches_unique(coverage, target.update)
    for chunk in narrowing.chunks(ids, 1 if one else MOST_IDS):
        replies.append(await _chunk(run, narrowing, chunk))
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


@dataclass(frozen=True, slots=True)
class Narrowing:
    """How a statement is limited to some of the documents that it was found to match.

    ``alone``: its filter is a list of ids and nothing else. Then some of those ids say all, and a
    list that nearly fills a statement need not stand beside them.
    """

    target: StatementTarget
    alone: bool

    @classmethod
    def of(cls, target: StatementTarget) -> "Narrowing":
        """For a statement."""
        return cls(target, not target.collated and filters.is_ids_alone(target.query))

    def query(self, ids: list[DocId]) -> bytes:
        """The filter for these ids. Raises ``Refused`` where a collation forbids it."""
        return in_filter(ids) if self.alone else narrow(self.target, ids)

    def chunks(self, ids: Sequence[DocId], most: int = MOST_IDS) -> Iterator[list[DocId]]:
        """The ids in groups that fit into a statement each, beside what the client's own holds."""
        beside = len(self.target.statement.raw)
        if self.alone:
            beside -= len(self.target.query)
        return portions(ids, most, room_beside(beside))


async def _chunk(run: Run, narrowing: Narrowing, ids: list[DocId]) -> Reply:
    """Carry the statement out on these documents, on the tier that takes writes now.

    Each is written once: a turn that has to be planned anew has written nothing.
    """
    target = narrowing.target
    for _ in range(ATTEMPTS):
        coverage = await run.coverage()
        try:
            if coverage is None:
                return await run.send_archive(target.command(query=narrowing.query(ids)))
            if not touches_unique(coverage, target.update):
                return await _narrowed(run, coverage, narrowing, ids)
            if len(ids) == 1:
                return await rehearsed_update(
                    run, coverage, NarrowedTarget(target, ids[0], narrowing.query(ids))
                )
        except Moved:
            continue
        # A unique index came up since the listing began: one document at a time from here on.
        done = [await _chunk(run, narrowing, [doc_id]) for doc_id in ids]
        last = done[-1]
        merged = combined([each.raw for each in done])
        return Reply(merged, last.tier, last.member, last.operation_time)
    raise CommandError(
        Code.ExceededTimeLimit,
        f"{run.namespace}: {len(ids)} documents couldn't be made ready for this write in time",
    )


async def _narrowed(
    run: Run, coverage: Coverage, narrowing: Narrowing, ids: Sequence[DocId]
) -> Reply:
    target = narrowing.target
    since = run.gateway.clock()
    if target.batch.kind is Kind.DELETE:
        there = await removable(run, coverage, list(ids))
        within = RECORDED_SECONDS
    else:
        there = await run.ensure(coverage, ids)
        within = KEPT_SECONDS
    chosen = [i for i in ids if i in there]
    command = target.command(query=narrowing.query(chosen))
    return await run.send(coverage, command, since=since, within=within)

"""Carrying out insert, update and delete commands: piece by piece, with the order and the sums of one MongoDB."""

from collections.abc import Sequence

from thermocline_common.coverage import Coverage, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_proxy.ports import Reply
from thermocline_proxy.writes import filters, inserts
from thermocline_proxy.writes.look_back import executed_statements
from thermocline_proxy.writes.many import write_many
from thermocline_proxy.writes.pieces import How, Piece, cut
from thermocline_proxy.writes.refusal import Refused, refuse_long
from thermocline_proxy.writes.replies import merge, parse_outcome, succeeded, write_error
from thermocline_proxy.writes.run import ATTEMPTS, RECORDED_SECONDS, Moved, Run
from thermocline_proxy.writes.singles import delete_one, removable, update_one
from thermocline_proxy.writes.statements import Batch, Kind
from thermocline_proxy.writes.targets import StatementTarget

Part = tuple[Sequence[int], bytes]


async def write_batch(run: Run, batch: Batch) -> Reply:
    """Carry the command out; the reply is the one that a single MongoDB would give."""
    documents: Sequence[bytes] = batch.documents
    if batch.kind is Kind.INSERT:
        documents = [inserts.with_id(document) for document in documents]
    ids = _ids(batch, documents)
    parts: list[Part] = []
    last: Reply | None = None
    done = 0
    turns = 0
    while done < len(documents):
        turns += 1
        if turns > ATTEMPTS:
            raise CommandError(
                Code.ExceededTimeLimit,
                f"{run.namespace}: the documents of this write couldn't be made ready in time",
            )
        coverage = await run.coverage()
        if coverage is None:
            piece = Piece(How.ONE, tuple(range(done, len(documents))))
        else:
            piece = next(cut(batch, coverage, ids, done))
        try:
            added, last = await _piece(run, coverage, batch, piece, documents, ids)
        except Moved:
            continue
        done = piece.indexes[-1] + 1
        turns = 0
        parts += added
        if done == len(documents):
            break
        failed = any(parse_outcome(raw).failed for _, raw in added)
        if failed and (batch.ordered or not all(succeeded(raw) for _, raw in added)):
            break
    assert last is not None
    return Reply(merge(parts), last.tier, last.member, last.operation_time)


def _ids(batch: Batch, documents: Sequence[bytes]) -> list[DocId | None]:
    if batch.kind is Kind.INSERT:
        return [DocId.of_document(document) for document in documents]
    return [statement.doc_id for statement in batch.statements]


async def _piece(
    run: Run,
    coverage: Coverage | None,
    batch: Batch,
    piece: Piece,
    documents: Sequence[bytes],
    ids: Sequence[DocId | None],
) -> tuple[list[Part], Reply]:
    """Carry one piece out, on the tier that takes writes; None: the namespace is in ``Passthrough``."""
    parts: list[Part] = []
    tiering = run.tiering
    if tiering is not None and tiering.coverage.look_back is not None and batch.retryable:
        left = tiering.coverage.look_back
        known = await executed_statements(run, left, batch, piece.indexes)
        if known is not None:
            parts.append((piece.indexes, known.reply.raw))
            rest = tuple(i for i in piece.indexes if i not in known.indexes)
            if not rest:
                return parts, known.reply
            piece = Piece(piece.how, rest)
    try:
        if coverage is None:
            same = all(documents[i] is batch.documents[i] for i in piece.indexes)
            chosen = None if same else [documents[i] for i in piece.indexes]
            reply = await run.send_archive(batch.part(piece.indexes, chosen))
        else:
            reply = await _active(run, coverage, batch, piece, documents, ids)
    except Refused as refused:
        reply = Reply(write_error(refused, batch.kind), Tier.FAST, "")
    parts.append((piece.indexes, reply.raw))
    return parts, reply


async def _active(
    run: Run,
    coverage: Coverage,
    batch: Batch,
    piece: Piece,
    documents: Sequence[bytes],
    ids: Sequence[DocId | None],
) -> Reply:
    if piece.how is How.REFUSED:
        refuse_long(_wanted(piece.indexes, ids))
    if piece.how is How.INSERT:
        chosen = [documents[i] for i in piece.indexes]
        return await inserts.insert(run, coverage, batch, piece.indexes, chosen)
    if piece.how is How.UPDATE_BY_ID:
        return await _updates_by_id(run, coverage, batch, piece.indexes, ids)
    if piece.how is How.DELETE_BY_ID:
        return await _deletes_by_id(run, coverage, batch, piece.indexes, ids)
    target = StatementTarget(batch, piece.indexes[0])
    if piece.how is How.MANY:
        return await write_many(run, coverage, target)
    if batch.kind is Kind.DELETE:
        return await delete_one(run, coverage, target)
    return await update_one(run, coverage, target)


async def _not_accepted(
    run: Run, coverage: Coverage, batch: Batch, index: int, action: str
) -> Reply | None:
    """F's refusal of this user's command; None: it takes such commands."""
    if run.accepted(action):
        return None
    target = StatementTarget(batch, index)
    nothing = target.command(query=filters.both(target.query, filters.NOTHING))
    reply = await run.send(coverage, nothing)
    if not succeeded(reply.raw):
        return reply
    run.note_accepted(action)
    return None


def _wanted(indexes: Sequence[int], ids: Sequence[DocId | None]) -> list[DocId]:
    return [doc_id for i in indexes if (doc_id := ids[i]) is not None]


async def _updates_by_id(
    run: Run,
    coverage: Coverage,
    batch: Batch,
    indexes: Sequence[int],
    ids: Sequence[DocId | None],
) -> Reply:
    refused = await _not_accepted(run, coverage, batch, indexes[0], "update")
    if refused is not None:
        return refused
    since = run.gateway.clock()
    await run.ensure(coverage, _wanted(indexes, ids))
    run.gateway.count("write-batch-by-id", Tier.FAST.value)
    return await run.send(coverage, batch.part(indexes), since=since)


async def _deletes_by_id(
    run: Run,
    coverage: Coverage,
    batch: Batch,
    indexes: Sequence[int],
    ids: Sequence[DocId | None],
) -> Reply:
    """Deletes by ``_id``; one of a document that has no record goes out narrowed to nothing."""
    refused = await _not_accepted(run, coverage, batch, indexes[0], "remove")
    if refused is not None:
        return refused
    since = run.gateway.clock()
    there = await removable(run, coverage, _wanted(indexes, ids))
    statements = [batch.statements[i] for i in indexes]
    chosen = [
        s.raw if ids[i] in there else s.changed(query=filters.both(s.query, filters.NOTHING))
        for i, s in zip(indexes, statements, strict=True)
    ]
    run.gateway.count("write-delete-by-id", Tier.FAST.value)
    same = all(raw is s.raw for raw, s in zip(chosen, statements, strict=True))
    command = batch.part(indexes, None if same else chosen)
    return await run.send(coverage, command, since=since, within=RECORDED_SECONDS)

"""Updates that may change a unique key: tried first, so that the new keys can be asked for in A."""

from enum import Enum
from typing import Final

import bson
from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_proxy.ports import Reply
from thermocline_proxy.writes import changes, filters, keys, upserts
from thermocline_proxy.writes.choice import choose, lost
from thermocline_proxy.writes.guards import as_seen_at, guarded, stopped
from thermocline_proxy.writes.keys import UniqueSpec
from thermocline_proxy.writes.refusal import Refused
from thermocline_proxy.writes.rehearsal import rehearse_update
from thermocline_proxy.writes.run import ATTEMPTS, Run
from thermocline_proxy.writes.targets import Target
from thermocline_proxy.writes.unique import keep_holders, unique_specs

LARGE: Final = 1024 * 1024
"""Bytes of a document; a statement takes sixteen times as much."""


class _NotDone(Enum):
    UNMATCHED = "unmatched"
    CHANGED = "changed"
    OTHER_KEYS = "a pipeline computed other keys than on trial"


async def rehearsed_update(run: Run, coverage: Coverage, target: Target) -> Reply:
    """Try the update, ask A for holders of its new keys, send it for the very document that was seen.

    Two updates that both asked for one key can't both pass: the second finds another document than
    the one that it was tried on.
    """
    specs = await unique_specs(run, coverage)
    nothing = filters.both(target.query, filters.NOTHING)
    reply = await run.attempt(coverage, target, query=nothing)
    if target.settled(reply.raw):
        return reply
    refuse_undecidable(target)
    since = run.gateway.clock()
    others = 0
    for _ in range(ATTEMPTS):
        since = run.gateway.clock()
        chosen = target.doc_id or await choose(run, coverage, target, fast_first=True)
        if chosen is None:
            break
        done = await _once(run, coverage, target, chosen, specs, reply)
        if isinstance(done, Reply):
            return done
        if done is _NotDone.UNMATCHED and target.doc_id is not None:
            since = run.gateway.clock()
            there = await run.ensure(coverage, [chosen])
            if chosen not in there:
                break
            done = await _once(run, coverage, target, chosen, specs, reply)
            if isinstance(done, Reply):
                return done
            if done is _NotDone.UNMATCHED:
                break
        elif done is _NotDone.UNMATCHED:
            await run.keep(coverage, [chosen])
        others += done is _NotDone.OTHER_KEYS
    else:
        if others == ATTEMPTS:
            raise Refused(
                "a pipeline whose new unique key is another each time it is computed ($rand, $$NOW) isn't "
                "supported on a tiered collection; compute the key in the application"
            )
        raise lost(run)
    if not target.upsert:
        return reply
    return await upserts.insert(run, coverage, target, known=target.doc_id, since=since)


def refuse_undecidable(target: Target) -> None:
    """Raise ``Refused`` for updates whose new keys can't be pinned to one document."""
    if target.collated:
        raise Refused(
            "an update with a collation that can change a field of a unique index isn't supported "
            "on a tiered collection; choose the document by _id, without a collation"
        )


async def _once(
    run: Run,
    coverage: Coverage,
    target: Target,
    chosen: DocId,
    specs: tuple[UniqueSpec, ...],
    template: Reply,
) -> Reply | _NotDone:
    narrowed = filters.narrow(target.query, [chosen])
    trial = await rehearse_update(run, target, narrowed)
    if trial.error is not None:
        return Reply(trial.error, template.tier, template.member, template.operation_time)
    if trial.before is None or trial.after is None:
        return _NotDone.UNMATCHED
    changed = [
        # A partial index may have had nothing of the document before.
        s
        for s in specs
        if s.partial is not None or keys.keys(trial.before, s) != keys.keys(trial.after, s)
    ]
    since = run.gateway.clock()
    await keep_holders(run, coverage, [trial.after], changed)
    if target.update is not None and changes.is_pipeline(target.update):
        guard = guarded(target.update, trial.after, coverage.unique)
        reply = await run.attempt(coverage, target, query=narrowed, update=guard, since=since)
        if stopped(reply.raw):
            return _NotDone.OTHER_KEYS
        return reply if target.settled(reply.raw) else _NotDone.CHANGED
    exact = filters.both(narrowed, *_guards(coverage, target, trial.before))
    reply = await run.attempt(coverage, target, query=exact, since=since)
    return reply if target.settled(reply.raw) else _NotDone.CHANGED


def _replaces(target: Target) -> bool:
    return target.update is not None and changes.is_replacement(target.update)


def _guards(coverage: Coverage, target: Target, before: bytes) -> list[bytes]:
    """Filters for a document from which the update makes the keys that were asked for.

    A replacement's keys rest on nothing that was there. A large document, which might not fit into a statement
    beside the update, is held to what they rest on; every other one to all of it.
    """
    if _replaces(target):
        return []
    if len(before) > LARGE and target.update is not None:
        paths = [path for index in coverage.unique for path in index.paths]
        roots = changes.rests_on(target.update, target.query, paths)
        if roots is not None:
            return [as_seen_at(before, sorted(roots))]
    return [as_seen(before)]


_ROOT: Final = "$$ROOT"


def as_seen(document: bytes) -> bytes:
    """The filter for a document that is (up to numeric types) exactly this one."""
    literal = {"$literal": RawBSONDocument(document)}
    return bytes(bson.encode({"$expr": {"$eq": [_ROOT, literal]}}))

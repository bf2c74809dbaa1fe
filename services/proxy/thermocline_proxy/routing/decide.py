"""The one decision about a read: (command, snapshot) -> route with its reason."""

import datetime as dt
from typing import Final

from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State
from thermocline_common.errors import Code
from thermocline_common.ids import wrap
from thermocline_proxy.commands.change_streams import Watch, watch_of
from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.predicates import (
    listed_ids,
    lower_bound,
    only_about,
    point_id,
    understood,
    unique_key,
)
from thermocline_proxy.commands.readconcern import SNAPSHOT, read_concern
from thermocline_proxy.routing import newest
from thermocline_proxy.routing.at_snapshot import (
    asks_for_snapshot,
    refused_for_quarantine,
    snapshot_route,
)
from thermocline_proxy.routing.questions import (
    EMPTY,
    METADATA,
    QUERIES,
    Question,
    ask,
    number,
    raw_document,
)
from thermocline_proxy.routing.routes import (
    AnyRead,
    ArchiveRead,
    FastRead,
    IdsRead,
    NewestRead,
    PointRead,
    Reason,
    Refused,
    Route,
    StreamRead,
    UniqueRead,
)
from thermocline_proxy.routing.snapshot import Snapshot, Tiering

LONGEST_ID_LIST: Final = 1_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ID: Final = frozenset((b"_id",))


def decide(command: Command, snapshot: Snapshot) -> Route:
    """Where ``command``, a read, goes under ``snapshot``, and why.

    Pure and total: it never raises, and whatever it doesn't understand goes to the archive.
    """
    question = ask(command)
    pipeline = question.pipeline
    namespaces = namespaces_of(question, snapshot)
    if any(ns in snapshot.listed and ns not in snapshot.tierings for ns in namespaces):
        return Refused(
            Reason.UNKNOWN_NAMESPACE,
            Code.ExceededTimeLimit,
            "the namespace is tiered, but its state on the fast tier isn't known yet",
            wait=True,
        )
    target = pipeline.written if pipeline is not None else None
    if target is not None and snapshot.touches_tiered(frozenset((target,))):
        return Refused(
            Reason.WRITES_TIERED,
            Code.CommandNotSupported,
            f"$out and $merge can't write to the tiered namespace {target}: read the result with a "
            "cursor and write it with bulk writes, or write it to an untiered collection",
        )
    if not snapshot.touches_tiered(namespaces):
        return ArchiveRead(Reason.UNTIERED, barrier=False, tiered=False)
    if "autocommit" in command.fields or "startTransaction" in command.fields:
        return Refused(
            Reason.TRANSACTION,
            Code.OperationNotSupportedInTransaction,
            "a statement in a transaction is decided at the transaction's own time: leave autocommit and "
            "startTransaction out to see where its read would go",
        )
    watch = watch_of(question.command)
    if watch is not None:
        return _stream(question, watch, snapshot)
    if question.command.name in METADATA or _about_server(question):
        return ArchiveRead(Reason.METADATA, barrier=False, tiered=False)
    if asks_for_snapshot(question):
        return snapshot_route(question, _active(namespaces, snapshot), snapshot)
    if _pausing(namespaces, snapshot):
        return _switching(question, snapshot)
    if question.command.name not in QUERIES:
        if question.explained:
            # A write would run on the fast tier; an explanation changes nothing.
            return FastRead(Reason.COMMAND)
        return ArchiveRead(Reason.COMMAND, barrier=True, tiered=False, primary=True)
    if snapshot.archive_only:
        return archive_route(command, snapshot, Reason.ARCHIVE_ONLY, question=question)
    if any(in_doubt(snapshot.tiering(namespace)) for namespace in namespaces):
        return archive_route(command, snapshot, Reason.IN_DOUBT, question=question)
    found = _on_fast(question, snapshot)
    if isinstance(found, Reason):
        return archive_route(command, snapshot, found, question=question)
    return found


def _about_server(question: Question) -> bool:
    """Whether a pipeline reads what its server knows and no document."""
    pipeline = question.pipeline
    return pipeline is not None and pipeline.about_server and not pipeline.joined


def _pausing(namespaces: frozenset[str], snapshot: Snapshot) -> bool:
    found = [snapshot.tiering(namespace) for namespace in namespaces]
    return any(t is not None and t.coverage.state is State.PAUSING for t in found)


def _switching(question: Question, snapshot: Snapshot) -> ArchiveRead | Refused:
    """While a switch goes on: A, behind the barrier, whichever way it goes.

    As soon as the new state is published, other proxies write under it, while this one may rest on its
    snapshot for the rest of a lease: what is in F may be old by then, and A may lack what F took. Behind the
    barrier A has both.
    """
    concern = read_concern(question.command)
    if concern.level == SNAPSHOT or concern.at is not None:
        return Refused(
            Reason.PAUSING,
            Code.ExceededTimeLimit,
            "a collection is being switched: a snapshot of it can't be read now",
            wait=True,
        )
    writes = question.pipeline is not None and question.pipeline.written is not None
    reason = Reason.WRITES_UNTIERED if writes else Reason.PAUSING
    if question.command.name not in QUERIES:
        return ArchiveRead(reason, barrier=True, tiered=False, primary=True)
    return ArchiveRead(reason, barrier=not snapshot.archive_only, primary=writes)


def archive_route(
    command: Command, snapshot: Snapshot, reason: Reason, *, question: Question | None = None
) -> ArchiveRead | Refused:
    """The route to A for a read of active namespaces, or why A can't answer it."""
    question = question or ask(command)
    concern = read_concern(command)
    if concern.level == SNAPSHOT or concern.at is not None:
        return Refused(
            Reason.SNAPSHOT,
            Code.InvalidOptions,
            "a read at a time of the fast tier needs documents that only the archive holds "
            f"({reason}): let Thermocline choose the time (readConcern snapshot without atClusterTime), and "
            "use the one that it returns",
        )
    active = _active(namespaces_of(question, snapshot), snapshot)
    relaxed = all(tiering.relaxed for tiering in active) and concern.after is None
    refused = refused_for_quarantine(active, snapshot)
    if refused is not None:
        return refused
    writes = question.pipeline is not None and question.pipeline.written is not None
    if writes:
        reason = Reason.WRITES_UNTIERED
    barrier = not (relaxed or snapshot.archive_only)
    return ArchiveRead(reason, barrier=barrier, primary=writes)


def floor_of(coverage: Coverage) -> int | None:
    """The floor in ms since 1970, where reads may rest on it."""
    if coverage.state is not State.ACTIVE or coverage.floor is None or coverage.keep_all:
        return None
    if coverage.age_field is None or coverage.published_at is None:
        return None
    return (coverage.floor - _EPOCH) // dt.timedelta(milliseconds=1)


def in_doubt(tiering: Tiering | None) -> bool:
    """Whether the self-check found the tiers to differ, and nobody has released the namespace yet."""
    return tiering is not None and tiering.coverage.doubt is not None


def is_complete(tiering: Tiering | None) -> bool:
    """Whether F holds the whole namespace (``keep: All``)."""
    if tiering is None:
        return False
    coverage = tiering.coverage
    complete = coverage.keep_all and coverage.complete and coverage.published_at is not None
    return coverage.state is State.ACTIVE and complete


def namespaces_of(question: Question, snapshot: Snapshot) -> frozenset[str]:
    """Every collection that the read may touch, views resolved."""
    named = {question.namespace} | question.named
    return frozenset(source for name in named for source in snapshot.sources(name))


def _active(namespaces: frozenset[str], snapshot: Snapshot) -> list[Tiering]:
    """The tierings whose truth is in F: ``Active``, or on the way from there to ``Passthrough``."""
    found = [snapshot.tiering(namespace) for namespace in sorted(namespaces)]
    return [t for t in found if t is not None and on_fast_by_state(t.coverage)]


def on_fast_by_state(coverage: Coverage) -> bool:
    """Whether F has the say about a namespace that isn't in ``Passthrough``."""
    return coverage.state is State.ACTIVE or coverage.target is State.PASSTHROUGH


def _stream(
    question: Question, watch: Watch, snapshot: Snapshot
) -> StreamRead | ArchiveRead | Refused:
    """Of one collection whose truth is in F: there. Of anything untiered, or a whole database: A."""
    if question.namespace in snapshot.views:
        return Refused(
            Reason.VIEW,
            Code.CommandNotSupportedOnView,
            f"Namespace {question.namespace} is a view, not a collection",
        )
    tiering = snapshot.tiering(question.namespace)
    if tiering is None:
        return ArchiveRead(Reason.UNTIERED, barrier=False, tiered=False)
    if on_fast_by_state(tiering.coverage):
        return StreamRead(watch)
    return Refused(
        Reason.PAUSING,
        Code.ExceededTimeLimit,
        f"{question.namespace} is being switched: a change stream opened now would end at once",
        wait=True,
    )


def _on_fast(question: Question, snapshot: Snapshot) -> Route | Reason:
    """A route that asks F, or the reason why there is none."""
    if question.namespace in snapshot.views:
        return Reason.VIEW
    tiering = snapshot.tiering(question.namespace)
    if tiering is None or not on_fast_by_state(tiering.coverage):
        return Reason.JOIN
    if not question.suits_fast or question.filter is None:
        return Reason.OPTION
    concern = read_concern(question.command)
    if not concern.valid:
        return Reason.OPTION
    pipeline = question.pipeline
    if pipeline is not None:
        if not pipeline.portable:
            return Reason.STAGE
        for joined in pipeline.joined:
            other = snapshot.tiering(joined)
            complete = is_complete(other) and _promised(other, concern.at)
            if joined in snapshot.views or not complete:
                return Reason.JOIN
    rests = _promised(tiering, concern.at)
    if is_complete(tiering) and rests:
        return FastRead(Reason.COMPLETE)
    if question.natural:
        return Reason.OPTION
    if question.command.name == "count" and question.filter == EMPTY:
        return Reason.ESTIMATE
    return _by_filter(question, question.filter, tiering.coverage, rests=rests)


def _promised(tiering: Tiering | None, at: Timestamp | None) -> bool:
    """Whether a read at ``at`` (None: now) may rest on the coverage: a snapshot from before it was
    published may lack what it promises."""
    published = None if tiering is None else tiering.coverage.published_at
    return published is not None and (at is None or at >= published)


def _by_filter(
    question: Question, query: bytes, coverage: Coverage, *, rests: bool
) -> Route | Reason:
    alone = question.pipeline is None or not question.pipeline.joined
    by_id = alone and question.simple_collation and number(question.command, "batchSize", 1) != 0
    if by_id:
        doc_id = point_id(query)
        if doc_id is not None:
            return PointRead(doc_id, only_about(query, _ID))
    floor = floor_of(coverage) if rests else None
    path = coverage.age_field or ""
    bound = lower_bound(query, path) if floor is not None else None
    if floor is not None and bound is not None and bound >= floor:
        return FastRead(Reason.COVERED)
    if by_id:
        ids = listed_ids(query)
        if ids is not None and len(ids) <= LONGEST_ID_LIST:
            return IdsRead(ids, only_about(query, _ID))
    if question.command.name == "find":
        if by_id:
            unique = unique_key(query, coverage.unique)
            if unique is not None:
                index, values = unique
                key = wrap(*(bytes((k,)) + p + b"\0" + v for p, (k, v) in values.items()))
                return UniqueRead(index.name, key, only_about(query, frozenset(values)))
        if question.plain and understood(query) and _asks_for_any(question.command):
            return AnyRead()
    if floor is not None and alone and question.plain and understood(query):
        found = _newest(question, path, floor)
        if found is not None:
            return found
    if floor is None:
        return Reason.NOTHING_COVERED
    return Reason.NO_BOUND if bound is None else Reason.BELOW_FLOOR


def _asks_for_any(command: Command) -> bool:
    sorted_somehow = raw_document(command, "sort") != EMPTY
    return not sorted_somehow and number(command, "limit") == 1


def _newest(question: Question, path: str, floor: int) -> NewestRead | None:
    command = question.command
    if question.pipeline is not None:
        if question.pipeline.newest is None:
            return None
        sort, limit = question.pipeline.newest
        batch: int | None = newest.DEFAULT_BATCH
        try:
            given = command.get("cursor", {}).get("batchSize", newest.DEFAULT_BATCH)
            batch = int(given) if int(given) == given else None
        except (AttributeError, TypeError, ValueError):
            return None
        if batch is None or not 0 < limit < batch:
            return None
        if not newest.sorts_newest_first(sort, path):
            return None
        return NewestRead(path, floor, limit)
    limited = number(command, "limit")
    if limited is None or not 0 < limited <= newest.LARGEST_BATCH:
        return None
    if not newest.sorts_newest_first(raw_document(command, "sort"), path):
        return None
    projection = raw_document(command, "projection")
    if not newest.keeps_field(projection, path):
        return None
    size = number(command, "batchSize", -1)
    if size == -1:
        return NewestRead(path, floor, limited, limited if limited > newest.DEFAULT_BATCH else None)
    if size is None or size < 1:
        return None
    if size < limited:
        once = command.get("singleBatch") is True
        return NewestRead(path, floor, size) if once else None
    return NewestRead(path, floor, limited)

"""Which tier a command would go to under a manifest, and why: the proxy's own decision, on assumed coverage. Pure."""

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State
from thermocline_common.spec.models import ArchiveReads, CollectionPolicy, Mode, Routing, Spec
from thermocline_proxy.commands.catalog import CLOSED_DATABASES, Kind, lookup
from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.touched import Touched, touched
from thermocline_proxy.ddl.plan import DEPENDS_ON_INDEXES, Way, concerned, refusal, way
from thermocline_proxy.routing.decide import decide
from thermocline_proxy.routing.routes import ArchiveRead, Reason, Refused, tier_of
from thermocline_proxy.routing.snapshot import Snapshot, Tiering

_UUID: Final = uuid.UUID(int=0)
_WAYS: Final[Mapping[Way, tuple[str, str]]] = {
    Way.BOTH: ("both tiers", "changes a tiered collection: it runs on the archive and then on the fast tier"),
    Way.ALONE: (
        "archive",
        "runs on the archive alone, while what it concerns is in Passthrough; what is left is tiered anew",
    ),
    Way.ARCHIVE: ("archive", "changes nothing that the tiers have in common"),
}  # fmt: skip
_UNIQUE: Final = "; where it is about a unique index: on the archive alone, as a drop"

TEXTS: Final[Mapping[Reason, str]] = {
    Reason.POINT_ID: "asks for one document by _id: the fast tier first; if it isn't there, the archive",
    Reason.POINT_UNIQUE: "asks for one document by a unique key: the fast tier first, then the archive",
    Reason.ID_LIST: "asks for a list of ids: the fast tier, if it holds every one of them",
    Reason.COVERED: "every document that can match is newer than what the fast tier holds completely",
    Reason.NEWEST_FIRST: "asks for the newest documents: the fast tier, if enough of them are above its floor",
    Reason.ANY_MATCH: "asks for any one match: the fast tier, if it has one",
    Reason.COMPLETE: "the fast tier holds the whole collection (keep: All)",
    Reason.UNTIERED: "the namespace has no policy, or its policy isn't in force",
    Reason.PAUSING: "the namespace is changing its state",
    Reason.ARCHIVE_ONLY: "spec.proxy.routing is ArchiveOnly",
    Reason.IN_DOUBT: "the self-check found the tiers to differ, and nobody has released the namespace",
    Reason.METADATA: "is about the collection, not its documents",
    Reason.ESTIMATE: "asks for an estimate over all documents, old ones too",
    Reason.VIEW: "reads a view over a tiered collection",
    Reason.JOIN: "joins a collection that the fast tier doesn't hold as a whole",
    Reason.STAGE: "has a stage that needs every document",
    Reason.WRITES_UNTIERED: "writes its result into an untiered collection, which lives in the archive",
    Reason.NO_BOUND: "its filter doesn't bound the age from below, so older documents may match",
    Reason.BELOW_FLOOR: "its filter reaches back below what the fast tier holds completely",
    Reason.NOTHING_COVERED: "the fast tier holds nothing completely yet",
    Reason.OPTION: "has an option whose answer depends on the server (hint, min, max, skip, ...)",
    Reason.COMMAND: "is a command that the fast tier isn't asked for",
    Reason.FAST_MISS: "the fast tier lacks the document",
    Reason.FAST_INCOMPLETE: "the fast tier's answer isn't provably complete",
    Reason.FAST_ERROR: "the fast tier couldn't answer",
    Reason.LEASE_ENDED: "the lease on the coverage ended before the answer came",
    Reason.UNKNOWN_NAMESPACE: "the namespace is tiered, but its state isn't known",
    Reason.QUARANTINED: "the archive lacks documents that it couldn't take",
    Reason.SNAPSHOT: "a snapshot can't span both tiers",
    Reason.TRANSACTION: "is part of a transaction on a tiered namespace",
    Reason.CHANGE_STREAM: "watches a tiered namespace",
    Reason.WRITES_TIERED: "writes its result into a tiered collection",
}
"""What each reason means, for people."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """``tier``: "fast tier", "archive", "proxy", "both tiers", or "nobody" where it is refused.

    ``reason``: the machine-readable reason, as in metrics. ``text``: the same for people.
    ``barrier``: whether the archive is waited for until it has every acknowledged write. ``namespace``:
    what the command is about.
    """

    tier: str
    reason: str
    text: str
    namespace: str
    barrier: bool = False
    error: str | None = None


def assume(
    spec: Spec, now: dt.datetime, *, floor: dt.datetime | None = None, cold: bool = False
) -> Snapshot:
    """A snapshot as if every policy were in force: floors at ``floor``, or at ``now - maxAge``; ``cold``: nothing covered."""
    tierings = {
        policy.namespace: Tiering(
            _coverage(spec, policy, now, floor, cold=cold),
            relaxed=policy.archive_reads is ArchiveReads.RELAXED,
        )
        for policy in spec.collections
    }
    return Snapshot(
        expires=float("inf"),
        untiered_expires=float("inf"),
        tierings=tierings,
        listed=frozenset(tierings) if spec.mode is Mode.ACTIVE else frozenset(),
        archive_only=spec.proxy.routing is Routing.ARCHIVE_ONLY,
    )


def _coverage(
    spec: Spec, policy: CollectionPolicy, now: dt.datetime, floor: dt.datetime | None, *, cold: bool
) -> Coverage:
    state = State.ACTIVE if spec.mode is Mode.ACTIVE else State.PASSTHROUGH
    if policy.max_age is not None and floor is None:
        floor = now - policy.max_age
    return Coverage(
        namespace=policy.namespace,
        state=state,
        target=state,
        age_field=policy.age_field,
        keep_all=policy.keep is not None,
        fast_uuid=_UUID,
        archive_uuid=_UUID,
        archive_time=Timestamp(1, 1),
        floor=None if cold or policy.keep is not None else floor,
        complete=policy.keep is not None and not cold,
        published_at=Timestamp(1, 1),
        epoch=_UUID,
    )


def explain(command: Command, snapshot: Snapshot) -> Explanation:
    """Where ``command`` would go under ``snapshot``. Total: a command nobody knows is refused."""
    entry = lookup(command.name)
    if entry is None:
        text = f"no such command: '{command.name}'"
        return Explanation(
            "nobody", "unknown-command", text, command.namespace, error="CommandNotFound (59)"
        )
    if command.database in CLOSED_DATABASES:
        text = f"database {command.database} belongs to Thermocline"
        return Explanation(
            "nobody", "closed-database", text, command.namespace, error="Unauthorized (13)"
        )
    touches = touched(command, entry)
    namespace = touches.target or command.database
    tiered = snapshot.touches_tiered(touches.all)
    if entry.kind is Kind.DDL and concerned(command, touches.all, snapshot):
        return _schema(command, touches, snapshot, namespace)
    if snapshot.touches_tiered(touches.written):
        return _refused(Reason.WRITES_TIERED, namespace, "IllegalOperation (20)")
    if tiered and "autocommit" in command.fields:
        text = (
            "is part of a transaction, which runs on the fast tier as soon as it touches a tiered "
            "collection; what needs the archive is refused there: OperationNotSupportedInTransaction (263)"
        )
        return Explanation("fast tier", Reason.TRANSACTION.value, text, namespace)
    if entry.kind is Kind.READ:
        return _read(command, snapshot, namespace)
    if entry.kind is Kind.WRITE and tiered:
        text = "writes to a tiered collection go to the fast tier, and from there into the archive"
        return Explanation("fast tier", "write", text, namespace)
    if entry.kind in (Kind.LOCAL, Kind.LOGIN):
        return Explanation("proxy", entry.kind.value, "the proxy answers by itself", namespace)
    if entry.kind is Kind.CURSOR:
        text = "goes to the server on which the cursor is open"
        return Explanation("proxy", "cursor", text, namespace)
    if entry.kind is Kind.SESSION:
        return Explanation(
            "both tiers", "session", "ends or refreshes sessions on both tiers", namespace
        )
    if entry.kind is Kind.REFUSED:
        text = "isn't served through the proxy: connect to the replica set that it is about"
        return Explanation("nobody", "refused", text, namespace, error="CommandNotSupported (115)")
    if entry.kind is Kind.TRANSACTION:
        text = "ends a transaction: goes to the tier on which its statements ran"
        return Explanation("proxy", entry.kind.value, text, namespace)
    if entry.kind is Kind.ADMIN:
        return Explanation("archive", entry.kind.value, "concerns no tiered collection", namespace)
    return Explanation("archive", Reason.UNTIERED.value, TEXTS[Reason.UNTIERED], namespace)


def _schema(command: Command, touches: Touched, snapshot: Snapshot, namespace: str) -> Explanation:
    """A command that changes tiered collections. The archive's indexes aren't known here."""
    if not snapshot.touches_tiered(concerned(command, touches.all, snapshot)):
        return Explanation("archive", Reason.UNTIERED.value, TEXTS[Reason.UNTIERED], namespace)
    chosen, text = way(command, ()), refusal(command, touches.all, snapshot)
    if text is not None or chosen is Way.REFUSED:
        text = (
            text
            or "can't be done to a tiered collection: take its policy out, run it, put the policy back"
        )
        return Explanation("nobody", "ddl", text, namespace, error="CommandNotSupported (115)")
    tier, text = _WAYS[chosen]
    if chosen is Way.BOTH and command.name in DEPENDS_ON_INDEXES - {"createIndexes"}:
        text += _UNIQUE
    return Explanation(tier, "ddl", text, namespace)


def _refused(reason: Reason, namespace: str, error: str) -> Explanation:
    return Explanation("nobody", reason.value, TEXTS[reason], namespace, error=error)


def _read(command: Command, snapshot: Snapshot, namespace: str) -> Explanation:
    route = decide(command, snapshot)
    text = TEXTS[route.reason]
    if isinstance(route, Refused):
        return Explanation(
            "nobody", route.reason.value, text, namespace, error=f"{route.message} ({route.code})"
        )
    tier = tier_of(route)
    return Explanation(
        "fast tier" if tier is not None and tier.value == "fast" else "archive",
        route.reason.value,
        text,
        namespace,
        barrier=isinstance(route, ArchiveRead) and route.barrier,
    )

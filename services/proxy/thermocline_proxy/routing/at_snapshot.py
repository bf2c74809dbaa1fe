"""Reads at one time outside transactions: always on the archive, so that a session of them can go on."""

from collections.abc import Iterable

from thermocline_common.errors import Code
from thermocline_proxy.commands.readconcern import SNAPSHOT, read_concern
from thermocline_proxy.commands.snapshots import is_archives, is_whole
from thermocline_proxy.routing.questions import QUERIES, Question
from thermocline_proxy.routing.routes import ArchiveRead, Reason, Refused
from thermocline_proxy.routing.snapshot import Snapshot, Tiering


def asks_for_snapshot(question: Question) -> bool:
    """Whether a read is to be done at one time that the archive chooses, or has chosen before."""
    concern = read_concern(question.command)
    if question.command.name not in QUERIES or not concern.valid:
        return False
    if concern.at is not None:
        return is_archives(concern.at)
    return concern.level == SNAPSHOT


def snapshot_route(
    question: Question, active: Iterable[Tiering], snapshot: Snapshot
) -> ArchiveRead | Refused:
    """For a read of tiered namespaces, whatever their states; ``active``: those whose truth is in F.

    Behind the barrier, the archive has every write that was acknowledged, whichever tier took it; and
    what it has at one time, it has had at that time for ever.
    """
    at = read_concern(question.command).at
    writes = question.pipeline is not None and question.pipeline.written is not None
    if at is None:
        refused = refused_for_quarantine(active, snapshot)
        if refused is not None:
            return refused
    elif not (is_whole(at) or snapshot.archive_only):
        return Refused(
            Reason.SNAPSHOT,
            Code.InvalidOptions,
            "the snapshot was begun with an untiered collection while the archive was behind the fast "
            "tier: begin a new one",
        )
    barrier = at is None and not snapshot.archive_only
    return ArchiveRead(Reason.SNAPSHOT, barrier=barrier, primary=writes, snapshot=True)


def refused_for_quarantine(active: Iterable[Tiering], snapshot: Snapshot) -> Refused | None:
    """The refusal where the archive lacks documents that a read could need, else None."""
    lacking = [t.coverage.namespace for t in active if t.quarantined]
    for namespace in must_be_whole(lacking, snapshot):
        return quarantined(namespace)
    return None


def must_be_whole(namespaces: Iterable[str], snapshot: Snapshot) -> list[str]:
    """Those of these namespaces whose reads have to show every document: none that is relaxed."""
    if snapshot.archive_only:
        return []
    found = [(namespace, snapshot.tierings.get(namespace)) for namespace in sorted(namespaces)]
    return [namespace for namespace, tiering in found if tiering is None or not tiering.relaxed]


def quarantined(namespace: str) -> Refused:
    """The archive lacks documents of this namespace."""
    return Refused(
        Reason.QUARANTINED,
        Code.OperationFailed,
        f"the archive couldn't take some documents of {namespace} (condition Degraded, quarantined "
        "documents), so its answer could be wrong; reads by _id work",
    )

"""Where a read can go, and the closed list of reasons for it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from thermocline_common.coverage import Tier
from thermocline_common.ids import DocId
from thermocline_proxy.commands.change_streams import Watch


class Reason(StrEnum):
    """Why a read goes where it goes: a label in metrics, in ``/status`` and in ``thermocline explain``."""

    # The fast tier answers, or is asked first.
    POINT_ID = "point-id"
    POINT_UNIQUE = "point-unique"
    ID_LIST = "id-list"
    COVERED = "covered"
    NEWEST_FIRST = "newest-first"
    ANY_MATCH = "any-match"
    COMPLETE = "complete"
    CHANGE_STREAM = "change-stream"
    # The archive answers.
    UNTIERED = "untiered"
    PAUSING = "pausing"
    ARCHIVE_ONLY = "archive-only"
    IN_DOUBT = "in-doubt"
    METADATA = "metadata"
    ESTIMATE = "estimate"
    VIEW = "view"
    JOIN = "join"
    STAGE = "stage"
    WRITES_UNTIERED = "writes-untiered"
    NO_BOUND = "no-bound"
    BELOW_FLOOR = "below-floor"
    NOTHING_COVERED = "nothing-covered"
    OPTION = "option"
    COMMAND = "command"
    # A route of the fast tier that turned out not to be enough.
    FAST_MISS = "fast-miss"
    FAST_INCOMPLETE = "fast-incomplete"
    FAST_ERROR = "fast-error"
    LEASE_ENDED = "lease-ended"
    # Nobody answers.
    UNKNOWN_NAMESPACE = "unknown-namespace"
    QUARANTINED = "quarantined"
    SNAPSHOT = "snapshot"
    TRANSACTION = "transaction"
    WRITES_TIERED = "writes-tiered"


@dataclass(frozen=True, slots=True)
class PointRead:
    """By ``_id``: F, and on a miss the removal record, then A. ``whole``: the filter says nothing else."""

    id: DocId
    whole: bool
    reason: Reason = Reason.POINT_ID


@dataclass(frozen=True, slots=True)
class UniqueRead:
    """By the whole key of a unique index. ``key``: raw filter of that key alone."""

    index: str
    key: bytes
    whole: bool
    reason: Reason = Reason.POINT_UNIQUE


@dataclass(frozen=True, slots=True)
class IdsRead:
    """By a list of ids: F if it holds every one, else A. ``whole``: the filter says nothing else."""

    ids: tuple[DocId, ...]
    whole: bool
    reason: Reason = Reason.ID_LIST


@dataclass(frozen=True, slots=True)
class FastRead:
    """F alone: the coverage proves that it holds every document that matters, while the lease runs."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class NewestRead:
    """F, if it returns ``count`` documents down to the floor in one batch (``newest.proves``).

    ``path``: the age field. ``floor``: ms since 1970. ``batch_size``: to be set, so that one batch
    can hold the whole answer; None where the client's own does.
    """

    path: str
    floor: int
    count: int
    batch_size: int | None = None
    reason: Reason = Reason.NEWEST_FIRST


@dataclass(frozen=True, slots=True)
class AnyRead:
    """F, if it has any match: ``limit: 1`` without a sort lets the server choose."""

    reason: Reason = Reason.ANY_MATCH


@dataclass(frozen=True, slots=True)
class ArchiveRead:
    """A. ``barrier``: wait until it holds every acknowledged write. ``primary``: whatever the preference.

    ``tiered``: the read is of tiered data (level ``majority``, not before ``archive_time``); else
    the command keeps its own level.
    """

    reason: Reason
    barrier: bool
    tiered: bool = True
    primary: bool = False
    snapshot: bool = False
    """At one time (``readConcern: snapshot``), which the client gets marked as the archive's."""


@dataclass(frozen=True, slots=True)
class StreamRead:
    """A change stream of one tiered collection: F, whose events the application made itself."""

    watch: Watch
    reason: Reason = Reason.CHANGE_STREAM


@dataclass(frozen=True, slots=True)
class Refused:
    """Nobody answers. ``wait``: a newer snapshot may change that."""

    reason: Reason
    code: int
    message: str
    wait: bool = False


Route: TypeAlias = (
    PointRead
    | UniqueRead
    | IdsRead
    | FastRead
    | NewestRead
    | AnyRead
    | StreamRead
    | ArchiveRead
    | Refused
)


def tier_of(route: Route) -> Tier | None:
    """The tier that a route asks first; None where nobody is asked."""
    if isinstance(route, Refused):
        return None
    return Tier.ARCHIVE if isinstance(route, ArchiveRead) else Tier.FAST

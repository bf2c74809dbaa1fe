"""What an error of either tier means for replay: a table, so that nothing is skipped by accident."""

from collections.abc import Iterable
from enum import Enum

from thermocline_common.errors import NOT_PRIMARY, Code


class Reading(Enum):
    """How to go on after an error of the fast tier."""

    RETRY = "retry"
    """The same again after a moment: the tier is away, or has another primary."""
    REOPEN = "reopen"
    """Open the stream anew from the checkpoint."""
    READ_LATER = "read later"
    """F no longer has the state of that time: read the present one."""
    RESYNC = "resync"
    """F's oplog no longer reaches back to the checkpoint."""
    CHANGED = "changed"
    """The collection isn't the one expected: look at it anew."""
    STOP = "stop"
    """A person must act: say so and try again slowly."""


class Writing(Enum):
    """How to go on after an error of the archive."""

    RETRY = "retry"
    CONFLICT = "unique key conflict"
    REINSERT = "delete, then insert"
    """A replacement can't make this change, for example of the ``_id``'s type."""
    PARTS = "parts"
    """Too large for one transaction."""
    CHANGED = "changed"
    QUARANTINE = "quarantine"
    """The archive refuses this document for good."""
    STOP = "stop"


_UNKNOWN_ERROR = 8
_RESYNC = frozenset({Code.ChangeStreamHistoryLost, Code.CappedPositionLost})
_LATER = frozenset({Code.SnapshotTooOld, Code.SnapshotUnavailable})
_REOPEN = frozenset(
    {Code.CursorNotFound, Code.ChangeStreamFatalError, 175, 237}
)  # QueryPlanKilled, CursorKilled
_PASSING = NOT_PRIMARY | frozenset(
    {
        Code.HostUnreachable, Code.NetworkTimeout, Code.MaxTimeMSExpired, Code.ExceededTimeLimit,
        Code.WriteConflict, Code.LockTimeout, Code.Interrupted, Code.NoSuchTransaction,
        Code.WriteConcernFailed, Code.TransactionTooOld, Code.ConflictingOperationInProgress,
        Code.OutOfDiskSpace,  # of the disk, never of a document
        7, 46, 133, 290, 9001,  # HostNotFound, LockBusy, FailedToSatisfyReadPreference,
        # TransactionExceededLifetimeLimitSeconds, SocketException
    }
)  # fmt: skip
_OF_THE_DISK = ("No space left on device", "Input/output error")
"""MongoDB 6.0.5 answers a statement that its storage couldn't carry out with 8 (UnknownError) and the system's
own words, before it ends itself: no document's fault."""
_PERSON = frozenset({Code.Unauthorized, Code.AuthenticationFailed})


def after_reading(code: int | None, labels: Iterable[str] = ()) -> Reading:
    """``code``: MongoDB's, None for a broken connection."""
    if code is None:
        return Reading.RETRY
    if code in _RESYNC:
        return Reading.RESYNC
    if code in _LATER:
        return Reading.READ_LATER
    if code == Code.CollectionUUIDMismatch:
        return Reading.CHANGED
    if code in _PERSON:
        return Reading.STOP
    if code in _REOPEN:
        return Reading.REOPEN
    if code in _PASSING or "ResumableChangeStreamError" in labels:
        return Reading.RETRY
    return Reading.RETRY


def after_writing(code: int | None, labels: Iterable[str] = (), text: str = "") -> Writing:
    """``code``: of a statement or of the whole command; None for a broken connection. ``text``: the error's.

    What isn't known to pass by itself is a lasting refusal: it is narrowed down to the documents
    that cause it, and never waited for.
    """
    if code is None or "TransientTransactionError" in labels or code in _PASSING:
        if code == Code.TransactionTooLargeForCache:
            return Writing.PARTS
        return Writing.RETRY
    if code == Code.TransactionTooLargeForCache:
        return Writing.PARTS
    if code == _UNKNOWN_ERROR and any(words in text for words in _OF_THE_DISK):
        return Writing.RETRY
    if code == Code.DuplicateKey:
        return Writing.CONFLICT
    if code == Code.ImmutableField:
        return Writing.REINSERT
    if code in (Code.CollectionUUIDMismatch, Code.NamespaceNotFound):
        return Writing.CHANGED
    if code in _PERSON:
        return Writing.STOP
    return Writing.QUARANTINE

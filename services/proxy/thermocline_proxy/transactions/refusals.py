"""What a client is told: the errors of transactions, in MongoDB's codes and labels. Pure."""

from collections.abc import Iterable, Set as AbstractSet
from typing import Final

from thermocline_common.errors import NOT_PRIMARY, Code, CommandError

TRANSIENT: Final = ("TransientTransactionError",)
_PASSING: Final = NOT_PRIMARY | {
    Code.HostUnreachable,
    Code.NetworkTimeout,
    Code.ExceededTimeLimit,
    Code.WriteConflict,
    Code.SnapshotTooOld,
    Code.SnapshotUnavailable,
    Code.CollectionUUIDMismatch,
    202,
}
"""Reasons to repeat the whole transaction: no part of it was committed."""


class MustRepeat(Exception):
    """The transaction can't go on, but a new one may: the namespace changes, or documents moved."""


def conflict(reason: str) -> CommandError:
    """WriteConflict, upon which drivers repeat the transaction."""
    return CommandError(
        Code.WriteConflict,
        f"WriteConflict error: {reason}. Please retry your operation or multi-document transaction.",
        labels=TRANSIENT,
    )


def no_such_transaction(number: int) -> CommandError:
    """As a server answers where it knows no such transaction, or one that was aborted."""
    return CommandError(
        Code.NoSuchTransaction,
        f"Given transaction number {number} does not match any in-progress transactions",
        labels=TRANSIENT,
    )


def too_old(number: int, newest: int) -> CommandError:
    """A transaction that begins after a later one of its session has."""
    return CommandError(
        Code.TransactionTooOld,
        f"Cannot start transaction {number} on this session because a newer transaction {newest} "
        "has already started",
    )


def started_already(number: int) -> CommandError:
    """A transaction that begins twice."""
    return CommandError(
        Code.ConflictingOperationInProgress,
        f"transaction {number} of this session has already been started",
    )


def refused(message: str) -> CommandError:
    """What can't be done in a transaction over two tiers; the text says what to do instead."""
    return CommandError(Code.OperationNotSupportedInTransaction, message)


def on_the_way(
    untiered: Iterable[str], tiered: Iterable[str], wanted: AbstractSet[str]
) -> frozenset[str]:
    """Those that are to be switched, so that a transaction over all may soon be on one tier: ``wanted`` are to
    be tiered, the others not.

    Namespaces are switched one after the other, when the mode or their policies change.
    """
    return (frozenset(untiered) & wanted) | (frozenset(tiered) - wanted)


def untiered_inside(namespace: str) -> CommandError:
    """An untiered namespace in a transaction that runs on the fast tier."""
    return refused(
        f"{namespace} isn't tiered and lives in the archive, but this transaction runs on the fast "
        f"tier, because it touches tiered collections: give {namespace} a policy with `keep: All`, "
        "or use it outside the transaction"
    )


def tiered_inside(namespaces: str) -> CommandError:
    """A tiered namespace in a transaction that began on untiered ones."""
    return refused(
        f"{namespaces} is tiered, but this transaction began on collections that aren't and runs on "
        "the archive: give those a policy with `keep: All`, or use them outside the transaction"
    )


def needs_archive(namespace: str, reason: str) -> CommandError:
    """A read that the fast tier alone can't be proven to answer."""
    return refused(
        f"this read of {namespace} needs documents that may be in the archive alone ({reason}), and a "
        "transaction can't span the two tiers: read by _id or a unique key, bound the age field "
        "so that the fast tier covers the read, give the collection `keep: All`, or read before the transaction"
    )


def too_many(namespace: str, most: int) -> CommandError:
    """A statement that matches more cold documents than are promoted for a transaction."""
    return refused(
        f"this statement matches more than {most} documents of {namespace} that are in the archive "
        "alone: bound the age field in its filter, or run it outside the transaction"
    )


def not_inside(name: str) -> CommandError:
    """A command that MongoDB doesn't run in transactions."""
    return refused(f"Cannot run '{name}' in a multi-document transaction.")


def labelled(error: CommandError) -> CommandError:
    """The same error, with the label where a new transaction may succeed."""
    if error.labels or error.code not in _PASSING:
        return error
    return CommandError(error.code, error.message, code_name=error.code_name, labels=TRANSIENT)

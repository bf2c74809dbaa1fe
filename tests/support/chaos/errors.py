"""Which errors an application may meet while things break: those that drivers retry. Pure."""

from collections.abc import Set as AbstractSet
from typing import Any, Final

from support.chaos.histories import Outcome

RETRYABLE: Final[frozenset[int]] = frozenset(
    {6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
)
"""The codes of MongoDB's specifications of retryable reads and writes."""
OF_CURSORS: Final[frozenset[int]] = frozenset({43, 175, 237})
"""A cursor goes with its server, in MongoDB too: the query is to be repeated."""
LABELS: Final = frozenset(
    {"RetryableWriteError", "TransientTransactionError", "UnknownTransactionCommitResult"}
)


def outcome_of(
    codes: AbstractSet[int], labels: AbstractSet[str], connection_failed: bool
) -> Outcome:
    """Whether an application that met this error may try again."""
    if connection_failed or labels & LABELS:
        return Outcome.RETRYABLE
    if codes and codes <= RETRYABLE | OF_CURSORS:
        return Outcome.RETRYABLE
    return Outcome.WRONG


def disk_is_full(error: BaseException) -> bool:
    """Whether MongoDB says that its disk is full, and nothing else: by a code of its own, or a text alone."""
    details = getattr(error, "details", None) or {}
    refused = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())] or [
        {"code": getattr(error, "code", None), "errmsg": str(error)}
    ]
    return all(r.get("code") == 14031 or "No space left" in str(r.get("errmsg")) for r in refused)


def name_of(error: Any) -> str:
    """Short enough to count, long enough to tell what it was."""
    code = getattr(error, "code", None)
    text = str(error).split(", full error:")[0]
    details = getattr(error, "details", None) or {}
    for refused in details.get("writeErrors", ())[:1]:
        # A bulk write's own text says nothing.
        text = f"{refused.get('code')} {refused.get('errmsg')}"
    return f"{type(error).__name__} {'' if code is None else code} {text[:110]}".replace("\n", " ")

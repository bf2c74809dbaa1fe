"""What clients did and what they were told: the raw material of all checks. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What an operation does to one register: a document that is absent or holds a value.

    ``result`` is: of a read the value or None; of a swap the value before; of the others whether they
    found (or, an insert: didn't find) the document.
    """

    READ = "read"
    PUT = "put"  # replace with upsert: found or made
    SET = "set"  # update what is there
    INSERT = "insert"
    DELETE = "delete"
    COMPARE = "compare and set"  # argument (expected, new)
    SWAP = "swap"  # findAndModify
    REMOVE = "remove"  # delete if it holds the argument


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. ``returned`` None: its outcome is unknown, it may have its effect at any later time,
    or never. Times: seconds of one monotonic clock."""

    client: str
    kind: Kind
    key: Hashable
    argument: Any
    result: Any
    invoked: float
    returned: float | None
    note: str = ""

    def __str__(self) -> str:
        until = "      ..." if self.returned is None else f"{self.returned:9.3f}"
        told = "unknown" if self.returned is None else repr(self.result)
        return (
            f"{self.invoked:9.3f} {until}  {self.client:<12} {self.kind} {self.argument!r}"
            f" -> {told} {self.note}".rstrip()
        )


class Outcome(StrEnum):
    """What an application may conclude from an operation's end."""

    DONE = "done"
    RETRYABLE = "retryable"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of a driver's method, whatever it was about. ``error``: its kind, empty if there was none."""

    client: str
    what: str
    began: float
    ended: float
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which, of what, and the trace that shows it. ``key``: of a register."""

    promise: str
    subject: str
    trace: tuple[str, ...]
    key: Hashable = None

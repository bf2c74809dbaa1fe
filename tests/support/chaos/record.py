"""What all clients of a run write down, from several threads."""

import itertools
import threading
import time
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
)

from support.chaos.errors import disk_is_full, name_of, outcome_of
from support.chaos.histories import Attempt, Kind, Operation, Outcome, Violation

if TYPE_CHECKING:
    from support.chaos.clients import Desk


SCHEMA = "ddl"
"""The client that creates, drops and renames collections."""


class Record:
    """Operations on registers, every attempt, and what was seen to be wrong at once.

    Times count from the record's making, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.epoch = time.time()
        """The wall clock at 0: oplogs and logs know no other."""
        self._lock = threading.Lock()
        self.operations: list[Operation] = []
        self.attempts: list[Attempt] = []
        self.violations: list[Violation] = []
        self.values = itertools.count(1)
        """Every value that is written is another one."""

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def keep(self, operation: Operation) -> None:
        """One operation on a register is over."""
        with self._lock:
            self.operations.append(operation)

    def note(self, client: str, what: str, began: float, error: BaseException | None) -> Outcome:
        """One call of the driver is over; what an application may conclude from it."""
        outcome, name = Outcome.DONE, ""
        if isinstance(error, PyMongoError) and not is_duplicate(error):
            name = name_of(error)
            outcome = outcome_of(
                _codes(error), _labels(error), isinstance(error, ConnectionFailure)
            )
            if client == SCHEMA and disk_is_full(error):
                # What is executed on the archive meets its full disk as with one MongoDB.
                outcome = Outcome.RETRYABLE
        elif error is not None and not isinstance(error, PyMongoError):
            outcome, name = Outcome.WRONG, f"{type(error).__name__}: {error}"
        with self._lock:
            self.attempts.append(Attempt(client, what, began, self.now(), outcome, name))
        return outcome

    def violate(self, promise: str, subject: str, trace: Iterable[object]) -> None:
        """A wrong answer was seen."""
        with self._lock:
            lines = tuple(str(line) for line in trace)
            self.violations.append(Violation(promise, subject, lines))


class Register:
    """One operation on a register under way: ``with Register(...) as op: op.result = ...``.

    An error leaves its outcome unknown; a duplicate key is an insert's result False. ``haunted``: it had no
    effect, but an earlier attempt of it may still be on its way, in a frozen proxy or a slow connection:
    of a statement without effect MongoDB remembers nothing, and would execute that one, too.
    """

    def __init__(
        self,
        record: Record,
        desk: "Desk",
        client: str,
        kind: Kind,
        key: Hashable,
        argument: Any = None,
    ) -> None:
        self.record = record
        self._trail = desk.trail
        self._trail.begin()
        self.unknown = False
        self.haunted = False
        self.result: Any = None
        self._operation = Operation(client, kind, key, argument, None, record.now(), None)

    def end(self, result: Any) -> None:
        """It was answered."""
        now, note = self.record.now(), str(self._trail)
        self.record.keep(replace(self._operation, result=result, returned=now, note=note))
        kind = self._operation.kind
        had_effect = kind in (Kind.READ, Kind.PUT) or (result not in (False, None))
        if self._trail.repeated and not had_effect:
            self.haunt()

    def haunt(self) -> None:
        """An attempt of it may have its effect at any later time, or never."""
        self.haunted = True
        self.record.keep(replace(self._operation, note=f"an earlier attempt {self._trail}"))

    def fail(self, error: PyMongoError) -> None:
        """It ended in an error."""
        kind = self._operation.kind
        if is_duplicate(error):
            if kind is Kind.INSERT:
                self.end(False)
            else:
                # It had no effect, and says nothing of the document's state. MongoDB itself repeats an
                # upsert by _id that lost a race.
                told = [replace(self._operation, note=f"{self._trail} {name_of(error)}")]
                self.record.violate("answers are right", f"E11000 to a {kind}", told)
            return
        self.unknown = True
        self.record.keep(replace(self._operation, note=f"{self._trail} {name_of(error)}"))


def is_duplicate(error: PyMongoError) -> bool:
    """Whether it says for certain that a key exists already."""
    if isinstance(error, BulkWriteError):
        details = error.details
        return not details["writeConcernErrors"] and all(
            e["code"] == 11000 for e in details["writeErrors"]
        )
    return isinstance(error, DuplicateKeyError) and not (error.details or {}).get(
        "writeConcernError"
    )


def _codes(error: PyMongoError) -> frozenset[int]:
    if isinstance(error, BulkWriteError):
        found = [*error.details["writeErrors"], *error.details["writeConcernErrors"]]
        return frozenset(int(e["code"]) for e in found)
    code = error.code if isinstance(error, OperationFailure) else None
    return frozenset() if code is None else frozenset({int(code)})


def _labels(error: PyMongoError) -> frozenset[str]:
    known = ("RetryableWriteError", "TransientTransactionError", "UnknownTransactionCommitResult")
    return frozenset(label for label in known if error.has_error_label(label))

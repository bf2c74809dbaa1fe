"""Seeded transactions for the differential test: several statements of a stream, then commit or abort.

Drawn behind the plain stream from numbers of their own, so that a seed's plain commands stay the same.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bson.int64 import Int64

from support.answers import differ, essence
from support.stream_values import Collection
from support.streams import Step, Stream

TRY_SECONDS = 60.0
_REFUSED = 263
_CONFLICT = 112


class End(Enum):
    """How a transaction ends."""

    COMMIT = "commit"
    COMMIT_TWICE = "commit twice"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements and the end of one transaction."""

    steps: tuple[Step, ...]
    end: End


class TransactionStream(Stream):
    """An endless stream of transactions."""

    def transactions(self, seed: int) -> Iterator[Transaction]:
        """Like the plain stream, but from draws of its own."""
        self.random = random.Random(f"{seed}/{self.partition}/transactions")
        makers = self._inside()
        while True:
            count = self.random.randrange(1, 6)
            steps = []
            for _ in range(count):
                collection = self.random.choice([c for c in self.collections if c.name != "notes"])
                weights = [weight for weight, _ in makers]
                maker = self.random.choices([maker for _, maker in makers], weights)[0]
                steps.append(maker(collection))
            yield Transaction(tuple(steps), self.random.choice([End.COMMIT, *End, End.COMMIT]))

    def _inside(self) -> list[tuple[int, Callable[[Collection], Step]]]:
        return [
            (10, self.insert), (4, self.insert_many), (14, self.update_by_id), (6, self.update_by_ref),
            (3, self.update_many), (7, self.upsert), (8, self.delete_by_id), (4, self.delete_by_ref),
            (2, self.delete_many), (8, self.find_and_modify), (5, self.find_and_remove),
            (5, self.update_batch), (3, self.delete_batch), (9, self.find_by_id), (5, self.find_in),
            (1, self.find_range), (3, self.find_newest), (4, self.find_by_key),
        ]  # fmt: skip


Answer = tuple[dict[str, Any], list[int], list[bytes]]


class Runner:
    """One side of a comparison, as far as transactions go: ``answer`` and ``send`` are the side's own."""

    def __init__(self, side: Any, numbers: Iterator[int]) -> None:
        self.side = side
        self.numbers = numbers

    def attempt(self, transaction: Transaction) -> tuple[list[Answer], Mapping[str, Any]]:
        """Send the statements up to the first failure, and the transaction's fields for the end."""
        fields = {"txnNumber": Int64(next(self.numbers)), "autocommit": False}
        answers: list[Answer] = []
        for number, step in enumerate(transaction.steps):
            start = {"startTransaction": True} if number == 0 else {}
            answers.append(self.side.answer(step, {**step.command, **fields, **start}, fields))
            if failed(answers[-1]):
                break
        return answers, fields

    def finish(self, end: End, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Commit or abort; the essences of the replies."""
        name = "abortTransaction" if end is End.ABORT else "commitTransaction"
        times = 2 if end is End.COMMIT_TWICE else 1
        return [
            essence(self.side.send({name: 1, **fields}, database="admin")) for _ in range(times)
        ]


def failed(answer: Answer) -> bool:
    """Whether a statement met an error, which ends a transaction."""
    return not answer[0].get("ok") or "writeErrors" in answer[0]


def compare(
    transaction: Transaction, plain: Runner, proxied: Runner, counts: Counter[str]
) -> tuple[str, int, Any, Any] | None:
    """Run it through the proxy, as often as drivers would, then on the plain server.

    None: equal, or refused with 263 (then neither side did anything). Else what differs, the number
    of the statement, and both answers.
    """
    deadline = time.monotonic() + TRY_SECONDS
    tries = 0
    while True:
        tries += 1
        answers, fields = proxied.attempt(transaction)
        code = answers[-1][0].get("code")
        if failed(answers[-1]):
            proxied.finish(End.ABORT, fields)
        if code == _REFUSED:
            counts["transaction refused"] += 1
            return None
        if code not in (_CONFLICT, 251, 246, 262, 6, 91, 189, 10107, 11600, 11602):
            break
        counts[f"transaction repeated: {code}"] += 1
        if time.monotonic() > deadline:
            return f"{tries} tries", len(answers), [], answers
    ends = [] if failed(answers[-1]) else proxied.finish(transaction.end, fields)
    expected, fields = plain.attempt(transaction)
    for number, (step, left, right) in enumerate(
        zip(transaction.steps, expected, answers, strict=False)
    ):
        what = differ(step.kind, step.ordered, left, right)
        if what is not None:
            return what, number, left, right
    if len(expected) != len(answers):
        return "the number of statements done", len(answers), expected, answers
    if failed(expected[-1]):
        plain.finish(End.ABORT, fields)
        counts["transaction failed"] += 1
        return None
    wanted = plain.finish(transaction.end, fields)
    counts[f"transaction {transaction.end.value}"] += 1
    return None if wanted == ends else ("the end", len(answers), wanted, ends)

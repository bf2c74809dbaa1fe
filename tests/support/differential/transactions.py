"""Seeded transactions: several statements of a stream, then commit or abort.

Drawn from numbers of their own, so that a seed's plain commands stay the same.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from bson.int64 import Int64

from support.differential.answers import Answer, differ, essence
from support.differential.layout import SHARED, Collection, Document, own_collections
from support.differential.sides import Side
from support.differential.step import Concern, Limit, Step
from support.differential.streams import Stream

TRY_SECONDS: Final = 150.0
"""Longer than Thermocline repeats a transaction for a namespace that isn't where it is wanted."""
TRANSIENT: Final = "TransientTransactionError"
UNTIERED: Final = ("notes", "loose")


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
        weights = [weight for weight, _ in makers]
        every = (*SHARED, *own_collections(self.partition))
        while True:
            # Sometimes untiered ones alone, seldom both kinds.
            kind = self.random.choices(("tiered", "untiered", "mixed"), (8, 1, 1))[0]
            chosen = [
                c for c in every if kind == "mixed" or (c.name in UNTIERED) is (kind == "untiered")
            ]
            steps = []
            for _ in range(self.random.randrange(1, 6)):
                maker = self.random.choices([maker for _, maker in makers], weights)[0]
                steps.append(maker(self.random.choice(chosen)))
            yield Transaction(tuple(steps), self.random.choice([End.COMMIT, *End, End.COMMIT]))

    def _inside(self) -> list[tuple[float, Callable[[Collection], Step]]]:
        return [
            (10, self.insert), (4, self.insert_many), (14, self.update_by_id), (6, self.update_by_ref),
            (3, self.update_many), (7, self.upsert), (8, self.delete_by_id), (4, self.delete_by_ref),
            (2, self.delete_many), (6, self.find_and_modify), (4, self.find_and_remove), (2, self.special_find_and_modify),
            (2, self.special_update), (5, self.update_batch), (3, self.delete_batch), (9, self.find_by_id), (5, self.find_in),
            (1, self.find_range), (3, self.find_newest), (4, self.find_by_key), (1, self.aggregate), (0.5, self.distinct),
            (2, self.wrong_inside),
        ]  # fmt: skip

    def wrong_inside(self, collection: Collection) -> Step:
        """What MongoDB doesn't do in transactions."""
        name = collection.name
        find: Document = {"find": name, "filter": {"_id": self.pick_id(self.pick_index())}}
        insert: Document = {"insert": name, "documents": [self.document(collection, 0)]}
        bad: list[Document] = [
            {**find, "readConcern": {"level": "local"}}, {**find, "readConcern": {"level": "linearizable"}},
            {**find, "readConcern": {"level": "available"}}, {**find, "readConcern": {"level": "nope"}},
            {**insert, "writeConcern": {"w": 1}}, {**insert, "writeConcern": {}}, {"count": name, "query": {}},
            {"noSuchCommand": name}, {"listIndexes": name}, {**find, "nope": 1}, {**find, "tailable": True},
            {"find": name, "filter": {"_id": 1, "$nope": 1}}, {"insert": name, "documents": []},
            {"dropIndexes": name, "index": "none"}, {"collMod": name},
        ]  # fmt: skip
        return Step(WRONG, self.random.choice(bad), database=collection.database)


WRONG: Final = "wrong inside"
_OUTSIDE_ONLY: Final = ("readConcern", "writeConcern", "$readPreference")


class Runner:
    """One side of a comparison, as far as transactions go."""

    def __init__(self, side: Side, numbers: Iterator[int]) -> None:
        self.side = side
        self.numbers = numbers

    def attempt(self, transaction: Transaction) -> tuple[list[Answer], Mapping[str, Any]]:
        """Send the statements up to the first failure, and the transaction's fields for the end."""
        fields = {"txnNumber": Int64(next(self.numbers)), "autocommit": False}
        answers: list[Answer] = []
        for number, step in enumerate(transaction.steps):
            start = {"startTransaction": True} if number == 0 else {}
            inside = dict(step.command)
            if step.kind != WRONG:
                inside = {n: v for n, v in inside.items() if n not in _OUTSIDE_ONLY}
                step = replace(step, concern=Concern.NONE)
            answers.append(self.side.answer(step, {**inside, **fields, **start}, fields))
            if failed(answers[-1]):
                break
        return answers, fields

    def settled(
        self, transaction: Transaction, counts: Counter[str]
    ) -> tuple[list[Answer], list[dict[str, Any]], bool]:
        """As often as drivers would repeat it. The last attempt, how its end was answered, and whether it
        was given up."""
        deadline = time.monotonic() + TRY_SECONDS
        while True:
            answers, fields = self.attempt(transaction)
            if not failed(answers[-1]):
                return answers, self.finish(transaction.end, fields), False
            aborted = self.finish(End.ABORT, fields)
            if TRANSIENT not in answers[-1][0].get("labels", ()):
                return answers, aborted, False
            counts[f"transaction repeated: {answers[-1][0].get('code')}"] += 1
            if time.monotonic() > deadline:
                return answers, aborted, True

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

    None: equal, or refused by one of the limits (then neither side did anything). Else what differs, the
    number of the statement, and both answers.
    """
    answers, ends, given_up = proxied.settled(transaction, counts)
    if given_up:
        return "the number of tries", len(answers), [], answers
    last = transaction.steps[len(answers) - 1]
    refusals = {Limit.TRANSACTION.code, *([last.limit.code] if last.limit else ())}
    refused = answers[-1][0].get("code") in refusals
    if refused and last.kind != WRONG:
        counts["transaction refused"] += 1
        return None
    if not failed(answers[-1]) and any(TRANSIENT in end.get("labels", ()) for end in ends):
        counts["transaction's end repeated"] += 1
        return compare(transaction, plain, proxied, counts)
    expected, wanted, _ = plain.settled(transaction, counts)
    if refused and expected[-1] != answers[-1]:
        counts["transaction refused"] += 1  # for what plain refuses, too, for another reason
        return None
    for number, (step, left, right) in enumerate(
        zip(transaction.steps, expected, answers, strict=False)
    ):
        what = differ(step.compared, step.ordered, left, right)
        if what is not None:
            return what, number, left, right
    if len(expected) != len(answers):
        return "the number of statements done", len(answers), expected, answers
    how = "failed" if failed(expected[-1]) else transaction.end.value
    counts[f"transaction {how}"] += 1
    return None if wanted == ends else ("the end", len(answers), wanted, ends)

"""Workloads on shared documents whose sums must come out: counters, and transfers in transactions."""

import random
from collections import Counter
from typing import Any, Final

from pymongo import ReturnDocument
from pymongo.errors import PyMongoError

from support.chaos.clients import Call, Desk, Script, Transaction
from support.chaos.record import Record
from support.chaos.registers import age

COUNTERS: Final = "counters"
ACCOUNTS: Final = "accounts"
TRANSFERS: Final = "transfers"
COUNTED: Final = 12
ACCOUNTS_HELD: Final = 10
BALANCE: Final = 1_000


class Counting:
    """One client that counts up documents that all of them share."""

    def __init__(self, record: Record, number: int, seed: int) -> None:
        self.name = f"counters-{number}"
        self.field = f"by{number}"
        self.acknowledged: Counter[int] = Counter()
        self.doubtful: Counter[int] = Counter()
        self.returned: list[tuple[int, int]] = []
        """Document and total, of each increment that was answered."""
        self._record = record
        self._dice = random.Random(f"{seed}/{self.name}/steps")

    def step(self, desk: Desk) -> Script:
        """One increment of the total and of the client's own share."""
        counters, key = desk.collection(COUNTERS), self._dice.randrange(COUNTED)
        change = {"$inc": {"n": 1, self.field: 1}}
        try:
            found = yield Call(
                "increment",
                lambda: counters.find_one_and_update(
                    {"_id": key}, change, return_document=ReturnDocument.AFTER
                ),
            )
        except PyMongoError:
            self.doubtful[key] += 1
            return
        if found is None:
            self._record.violate("answers are right", f"counter {key}", ["found nothing"])
            return
        self.acknowledged[key] += 1
        self.returned.append((key, int(found["n"])))


class Bank:
    """One client that transfers money between accounts, and audits them."""

    def __init__(self, record: Record, number: int, seed: int, span: float) -> None:
        self.name = f"bank-{number}"
        self.acknowledged: set[int] = set()
        self._record = record
        self._dice = random.Random(f"{seed}/{self.name}/steps")
        self._span = span

    def _missing(self, what: str) -> None:
        self._record.violate(
            "answers are right",
            f"{self.name} {what}",
            [f"at {self._record.now():.3f} s: not found"],
        )

    def step(self, desk: Desk) -> Script:
        """A transfer, or an audit."""
        if self._dice.random() < 0.25:
            yield from self._audit(desk)
        else:
            yield from self._transfer(desk)

    def _transfer(self, desk: Desk) -> Script:
        payer, payee = self._dice.sample(range(ACCOUNTS_HELD), k=2)
        amount, number = self._dice.randrange(1, 50), next(self._record.values)
        at = age(self._dice, self._span)
        accounts = desk.client.shop[ACCOUNTS]
        transfers = desk.client.shop[TRANSFERS]

        def script(session: Any) -> Script:
            found = yield Call(
                "balance", lambda: accounts.find_one({"_id": payer}, session=session)
            )
            if found is None:
                self._missing(f"account {payer}")
                return
            yield Call(
                "pay",
                lambda: accounts.update_one(
                    {"_id": payer},
                    {"$set": {"balance": found["balance"] - amount}},
                    session=session,
                ),
            )
            received = yield Call(
                "receive",
                lambda: accounts.update_one(
                    {"_id": payee}, {"$inc": {"balance": amount}}, session=session
                ),
            )
            if received.matched_count != 1:
                self._missing(f"account {payee}")
            transfer = {
                "_id": number,
                "at": at,
                "at2": at,
                "from": payer,
                "to": payee,
                "amount": amount,
            }
            yield Call("write down", lambda: transfers.insert_one(transfer, session=session))

        try:
            yield Transaction("transfer", script)
        except PyMongoError:
            return
        self.acknowledged.add(number)

    def _audit(self, desk: Desk) -> Script:
        accounts = desk.client.shop[ACCOUNTS]
        ids = {"_id": {"$in": list(range(ACCOUNTS_HELD))}}

        def script(session: Any) -> Script:
            found = yield Call("audit", lambda: accounts.find(ids, session=session).to_list())
            return found

        try:
            found = yield Transaction("audit", script)
        except PyMongoError:
            return
        total = sum(d["balance"] for d in found)
        if total != ACCOUNTS_HELD * BALANCE:
            self._record.violate(
                "sums are conserved", self.name, [f"at {self._record.now():.3f} s: {total}", *found]
            )

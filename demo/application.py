"""An unchanged application: PyMongo in threads, Motor in coroutines, one connection string.

Every worker owns the orders whose number leaves its remainder, so it knows exactly what each of
its reads must answer and checks it.
"""

import asyncio
import datetime as dt
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import DESCENDING, MongoClient
from pymongo.errors import PyMongoError

from demo.orders import STATUSES, Ledger, Order

THREADS = 4
COROUTINES = 8
WORKERS = THREADS + COROUTINES

CHOICES = (
    ("point read", 52),
    ("cold point read", 3),
    ("newest first", 10),
    ("date range", 5),
    ("aggregate", 3),
    ("old report", 1),
    ("update", 13),
    ("cold update", 3),
    ("insert", 6),
    ("delete", 3),
    ("cold delete", 1),
)


@dataclass(slots=True)
class Score:
    """What the application did and what went wrong."""

    operations: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All operations."""
        return sum(self.operations.values())


@dataclass(slots=True)
class Worker:
    """Chooses and checks operations; running them is the caller's, blocking or not."""

    number: int
    ledger: Ledger
    score: Score
    touched: set[int]
    dice: random.Random

    def hot(self) -> int:
        """One of our orders, newest preferred (half within the newest 1.5 %)."""
        highest = self.ledger.highest
        return self._own(highest - 1 - int(self.dice.expovariate(1 / (highest * 0.02))))

    def cold(self) -> int:
        """One of our orders, any age."""
        return self._own(self.dice.randrange(self.ledger.catalogue.count))

    def _own(self, number: int) -> int:
        number = max(number, 0)
        number -= (number - self.number) % WORKERS
        return number if number >= 0 else self.number

    def check(self, what: str, right: bool, detail: object = "") -> None:
        """Note a wrong answer."""
        if not right:
            self.score.wrong.append(f"{what}: {detail}")


Operation = tuple[Callable[[], Any], Callable[[Any], None]]


def operation(worker: Worker, orders: Any, kind: str) -> Operation:
    """An operation of a kind: the driver's call (awaitable with Motor) and the check of its result."""
    ledger = worker.ledger
    now = dt.datetime.now(dt.UTC)
    if kind in ("point read", "cold point read"):
        number = worker.hot() if kind == "point read" else worker.cold()

        def same(found: Order | None) -> None:
            worker.check(kind, found == ledger.order(number), number)

        return lambda: orders.find_one({"_id": number}), same
    if kind == "newest first":
        cursor = orders.find({}).sort("createdAt", DESCENDING).limit(20)

        def sorted_right(found: list[Order]) -> None:
            ages = [order["createdAt"] for order in found]
            worker.check(kind, len(found) == 20 and ages == sorted(ages, reverse=True), ages)

        return lambda: cursor.to_list(None), sorted_right
    if kind == "date range":
        since = now - dt.timedelta(days=worker.dice.randrange(1, 6))
        query = {"createdAt": {"$gte": since, "$lt": since + dt.timedelta(hours=6)}}

        def in_range(found: list[Order]) -> None:
            worker.check(kind, bool(found) and all(o["createdAt"] >= since for o in found), since)

        return lambda: orders.find(query, {"createdAt": 1}).to_list(None), in_range
    if kind in ("aggregate", "old report"):
        days = 3 if kind == "aggregate" else worker.dice.randrange(120, 300)
        since = now - dt.timedelta(days=days)
        match = {"createdAt": {"$gte": since, "$lt": since + dt.timedelta(days=1)}}
        group = {"_id": "$status", "orders": {"$sum": 1}, "total": {"$sum": "$total"}}

        def grouped(found: list[Order]) -> None:
            # 548 orders a day were loaded; few of them are ever deleted.
            count = sum(row["orders"] for row in found)
            least = ledger.catalogue.count / 365 * 0.5
            worker.check(kind, count >= least, count)

        return lambda: orders.aggregate([{"$match": match}, {"$group": group}]).to_list(
            None
        ), grouped
    if kind in ("update", "cold update"):
        number = worker.hot() if kind == "update" else worker.cold()
        before = ledger.order(number)
        status = worker.dice.choice(STATUSES)
        change = {"$set": {"status": status}, "$inc": {"version": 1}}
        worker.touched.add(number)

        def updated(result: Any) -> None:
            worker.check(kind, result.matched_count == (before is not None), number)
            if before is not None:
                ledger.set(number, {**before, "status": status, "version": before["version"] + 1})

        return lambda: orders.update_one({"_id": number}, change), updated
    if kind == "insert":
        number = ledger.new_number(worker.number, WORKERS)
        created = now.replace(microsecond=now.microsecond // 1000 * 1000)
        order = ledger.catalogue.order(number, created)

        def inserted(_: Any) -> None:
            ledger.set(number, order)

        return lambda: orders.insert_one(order), inserted
    number = worker.hot() if kind == "delete" else worker.cold()
    before = ledger.order(number)
    worker.touched.add(number)

    def deleted(result: Any) -> None:
        worker.check(kind, result.deleted_count == (before is not None), number)
        ledger.set(number, None)

    return lambda: orders.delete_one({"_id": number}), deleted


class Application:
    """The workers together: ``start``, ``stop``; ``score`` and ``touched`` are theirs."""

    def __init__(self, uri: str, namespace: str, ledger: Ledger, rate: float) -> None:
        self.uri = uri
        self.database, self.collection = namespace.split(".", 1)
        self.ledger = ledger
        self.pause = WORKERS / rate
        self.score = Score()
        self.touched: set[int] = set()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all workers."""
        self._threads = [threading.Thread(target=self._thread, args=(i,)) for i in range(THREADS)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._coroutines())))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all workers; operations in hand finish."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _worker(self, number: int) -> Worker:
        dice = random.Random(number)  # noqa: S311
        return Worker(number, self.ledger, self.score, self.touched, dice)

    def _kind(self, worker: Worker) -> str:
        names, weights = zip(*CHOICES, strict=True)
        return str(worker.dice.choices(names, weights)[0])

    def _thread(self, number: int) -> None:
        worker = self._worker(number)
        client: MongoClient[Order] = MongoClient(self.uri, tz_aware=True)
        orders = client[self.database][self.collection]
        while not self._stop.is_set():
            started = time.monotonic()
            kind = self._kind(worker)
            try:
                call, check = operation(worker, orders, kind)
                check(call())
            except PyMongoError as error:
                self.score.failed.append(f"{kind}: {error!r}"[:300])
            self.score.operations[kind] += 1
            self._stop.wait(max(0.0, self.pause - (time.monotonic() - started)))
        client.close()

    async def _coroutines(self) -> None:
        client: Any = AsyncIOMotorClient(self.uri, tz_aware=True)
        orders = client[self.database][self.collection]
        workers = [self._worker(THREADS + i) for i in range(COROUTINES)]
        await asyncio.gather(*(self._coroutine(worker, orders) for worker in workers))
        client.close()

    async def _coroutine(self, worker: Worker, orders: Any) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            kind = self._kind(worker)
            try:
                call, check = operation(worker, orders, kind)
                check(await call())
            except PyMongoError as error:
                self.score.failed.append(f"{kind}: {error!r}"[:300])
            self.score.operations[kind] += 1
            await asyncio.sleep(max(0.0, self.pause - (time.monotonic() - started)))

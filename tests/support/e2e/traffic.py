"""An application in a pod: it works through the proxy, knows what every answer must be, and says so each second.

It is given to the pod as a text, and so imports nothing of this repository. Standard output has one JSON object
a second; ``touch /tmp/stop`` ends the work, reads back every document, and prints the last one, with ``final``.
"""

import datetime as dt
import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

THREADS = 2
PAUSE = 0.1
KEPT = 60
"""Documents of its own that a thread keeps, at most."""
STOP = Path("/tmp/stop")


class Report:
    """What happened so far."""

    def __init__(self) -> None:
        self.operations = 0
        self.failed = 0
        self.failures: list[str] = []
        self.wrong: list[str] = []
        self.slowest = 0.0
        self.lock = threading.Lock()

    def line(self, **more: Any) -> str:
        """As JSON. ``slowest``: seconds of the slowest operation since the last line."""
        with self.lock:
            text = json.dumps(
                {
                    "operations": self.operations,
                    "failed": self.failed,
                    "failures": self.failures[-5:],
                    "wrong": self.wrong[:5],
                    "slowest": round(self.slowest, 3),
                    **more,
                }
            )
            self.slowest = 0.0
            return text


class Worker:
    """One thread of the application, with documents of its own."""

    def __init__(self, number: int, client: MongoClient[dict[str, Any]], report: Report) -> None:
        self.name = f"{os.environ.get('HOSTNAME', 'app')}-{number}"
        self.orders = client["shop"]["orders"]
        self.products = client["shop"]["products"]
        self.report = report
        self.known: dict[str, int] = {}
        self.doubtful: set[str] = set()
        self.began = dt.datetime.now(dt.UTC).replace(microsecond=0)
        self.old = int(os.environ["OLD_ORDERS"])

    def check(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            with self.report.lock:
                self.report.wrong.append(f"{what}: {found!r} in place of {wanted!r}")

    def run(self) -> None:
        for turn in itertools.count():
            if STOP.exists():
                return
            began = time.monotonic()
            try:
                self.step(turn)
            except PyMongoError as error:
                with self.report.lock:
                    self.report.failed += 1
                    when = dt.datetime.now(dt.UTC).strftime("%H:%M:%S")
                    self.report.failures.append(f"{when} step {turn % 8}: {error!r}"[:400])
            with self.report.lock:
                self.report.operations += 1
                self.report.slowest = max(self.report.slowest, time.monotonic() - began)
            time.sleep(PAUSE)

    def step(self, turn: int) -> None:
        kind = turn % 8
        mine = next(iter(self.known), None)
        if kind == 0 or mine is None:
            new = f"{self.name}-{turn}"
            self.doubtful.add(new)  # until it is acknowledged
            self.orders.insert_one(
                {"_id": new, "app": self.name, "n": 0, "createdAt": dt.datetime.now(dt.UTC)}
            )
            self.doubtful.discard(new)
            self.known[new] = 0
        elif kind == 1:
            n = self.known.pop(mine)
            self.doubtful.add(mine)
            done = self.orders.update_one({"_id": mine}, {"$inc": {"n": 1}})
            self.check("an update's match", done.matched_count, 1)
            self.doubtful.discard(mine)
            self.known[mine] = n + 1  # and behind the others
        elif kind == 2:
            found = self.orders.find_one({"_id": mine})
            self.check(f"order {mine}", found and found["n"], self.known[mine])
        elif kind == 3:  # the fast tier answers, where it can
            cursor = self.orders.find(
                {"createdAt": {"$gte": self.began}, "app": self.name}, {"n": 1}
            )
            found_n = {d["_id"]: d["n"] for d in cursor if d["_id"] not in self.doubtful}
            self.check("own orders", found_n, self.known)
        elif kind == 4:  # the archive answers
            number = turn % self.old
            found = self.orders.find_one({"_id": f"old-{number}"})
            self.check(f"order old-{number}", found and found["n"], number * 3)
        elif kind == 5:
            count = self.orders.count_documents({"app": "old"})
            self.check("number of old orders", count, self.old)
        elif kind == 6:
            self.check("products", self.products.count_documents({}), 20)
        elif len(self.known) > KEPT:
            del self.known[mine]
            self.doubtful.add(mine)
            done_delete = self.orders.delete_one({"_id": mine})
            self.check("a delete's match", done_delete.deleted_count, 1)
            self.check("a deleted order", self.orders.find_one({"_id": mine}), None)
            self.doubtful.discard(mine)

    def verify(self) -> int:
        """Read every document back; how many."""
        for end in range(100):
            try:
                cursor = self.orders.find({"app": self.name}, {"n": 1})
                found = {d["_id"]: d["n"] for d in cursor if d["_id"] not in self.doubtful}
                self.check("all own orders", found, self.known)
                return len(found)
            except PyMongoError as error:
                if end == 30:
                    self.check("reading back", repr(error), None)
                    break
                time.sleep(1)
        return 0


def main() -> None:
    report = Report()
    client = MongoClient[dict[str, Any]](
        sys.argv[1], tz_aware=True, serverSelectionTimeoutMS=20_000, appname="e2e"
    )
    workers = [Worker(number, client, report) for number in range(THREADS)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        print(report.line(), flush=True)
        time.sleep(1)
    documents = sum(worker.verify() for worker in workers)
    doubtful = sum(len(worker.doubtful) for worker in workers)
    print(report.line(final=True, documents=documents, doubtful=doubtful), flush=True)
    while True:  # the log is to be read yet
        time.sleep(60)


if __name__ == "__main__":
    main()

"""The verdict: every document, through the proxy, in the archive and in the fast tier."""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, MongoClient
from rich.progress import BarColumn, Progress, TextColumn

from demo.orders import Ledger
from thermocline_common import names

Client = MongoClient[dict[str, Any]]
RAW = CodecOptions(document_class=RawBSONDocument)
MOST_FINDINGS = 5
FOREIGN_TO_APPLICATIONS = {"admin", "config", "local", names.DATABASE}


class Verification:
    """Collects what is wrong; ``documents`` is how many were compared byte for byte in the archive."""

    def __init__(self, namespace: str, ledger: Ledger) -> None:
        self.database, self.collection = namespace.split(".", 1)
        self.ledger = ledger
        self.problems: list[str] = []
        self.documents = 0
        self.expected: dict[int, bytes] = {}
        self.ages: dict[int, dt.datetime] = {}
        self.statuses: dict[int, str] = {}
        for order in ledger.expected():
            number = order["_id"]
            self.expected[number] = bson.encode(order)
            self.ages[number] = order["createdAt"]
            self.statuses[number] = order["status"]

    def _orders(self, client: Client) -> Any:
        return client[self.database].get_collection(self.collection, codec_options=RAW)

    def _compare(
        self, where: str, found: Iterable[RawBSONDocument], wanted: dict[int, bytes]
    ) -> int:
        seen: set[int] = set()
        wrong: Counter[str] = Counter()
        examples: list[str] = []
        for document in found:
            number = document["_id"]
            if number in seen:
                kind = "twice"
            elif number not in wanted:
                kind = "not supposed to exist"
            elif bytes(document.raw) != wanted[number]:
                kind = "different bytes"
            else:
                kind = ""
            seen.add(number)
            if kind:
                wrong[kind] += 1
                examples.append(f"{number} {kind}")
        missing = [number for number in wanted if number not in seen]
        if missing:
            wrong["missing"] = len(missing)
            examples += [f"{number} missing" for number in missing]
        if wrong:
            self.problems.append(f"{where}: {dict(wrong)}; {examples[:MOST_FINDINGS]}")
        return len(seen)

    def archive(self, archive: Client) -> None:
        """The archive holds exactly the expected bytes."""
        self.documents = self._compare(
            "archive", _progress("archive, byte for byte", self._orders(archive).find(), len(self.expected)), self.expected
        )  # fmt: skip

    def proxy(self, proxy: Client, now: dt.datetime) -> None:
        """What the application sees: everything, recent ranges, newest first, aggregates, points."""
        orders = self._orders(proxy)
        scan = orders.find().sort("_id", ASCENDING)
        self._compare(
            "proxy, everything",
            _progress("through the proxy", scan, len(self.expected)),
            self.expected,
        )
        for days in (1, 7, 25, 60):
            since = now - dt.timedelta(days=days)
            wanted = {n: raw for n, raw in self.expected.items() if self.ages[n] >= since}
            self._compare(
                f"proxy, last {days} days", orders.find({"createdAt": {"$gte": since}}), wanted
            )
        newest = sorted(self.expected, key=lambda n: (self.ages[n], n), reverse=True)[:500]
        found = [
            d["_id"]
            for d in orders.find().sort([("createdAt", DESCENDING), ("_id", DESCENDING)]).limit(500)
        ]
        if found != newest:
            self.problems.append(f"proxy, newest first: {found[:5]} instead of {newest[:5]}")
        self._aggregates(orders, now)
        self._points(orders)

    def _aggregates(self, orders: Any, now: dt.datetime) -> None:
        for days in (10, 365):
            since = now - dt.timedelta(days=days)
            counts = Counter(self.statuses[n] for n, age in self.ages.items() if age >= since)
            pipeline = [
                {"$match": {"createdAt": {"$gte": since}}},
                {"$group": {"_id": "$status", "n": {"$sum": 1}}},
            ]
            found = {row["_id"]: row["n"] for row in orders.aggregate(pipeline)}
            if found != dict(counts):
                self.problems.append(
                    f"proxy, aggregate of {days} days: {found} instead of {dict(counts)}"
                )

    def _points(self, orders: Any) -> None:
        for number in [*list(self.ledger.changed)[-2_000:], *range(0, self.ledger.highest, 997)]:
            found = orders.find_one({"_id": number})
            wanted = self.expected.get(number)
            if (bytes(found.raw) if found is not None else None) != wanted:
                self.problems.append(f"proxy, point read of {number}: wrong")
                return

    def fast(self, fast: Client, horizon: dt.datetime, touched: set[int]) -> tuple[int, int]:
        """The fast tier holds the recent ones, and of the older only what the application touched.

        Returns how many it holds, and how many of them are older than ``horizon``.
        """
        held: dict[int, bytes] = {}
        older = 0
        for document in self._orders(fast).find():
            number = document["_id"]
            held[number] = bytes(document.raw)
            if self._is_old(document, horizon):
                older += 1
                if number not in touched:
                    self.problems.append(
                        f"fast tier: {number} is older than the age and nobody touched it"
                    )
        wanted = {n: self.expected.get(n, b"") for n in held}
        self._compare("fast tier", (RawBSONDocument(raw) for raw in held.values()), wanted)
        for name in fast.list_database_names():
            if name not in FOREIGN_TO_APPLICATIONS and name != self.database:
                self.problems.append(f"fast tier: database {name} doesn't belong there")
        return len(held), older

    @staticmethod
    def _is_old(document: RawBSONDocument, horizon: dt.datetime) -> bool:
        created: dt.datetime = document["createdAt"]
        return created.replace(tzinfo=dt.UTC) < horizon


def _progress(what: str, documents: Iterable[Any], total: int) -> Iterator[Any]:
    with Progress(TextColumn(f"verifying: {what}"), BarColumn()) as progress:
        task = progress.add_task(what, total=total)
        for count, document in enumerate(documents, 1):
            if count % 2_000 == 0:
                progress.update(task, completed=count)
            yield document
        progress.update(task, completed=total)

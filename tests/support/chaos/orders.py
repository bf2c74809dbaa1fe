"""A workload that knows the truth: own documents in one collection, each answer checked at once.

Reads and writes are at level majority in one causally consistent session, so every answer is certain,
whichever member or tier gives it.
"""

import datetime as dt
import random
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING
from pymongo.errors import BulkWriteError, PyMongoError

from support.chaos.clients import Call, Desk, Script
from support.chaos.record import Record, is_duplicate
from support.chaos.registers import age
from support.chaos.shapes import counted, difference, listed
from support.ledger import Document, Ledger

ORDERS: Final = "orders"
IDS: Final = 240
PARTITION: Final = 100_000


class Orders:
    """One client; ``partition``: its number, which its documents carry."""

    def __init__(self, record: Record, partition: int, seed: int, span: float) -> None:
        self.name = f"orders-{partition}"
        self.partition = partition
        self.ledger = Ledger()
        self._record = record
        self._dice = random.Random(f"{seed}/{self.name}/steps")
        self._span = span
        self._actions = [
            (self.insert, 5), (self.update, 6), (self.delete, 4), (self.upsert, 3), (self.bulk, 2),
            (self.remove_some, 1), (self.update_some, 1), (self.read, 6), (self.several, 3),
            (self.newest, 3), (self.recent, 3), (self.totals, 2), (self.everything, 1),
        ]  # fmt: skip

    def document(self, identity: int) -> dict[str, Any]:
        """A new one."""
        at = age(self._dice, self._span)
        return {
            "_id": identity, "p": self.partition, "at": at, "at2": at,
            "v": next(self._record.values), "pad": "x" * 200,
        }  # fmt: skip

    def load(self) -> list[dict[str, Any]]:
        """What is there before the run begins."""
        ids = range(self.partition * PARTITION, self.partition * PARTITION + IDS, 2)
        documents = [self.document(identity) for identity in ids]
        for document in documents:
            self.ledger.wrote(document["_id"], document)
        return documents

    def step(self, desk: Desk) -> Script:
        """One operation."""
        actions, weights = zip(*self._actions, strict=True)
        yield from self._dice.choices(actions, weights)[0](desk)

    def _pick(self) -> int:
        while True:
            identity = self.partition * PARTITION + self._dice.randrange(IDS)
            if identity not in self.ledger.retired:
                return identity

    def _mine(self) -> dict[str, Any]:
        return {"p": self.partition, "_id": {"$nin": list(self.ledger.retired)}}

    def _wrong(self, what: str, found: Any, expected: Any) -> None:
        self._record.violate("answers are right", f"{self.name} {what}", [
            f"at {self._record.now():.3f} s", f"got  {found}", f"want {expected}",
        ])  # fmt: skip

    def _write(self, call: Call, changes: dict[int, Document | None], expected: int) -> Script:
        """Send a write; ``expected``: how many documents it must say it found (-1: whatever)."""
        try:
            result = yield call
        except PyMongoError as error:
            if is_duplicate(error):
                if not any(i in self.ledger.documents for i in changes):
                    self._wrong(call.what, "E11000", f"success: {list(changes)} don't exist")
                return
            for identity, after in changes.items():
                if identity in self.ledger.documents or after is not None:
                    self.ledger.doubt(identity, after)
            return
        found = counted(result)
        if expected >= 0 and found != expected:
            self._wrong(call.what, found, f"{expected} of {list(changes)}")
        for identity, after in changes.items():
            self.ledger.wrote(identity, after)

    def insert(self, desk: Desk) -> Script:
        """A new document; a duplicate exactly if it exists."""
        orders, identity = desk.collection(ORDERS), self._pick()
        document = self.document(identity)
        exists = identity in self.ledger.documents
        try:
            yield Call("insert", lambda: orders.insert_one(dict(document), session=desk.session))
        except PyMongoError as error:
            if not is_duplicate(error):
                self.ledger.doubt(identity, document)
            elif not exists:
                self._wrong("insert", "E11000", f"{identity} inserted")
        else:
            if exists:
                self._wrong("insert", f"{identity} inserted", "E11000")
            self.ledger.wrote(identity, document)

    def update(self, desk: Desk) -> Script:
        """By ``_id``."""
        orders, identity = desk.collection(ORDERS), self._pick()
        change: dict[str, Any] = {"v": next(self._record.values)}
        if self._dice.random() < 0.2:
            change["at"] = change["at2"] = age(self._dice, self._span)
        known = self.ledger.documents.get(identity)
        after = {**known, **change} if known is not None else None
        one = {"_id": identity}
        yield from self._write(
            Call("update", lambda: orders.update_one(one, {"$set": change}, session=desk.session)),
            {identity: after},
            int(known is not None),
        )

    def delete(self, desk: Desk) -> Script:
        """By ``_id``."""
        orders, identity = desk.collection(ORDERS), self._pick()
        expected = int(identity in self.ledger.documents)
        yield from self._write(
            Call("delete", lambda: orders.delete_one({"_id": identity}, session=desk.session)),
            {identity: None},
            expected,
        )

    def upsert(self, desk: Desk) -> Script:
        """A replacement that inserts where nothing is."""
        orders, identity = desk.collection(ORDERS), self._pick()
        document = self.document(identity)
        expected = int(identity in self.ledger.documents)
        yield from self._write(
            Call(
                "upsert",
                lambda: orders.replace_one(
                    {"_id": identity}, dict(document), upsert=True, session=desk.session
                ),
            ),
            {identity: document},
            expected,
        )

    def bulk(self, desk: Desk) -> Script:
        """Several new documents in one command."""
        orders = desk.collection(ORDERS)
        fresh = {self._pick() for _ in range(4)} - set(self.ledger.documents)
        documents: dict[int, Document | None] = {i: self.document(i) for i in sorted(fresh)}
        if not documents:
            return
        copies = [dict(d) for d in documents.values() if d is not None]
        try:
            yield Call(
                "insert many",
                lambda: orders.insert_many(copies, ordered=False, session=desk.session),
            )
        except PyMongoError as error:
            if isinstance(error, BulkWriteError) and is_duplicate(error):
                self._wrong("insert many", error.details["writeErrors"], list(documents))
            for identity, document in documents.items():
                self.ledger.doubt(identity, document)
        else:
            for identity, document in documents.items():
                self.ledger.wrote(identity, document)

    def _some(self) -> tuple[dict[str, Any], list[int]]:
        """A filter that isn't by ``_id``, and what it matches."""
        low = self.partition * PARTITION + self._dice.randrange(IDS)
        bound = {"$gte": low, "$lt": low + 6, "$nin": list(self.ledger.retired)}
        matched = [i for i in self.ledger.documents if low <= i < low + 6]
        return {"p": self.partition, "_id": bound}, matched

    def remove_some(self, desk: Desk) -> Script:
        """deleteMany by a filter."""
        orders = desk.collection(ORDERS)
        wanted, matched = self._some()
        yield from self._write(
            Call("delete many", lambda: orders.delete_many(wanted, session=desk.session)),
            dict.fromkeys(matched),
            len(matched),
        )

    def update_some(self, desk: Desk) -> Script:
        """updateMany by a filter."""
        orders, value = desk.collection(ORDERS), next(self._record.values)
        wanted, matched = self._some()
        change = {"$set": {"v": value}}
        yield from self._write(
            Call("update many", lambda: orders.update_many(wanted, change, session=desk.session)),
            {i: {**self.ledger.documents[i], "v": value} for i in matched},
            len(matched),
        )

    def _ask(self, call: Call, expected: Any, shape: Any = None) -> Script:
        try:
            found = yield call
        except PyMongoError:
            return
        found = shape(found) if shape else found
        if found != expected:
            self._wrong(call.what, *difference(found, expected))

    def read(self, desk: Desk) -> Script:
        """A point read."""
        orders, identity = desk.collection(ORDERS), self._pick()
        call = Call("read", lambda: orders.find_one({"_id": identity}, session=desk.session))
        yield from self._ask(call, self.ledger.documents.get(identity))

    def several(self, desk: Desk) -> Script:
        """By a list of ids, through a cursor of small batches."""
        orders = desk.collection(ORDERS)
        ids = sorted({self._pick() for _ in range(8)})
        expected = [self.ledger.documents[i] for i in ids if i in self.ledger.documents]
        call = Call(
            "read several",
            lambda: (
                orders.find({"_id": {"$in": ids}}, session=desk.session)
                .sort("_id", ASCENDING)
                .to_list()
            ),
        )
        yield from self._ask(call, expected)

    def newest(self, desk: Desk) -> Script:
        """The newest ten."""
        orders, mine = desk.collection(ORDERS), self._mine()
        expected = sorted(self._dated(), key=lambda d: (-d["at"].timestamp(), d["_id"]))[:10]
        order = [("at", DESCENDING), ("_id", ASCENDING)]
        call = Call(
            "newest",
            lambda: orders.find(mine, session=desk.session).sort(order).limit(10).to_list(),
        )
        yield from self._ask(call, expected)

    def _dated(self) -> list[Document]:
        return [d for d in self.ledger.documents.values() if isinstance(d["at"], dt.datetime)]

    def recent(self, desk: Desk) -> Script:
        """Everything younger than some seconds: covered, or not."""
        orders = desk.collection(ORDERS)
        bound = dt.datetime.now(dt.UTC) - dt.timedelta(
            seconds=self._dice.uniform(1, self._span * 2)
        )
        wanted = {**self._mine(), "at": {"$gte": bound.replace(microsecond=0)}}
        young = [d for d in self._dated() if d["at"] >= bound.replace(microsecond=0)]
        expected = sorted(young, key=lambda d: d["_id"])
        call = Call(
            "recent",
            lambda: orders.find(wanted, session=desk.session).batch_size(40).to_list(),
        )
        yield from self._ask(call, expected, lambda found: sorted(found, key=lambda d: d["_id"]))

    def totals(self, desk: Desk) -> Script:
        """An aggregation over everything."""
        orders = desk.collection(ORDERS)
        stages = [
            {"$match": self._mine()},
            {"$group": {"_id": None, "n": {"$sum": 1}, "v": {"$sum": "$v"}}},
        ]
        documents = self.ledger.documents.values()
        expected = [{"_id": None, "n": len(documents), "v": sum(d["v"] for d in documents)}]

        def run() -> Any:
            cursor = orders.aggregate(stages, session=desk.session)
            return cursor.to_list() if hasattr(cursor, "to_list") else listed(cursor)

        yield from self._ask(Call("aggregate", run), expected if documents else [])

    def everything(self, desk: Desk) -> Script:
        """The whole partition, in batches."""
        orders = desk.collection(ORDERS)
        mine = {"p": self.partition}
        try:
            found = yield Call(
                "everything",
                lambda: orders.find(mine, session=desk.session).batch_size(60).to_list(),
            )
        except PyMongoError:
            return
        wrong = self.ledger.check({d["_id"]: d for d in found})
        wrong = [w for w in wrong if not w.startswith("in doubt")]
        if len({d["_id"] for d in found}) != len(found):
            wrong.append("some documents came twice")
        if wrong:
            self._wrong("everything", wrong[:3], "the ledger")

"""An application under load while services are killed: nothing lost, nothing back.

``python -m support.chaos --seed 7 --seconds 60`` runs it alone.
"""

import argparse
import datetime as dt
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from support.fixtures import ARCHIVE_KEY, CLOCK_AHEAD_SECONDS, FAST_KEY
from support.haste import HASTE
from support.ledger import Document, Ledger
from support.mongod import ReplicaSet
from support.services import SERVICES, ServiceProcess, Thermocline

DATABASE: Final = "shop"
NAME: Final = "orders"
POLICIES: Final = ({"namespace": "shop.orders", "ageField": "at", "maxAge": "6s"},)
IDS: Final = 250
"""Per application thread: few enough to meet again, enough that some may be retired."""


class Application:
    """One thread of an application that does everything by the book: ordinary driver, own documents."""

    def __init__(self, thermocline: Thermocline, seed: int, partition: int) -> None:
        self.thermocline = thermocline
        self.random = random.Random(f"{seed}/{partition}")
        self.partition = partition
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self.serial = 0
        self.slowest = (0.0, "")

    def document(self, identity: int) -> dict[str, Any]:
        """A new document with an age of up to 40 seconds, or an odd one."""
        self.serial += 1
        at: Any = _now() - dt.timedelta(milliseconds=self.random.randrange(40_000))
        if self.random.random() < 0.05:
            at = self.random.choice([None, "unknown", 5])
        return {"_id": identity, "p": self.partition, "at": at, "v": self.serial, "pad": "x" * 200}

    def load(self, archive: Collection[dict[str, Any]]) -> None:
        """Half of the documents, straight into the archive, before Thermocline is there."""
        documents = [self.document(self.partition * 10_000 + i) for i in range(0, IDS, 2)]
        archive.insert_many(documents)
        for document in documents:
            self.ledger.wrote(document["_id"], document)

    def run(self, until: Callable[[], bool]) -> None:
        """Work until told to stop. Raises ``AssertionError`` for a wrong answer."""
        with self.thermocline.client(serverSelectionTimeoutMS=60_000) as client:
            orders = client[DATABASE][NAME]
            choices = [self.insert, self.update, self.delete, self.upsert, self.modify, self.bulk]
            reads = [self.read, self.newest, self.everything]
            while not until():
                action = self.random.choices([*choices, *reads], [5, 6, 4, 3, 3, 2, 6, 3, 1])[0]
                started = time.monotonic()
                action(orders)
                self.slowest = max(self.slowest, (time.monotonic() - started, action.__name__))
                self.counts[action.__name__] += 1

    def _pick(self) -> int:
        while True:
            identity = self.partition * 10_000 + self.random.randrange(IDS)
            if identity not in self.ledger.retired:
                return identity

    @contextmanager
    def _write(self, identity: int, after: Document | None) -> Iterator[None]:
        try:
            yield
        except DuplicateKeyError:
            raise
        except (PyMongoError, BulkWriteError) as error:
            self.counts[f"in doubt: {_brief(error)}"] += 1
            self.ledger.doubt(identity, after)
        else:
            self.ledger.wrote(identity, after)

    def insert(self, orders: Collection[dict[str, Any]]) -> None:
        """A new document; a duplicate exactly if it exists."""
        identity = self._pick()
        document = self.document(identity)
        exists = identity in self.ledger.documents
        try:
            with self._write(identity, document):
                orders.insert_one(dict(document))
        except DuplicateKeyError:
            assert exists, f"E11000, but {identity} doesn't exist"
        else:
            assert not exists or identity in self.ledger.retired, f"{identity} inserted twice"

    def update(self, orders: Collection[dict[str, Any]]) -> None:
        """By ``_id``; matched exactly if it exists."""
        identity = self._pick()
        self.serial += 1
        known = self.ledger.documents.get(identity)
        after = None if known is None else {**known, "v": self.serial}
        with self._write(identity, after):
            result = orders.update_one({"_id": identity}, {"$set": {"v": self.serial}})
            assert result.matched_count == (known is not None), (
                f"update of {known} matched otherwise"
            )

    def delete(self, orders: Collection[dict[str, Any]]) -> None:
        """By ``_id``; counted exactly if it existed."""
        identity = self._pick()
        known = self.ledger.documents.get(identity)
        with self._write(identity, None):
            result = orders.delete_one({"_id": identity})
            assert result.deleted_count == (known is not None), (
                f"delete of {known} counted otherwise"
            )

    def upsert(self, orders: Collection[dict[str, Any]]) -> None:
        """A replacement that inserts where nothing is."""
        identity = self._pick()
        document = self.document(identity)
        known = self.ledger.documents.get(identity)
        with self._write(identity, document):
            result = orders.replace_one({"_id": identity}, dict(document), upsert=True)
            assert (result.upserted_id is None) == (known is not None), f"upsert over {known}"

    def modify(self, orders: Collection[dict[str, Any]]) -> None:
        """findAndModify; the document before it is the one that we know."""
        identity = self._pick()
        known = self.ledger.documents.get(identity)
        after = None if known is None else {**known, "v": known["v"] + 1_000_000}
        with self._write(identity, after):
            before = orders.find_one_and_update(
                {"_id": identity}, {"$inc": {"v": 1_000_000}}, return_document=ReturnDocument.BEFORE
            )
            assert before == known, f"findAndModify saw {before}, should be {known}"

    def bulk(self, orders: Collection[dict[str, Any]]) -> None:
        """Several new documents in one command."""
        documents = [self.document(identity) for identity in {self._pick() for _ in range(4)}]
        documents = [d for d in documents if d["_id"] not in self.ledger.documents]
        if not documents:
            return
        try:
            orders.insert_many([dict(document) for document in documents], ordered=False)
        except PyMongoError as error:
            if isinstance(error, BulkWriteError) and error.details["writeErrors"]:
                raise AssertionError(error.details) from error
            self.counts[f"in doubt: {_brief(error)}"] += 1
            for document in documents:
                self.ledger.doubt(document["_id"], document)
        else:
            for document in documents:
                self.ledger.wrote(document["_id"], document)

    @contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except PyMongoError as error:
            self.counts[f"read failed: {_brief(error)}"] += 1

    def read(self, orders: Collection[dict[str, Any]]) -> None:
        """A point read."""
        identity = self._pick()
        with self._read():
            found = orders.find_one({"_id": identity})
            known = self.ledger.documents.get(identity)
            assert found == known, f"read {found}, should be {known}"

    def newest(self, orders: Collection[dict[str, Any]]) -> None:
        """The newest ten."""
        mine = {"p": self.partition, "_id": {"$nin": list(self.ledger.retired)}}
        dated = [d for d in self.ledger.documents.values() if isinstance(d["at"], dt.datetime)]
        expected = sorted(dated, key=lambda d: (-d["at"].timestamp(), d["_id"]))[:10]
        with self._read():
            found = list(orders.find(mine).sort([("at", DESCENDING), ("_id", ASCENDING)]).limit(10))
            assert found == expected, f"newest: {_ids(found)}, should be {_ids(expected)}"

    def everything(self, orders: Collection[dict[str, Any]]) -> None:
        """The whole partition."""
        with self._read():
            found = {document["_id"]: document for document in orders.find({"p": self.partition})}
            wrong = [p for p in self.ledger.check(found) if not p.startswith("in doubt")]
            assert not wrong, wrong[:3]


class Chaos:
    """Applications on a Thermocline whose services are killed or frozen, one after the other."""

    def __init__(self, thermocline: Thermocline, seed: int, applications: int = 4) -> None:
        self.thermocline = thermocline
        self.seed = seed
        self.applications = [Application(thermocline, seed, p) for p in range(applications)]
        self.kills: Counter[str] = Counter()
        self.freezes: Counter[str] = Counter()
        self._over = threading.Event()
        self._failures: list[BaseException] = []

    def prepare(self) -> None:
        """Load the archive; before the services start."""
        with self.thermocline.archive.client() as client:
            client.drop_database(DATABASE)
            orders = client[DATABASE][NAME]
            orders.create_index("at")
            for application in self.applications:
                application.load(orders)

    def run(self, seconds: float, twice: Sequence[str] = ("feeder", "evictor")) -> None:
        """Load and kills for a while, ``twice``: services of which a second process joins in."""
        threads = [
            threading.Thread(target=self._work, args=(a,), daemon=True) for a in self.applications
        ]
        for thread in threads:
            thread.start()
        try:
            self._kill(seconds, twice)
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _work(self, application: Application) -> None:
        try:
            application.run(self._over.is_set)
        except BaseException as error:  # noqa: BLE001 - handed to run()
            self._failures.append(error)
            self._over.set()

    def _kill(self, seconds: float, twice: Sequence[str]) -> None:
        dice = random.Random(self.seed)
        deadline = time.monotonic() + seconds
        for name in twice:
            self.thermocline.add_service(name, f"{name}-2")
        order: list[str] = []
        while time.monotonic() < deadline and not self._over.wait(dice.uniform(0.5, 2.0)):
            order = order or dice.sample(
                [*SERVICES, *(f"{name}-2" for name in twice)], k=len(SERVICES) + len(twice)
            )
            self._disturb(self.thermocline.services[order.pop()], dice)

    def _disturb(self, service: ServiceProcess, dice: random.Random) -> None:
        if dice.random() < 0.7:
            service.kill()
            self.kills[service.label] += 1
            self._over.wait(dice.uniform(0.1, 2.0))
            service.start()
            return
        # Frozen: a feeder for longer than its successor waits, the others within what the protocol
        # assumes (45 s of 60 s, shortened alike).
        service.process.pause()
        self.freezes[service.label] += 1
        self._over.wait(dice.uniform(2.5, 4.0))
        service.process.resume()

    def verify(self) -> int:
        """At rest: every ledger against the proxy and the archive, F within A. Returns the documents."""
        for service in self.thermocline.services.values():
            if not service.process.running:
                service.start()
        self.thermocline.services["proxy"].wait_ready()
        self.thermocline.wait_applied(90)
        contents = {}
        for name, source in (
            ("proxy", self.thermocline),
            ("archive", self.thermocline.archive),
            ("fast", self.thermocline.fast),
        ):
            with source.client() as client:
                contents[name] = {d["_id"]: d for d in client[DATABASE][NAME].find({})}
        problems = []
        for place in ("proxy", "archive"):
            for application in self.applications:
                mine = {i: d for i, d in contents[place].items() if d["p"] == application.partition}
                problems += [f"{place}: {text}" for text in application.ledger.check(mine)]
        stray = [d for i, d in contents["fast"].items() if contents["archive"].get(i) != d]
        problems += [f"fast, not as in the archive: {d}" for d in stray]
        assert not problems, f"seed {self.seed}: {len(problems)} problems:\n" + "\n".join(
            problems[:20]
        )
        return len(contents["archive"])

    def summary(self) -> str:
        """What was done, for the log."""
        counts: Counter[str] = Counter()
        for application in self.applications:
            counts += application.counts
        slowest = max(application.slowest for application in self.applications)
        return f"seed {self.seed}: kills {dict(self.kills)}, freezes {dict(self.freezes)}; {dict(counts)}; slowest {slowest[1]} {slowest[0]:.1f} s"


def _brief(error: Exception) -> str:
    return f"{type(error).__name__} {getattr(error, 'code', '')} {str(error)[:90]}"


def _ids(documents: Sequence[Document]) -> list[Any]:
    return [document["_id"] for document in documents]


def _now() -> dt.datetime:
    now = dt.datetime.now(dt.UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: one run on servers of its own, with logins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        fast = stack.enter_context(ReplicaSet("fast", keyfile=FAST_KEY))
        archive = stack.enter_context(ReplicaSet("archive", keyfile=ARCHIVE_KEY))
        archive.push_clock(CLOCK_AHEAD_SECONDS)
        thermocline = Thermocline(fast, archive, POLICIES, environment=HASTE)
        chaos = Chaos(thermocline, options.seed)
        chaos.prepare()
        with thermocline, thermocline.logs_on_failure():
            thermocline.wait_state("Active")
            chaos.run(options.seconds)
            print(f"{chaos.verify()} documents equal; {chaos.summary()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

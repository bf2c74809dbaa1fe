"""Random commands to a plain mongod and to Thermocline: every answer equal, and the archive at the end.

``python -m support.differential --seed 7 --seconds 60`` runs it alone. A failure prints the seed,
the step, both answers, and where the documents are.
"""

import argparse
import datetime as dt
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bson import decode, encode
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from support.answers import TRANSIENT, codes, differ, essence
from support.fixtures import ARCHIVE_KEY, CLOCK_AHEAD_SECONDS, FAST_KEY
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline
from support.stream_values import Collection
from support.streams import Step, Stream
from support.transaction_streams import Runner, TransactionStream, compare

DATABASE: Final = "shop"
TRANSACTION_SHARE: Final = 0.4
"""Of a run's seconds, as many again for transactions behind it."""
COLLECTIONS: Final = (
    Collection("orders", "at", unique=True),
    Collection("events", "meta.at", unique=False, span=25.0),
    Collection("products", None, unique=True),
    Collection("notes", None, unique=False),
)
POLICIES: Final = (
    {"namespace": "shop.orders", "ageField": "at", "maxAge": "10s"},
    {"namespace": "shop.events", "ageField": "meta.at", "maxAge": "5s"},
    {"namespace": "shop.products", "keep": "All"},
)
RAW: Final[CodecOptions[RawBSONDocument]] = CodecOptions(
    document_class=RawBSONDocument,
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)


Drawn = TypeVar("Drawn")


class Mismatch(AssertionError):
    """The two answers differ; the message holds all that is needed to look into it."""


@dataclass(slots=True)
class Tally:
    """What a run did. ``waits``: transient errors that were tried again, by code."""

    steps: Counter[str] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0


class Side:
    """One of the two servers, as one application thread sees it."""

    def __init__(self, client: MongoClient[dict[str, Any]], tally: Tally | None) -> None:
        self.client = client
        self.session: ClientSession = client.start_session(causal_consistency=False)
        self.tally = tally

    def send(self, command: Mapping[str, Any], *, database: str = DATABASE) -> RawBSONDocument:
        """One command, tried again on transient errors where a driver would."""
        deadline = time.monotonic() + 60
        while True:
            reply: RawBSONDocument = self.client[database].command(
                dict(command),
                check=False,
                codec_options=RAW,
                session=self.session,
            )
            code = reply.get("code")
            name = next(iter(command))
            if "autocommit" in command:
                safe = name == "commitTransaction"
            else:
                safe = "txnNumber" in command or name in _READS
            if reply.get("ok") or code not in TRANSIENT or not safe or time.monotonic() > deadline:
                return reply
            if self.tally is not None:
                self.tally.waits[code] += 1
            time.sleep(0.05)

    def answer(
        self, step: Step, command: Mapping[str, Any], transaction: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[int], list[bytes]]:
        """The essence of the reply, the sizes of its batches, all documents of its cursor."""
        reply = self.send(command)
        batches: list[int] = []
        documents: list[bytes] = []
        cursor = reply.get("cursor") if reply.get("ok") else None
        more: dict[str, Any] = dict(transaction or {})
        if "batchSize" in command:
            more["batchSize"] = command["batchSize"]
        key = "firstBatch"
        while cursor is not None:
            batches.append(len(cursor[key]))
            documents += [document.raw for document in cursor[key]]
            if not cursor["id"]:
                break
            collection = next(iter(command.values()))
            following = {"getMore": Int64(cursor["id"]), "collection": collection, **more}
            page = self.send(following)
            if not page.get("ok"):
                return essence(page), batches, documents
            cursor, key = page["cursor"], "nextBatch"
        return essence(reply), batches, documents


WRITES: Final = frozenset(
    {"insert", "insert batch", "update by _id", "update by ref", "updateMany", "upsert", "update batch", "upsert by ref", "special update",
     "delete by _id", "delete by ref", "deleteMany", "delete batch", "findAndModify", "findAndModify remove"}
)  # fmt: skip
_READS = frozenset({"find", "count", "distinct", "aggregate"})


class Differential:
    """One run: ``streams`` application threads, each with its own partition of the data.

    ``without``: kinds of steps that are left out; ``paranoid``: after each write, the whole partition is
    compared, so that the write that went wrong is found and not the read that notices it.
    """

    def __init__(
        self,
        oracle: ReplicaSet,
        thermocline: Thermocline,
        seed: int,
        streams: int = 3,
        without: Sequence[str] = (),
        paranoid: bool = False,
    ) -> None:
        self.oracle = oracle
        self.thermocline = thermocline
        self.seed = seed
        self.streams = streams
        self.without = without
        self.paranoid = paranoid
        self.tally = Tally()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def prepare(self) -> None:
        """The same documents, cold and warm, in the plain mongod and in the archive."""
        for replica_set in (self.oracle, self.thermocline.archive):
            with replica_set.client() as client:
                client.drop_database(DATABASE)
                for collection in COLLECTIONS:
                    made = client[DATABASE].create_collection(collection.name)
                    if collection.age:
                        made.create_index([(collection.age, 1)])
                    if collection.unique:
                        made.create_index([("sku", 1)], unique=True)
        now = _now()
        for partition in range(self.streams):
            maker = Stream(self.seed, 100 + partition, COLLECTIONS, lambda: now)
            stream = Stream(self.seed, partition, COLLECTIONS, lambda: now)
            for collection in COLLECTIONS:
                documents = []
                for index in range(0, len(stream.ids), 2):
                    document = stream.document(collection, index)
                    document["_id"] = stream.ids[index]
                    if collection.unique:
                        document["sku"] = f"{partition}-{index}"
                    documents.append(document)
                # More than the streams touch, so that warming has something to do.
                for index in range(len(maker.ids)):
                    document = maker.document(collection, index)
                    document["_id"] = maker.ids[index]
                    if collection.unique:
                        document["sku"] = f"{100 + partition}-{index}"
                    documents.append(document)
                for replica_set in (self.oracle, self.thermocline.archive):
                    with replica_set.client() as client:
                        client[DATABASE][collection.name].insert_many(documents)

    def run(self, seconds: float) -> Tally:
        """Run all streams for a while. Raises the first :class:`Mismatch` (or other error)."""
        threads = [
            threading.Thread(target=self._work, args=(partition, seconds), daemon=True)
            for partition in range(self.streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        return self.tally

    def _work(self, partition: int, seconds: float) -> None:
        try:
            with self.oracle.client() as plain, self.thermocline.client() as proxied:
                self._steps(partition, seconds, Side(plain, None), Side(proxied, self.tally))
        except BaseException as error:  # noqa: BLE001 - handed to run()
            self._failures.append(error)
            self._stop.set()

    def _steps(self, partition: int, seconds: float, plain: Side, proxied: Side) -> None:
        stream = Stream(self.seed, partition, COLLECTIONS, _now, self.without)
        stream.serial = 1_000_000
        deadline = time.monotonic() + seconds
        numbers = itertools.count(1)
        for number, step in enumerate(_until(deadline, self._stop, iter(stream))):
            command = dict(step.command)
            if step.txn:
                command["txnNumber"] = Int64(next(numbers))
            for attempt in range(1 + step.repeats):
                expected = plain.answer(step, command)
                started = time.monotonic()
                answered = proxied.answer(step, command)
                self.tally.slowest = max(self.tally.slowest, time.monotonic() - started)
                self.tally.steps[step.kind] += 1
                for code in codes(expected[0]):
                    self.tally.errors[code] += 1
                what = differ(step.kind, step.ordered, expected, answered)
                if what is None and self.paranoid and step.kind in WRITES:
                    look = Step("look", {"find": collection_of(step), "filter": {"p": partition}})
                    after = [side.answer(look, look.command)[2] for side in (plain, proxied)]
                    expected, answered = (expected[0], [], after[0]), (answered[0], [], after[1])
                    what = differ("look", False, expected, answered)
                if what is not None:
                    place = f"seed {self.seed}, partition {partition}, step {number}, sending {attempt + 1}"
                    raise Mismatch(self._report(place, what, step, command, expected, answered))
        self._transactions(partition, seconds * TRANSACTION_SHARE, (plain, proxied), numbers)

    def _transactions(
        self, partition: int, seconds: float, sides: tuple[Side, Side], numbers: Iterator[int]
    ) -> None:
        stream = TransactionStream(self.seed, partition, COLLECTIONS, _now)
        stream.serial = 2_000_000
        plain, proxied = (Runner(side, numbers) for side in sides)
        deadline = time.monotonic() + seconds
        made = stream.transactions(self.seed)
        for number, transaction in enumerate(_until(deadline, self._stop, made)):
            started = time.monotonic()
            found = compare(transaction, plain, proxied, self.tally.steps)
            self.tally.slowest = max(self.tally.slowest, time.monotonic() - started)
            if found is None:
                continue
            what, at, expected, answered = found
            step = transaction.steps[min(at, len(transaction.steps) - 1)]
            place = f"seed {self.seed}, partition {partition}, transaction {number}, statement {at}"
            lines = [f"{place}: {what} differs ({step.kind}); {transaction.end}"]
            lines += [f"  {each.command}" for each in transaction.steps]
            lines += [f"plain:   {expected}", f"proxied: {answered}"]
            name = str(next(iter(step.command.values())))
            lines += [self._where(name, value) for value in step.touched]
            raise Mismatch("\n".join(lines))

    def _report(
        self,
        place: str,
        what: str,
        step: Step,
        command: Mapping[str, Any],
        expected: Any,
        answered: Any,
    ) -> str:
        lines = [f"{place}: {what} differs ({step.kind})", f"command:  {command}"]
        for name, answer in (("plain", expected), ("proxied", answered)):
            lines.append(
                f"{name + ':':9} {_readable(answer[0])} batches={answer[1]} documents={len(answer[2])}"
            )
        different = set(expected[2]) ^ set(answered[2])
        lines += [
            f"only {n}: {decode(d)}"
            for n, a in (("plain", expected), ("proxied", answered))
            for d in a[2]
            if d in different
        ]
        ids = list(step.touched) or [decode(raw).get("_id") for raw in different][:5]
        name = next(iter(command.values()))
        lines += [self._where(str(name), value) for value in ids if value is not None]
        lines.append(f"coverage: {self.thermocline.coverage(f'{DATABASE}.{name}')}")
        return "\n".join(lines)

    def _where(self, collection: str, value: Any) -> str:
        namespace = f"{DATABASE}.{collection}"
        with (
            self.oracle.client() as oracle,
            self.thermocline.fast.client() as fast,
            self.thermocline.archive.client() as archive,
        ):
            records = fast["thermocline"]["removed"].find({"_id.ns": namespace})
            record = [r for r in records if r["_id"]["id"] == value]
            return (
                f"_id {value!r}:\n  plain   {oracle[DATABASE][collection].find_one({'_id': value})}"
                f"\n  fast    {fast[DATABASE][collection].find_one({'_id': value})}"
                f"\n  record  {record}\n  archive {archive[DATABASE][collection].find_one({'_id': value})}"
            )

    def verify(self) -> int:
        """At rest: the archive byte for byte, the answers through the proxy, and F within A.

        Returns the number of documents. Raises :class:`Mismatch`.
        """
        self.thermocline.wait_applied()
        total = 0
        with (
            self.oracle.client() as oracle,
            self.thermocline.fast.client() as fast,
            self.thermocline.archive.client() as archive,
            self.thermocline.client() as proxied,
        ):
            for collection in COLLECTIONS:
                truth = _contents(oracle, collection.name)
                total += len(truth)
                held = _contents(archive, collection.name)
                self._same("the archive", collection.name, truth, held)
                self._same("the proxy", collection.name, truth, _contents(proxied, collection.name))
                part = _contents(fast, collection.name)
                self._same("the fast tier", collection.name, {k: held.get(k) for k in part}, part)
        return total

    def _same(
        self, what: str, collection: str, left: Mapping[Any, Any], right: Mapping[Any, Any]
    ) -> None:
        wrong = [key for key in {*left, *right} if left.get(key) != right.get(key)]
        if wrong:
            ids = [decode(key)["_id"] for key in wrong]
            places = "\n".join(self._where(collection, value) for value in ids[:5])
            raise Mismatch(
                f"seed {self.seed}: at rest {what} differs in {len(wrong)} documents of {collection}:\n{places}"
            )


def _contents(client: MongoClient[dict[str, Any]], collection: str) -> dict[bytes, bytes]:
    raw: Any = client[DATABASE].get_collection(collection, codec_options=RAW)
    return {encode({"_id": document["_id"]}): bytes(document.raw) for document in raw.find({})}


def _readable(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {k: decode(v) if isinstance(v, bytes) else v for k, v in reply.items()}


def collection_of(step: Step) -> str:
    """The collection that a step is about."""
    return str(next(iter(step.command.values())))


def _until(deadline: float, stop: threading.Event, steps: Iterator[Drawn]) -> Iterator[Drawn]:
    for step in steps:
        if time.monotonic() > deadline or stop.is_set():
            return
        yield step


def _now() -> dt.datetime:
    now = dt.datetime.now(dt.UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: one run on servers of its own, with logins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument(
        "--without", action="append", default=[], help="a kind of step to leave out"
    )
    parser.add_argument(
        "--paranoid", action="store_true", help="compare everything after each write"
    )
    parser.add_argument("--without-logins", action="store_true")
    options = parser.parse_args(arguments)
    keys = (None, None) if options.without_logins else (FAST_KEY, ARCHIVE_KEY)
    with ExitStack() as stack:
        fast = stack.enter_context(ReplicaSet("fast", keyfile=keys[0]))
        archive = stack.enter_context(ReplicaSet("archive", keyfile=keys[1]))
        oracle = stack.enter_context(ReplicaSet("plain"))
        if not options.without_logins:
            archive.push_clock(CLOCK_AHEAD_SECONDS)
        thermocline = Thermocline(fast, archive, POLICIES, environment=HASTE)
        run = Differential(
            oracle, thermocline, options.seed, options.streams, options.without, options.paranoid
        )
        run.prepare()
        with thermocline, thermocline.logs_on_failure():
            thermocline.wait_state("Active")
            print(f"seed {options.seed}: {run.run(options.seconds)}")
            print(f"{run.verify()} documents equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())

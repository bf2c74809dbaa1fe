"""One run: streams beside each other, changes meanwhile, and everything compared at the end."""

import contextlib
import datetime as dt
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from bson.int64 import Int64
from pymongo import MongoClient

from support.differential import data
from support.differential.answers import Answer, codes, differ
from support.differential.changes import Changes, policies
from support.differential.layout import SHARED, SHOP
from support.differential.report import Mismatch, Places
from support.differential.sides import Client, Side, Tally
from support.differential.step import Compared, Step
from support.differential.streams import Stream
from support.differential.transactions import Runner, TransactionStream, compare
from support.differential.watching import Watch
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

TRANSACTIONS: Final = 0.06
"""A transaction comes behind this share of the steps."""
LOOKS: Final = 0.02
"""Change streams are compared behind this share."""
WATCHED: Final = 2
"""Collections that each stream watches."""
SECOND_PROXY: Final = "proxy-2"
ENVIRONMENT: Final = {
    **HASTE,
    "THERMOCLINE_TEST_FEEDER_REQUEST_REST": "1",
    # A sixth of it is what a write has from its look-ups to F: a starved machine needs more than a second.
    "THERMOCLINE_TEST_ANNOUNCE_SECONDS": "12",
}
WRITES: Final = frozenset({"insert", "update", "delete", "findAndModify"})

PATIENT: Final = {"lease": "2s", "barrierTimeout": "60s"}
"""A starved machine takes longer than a short lease to renew it, and no command is sent without one: with half a
second, and the usual ten to wait for one, the first commands of a run met 262."""

Drawn = TypeVar("Drawn")


def make(fast: ReplicaSet, archive: ReplicaSet, streams: int) -> Thermocline:
    """All services, with a second proxy, on the policies of the start; not started."""
    thermocline = Thermocline(
        fast,
        archive,
        policies(streams),
        environment=ENVIRONMENT,
        spec={"proxy": PATIENT},
        roles=("readWriteAnyDatabase", "dbAdminAnyDatabase"),  # collMod, dropDatabase
    )
    thermocline.services[SECOND_PROXY] = thermocline.make_service("proxy", SECOND_PROXY)
    return thermocline


class Differential:
    """``streams`` application threads, each with its own partition of the data.

    ``without``: kinds of steps that are left out, and ``changes``; ``paranoid``: after each write, the whole
    partition is compared, so that the write that went wrong is found and not the read that notices it.
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
        self.places = Places(oracle, thermocline)
        self._stop = threading.Event()
        self._indexing = threading.Lock()
        self._failures: list[BaseException] = []
        self._switched: Callable[[str], tuple[int, bool]] = lambda namespace: (0, False)

    def prepare(self) -> None:
        """The same documents, cold and warm, in the plain mongod and in the archive."""
        data.prepare((self.oracle, self.thermocline.archive), self.seed, self.streams, _now())

    def run(self, seconds: float) -> Tally:
        """Run all streams for a while. Raises the first :class:`Mismatch` (or other error)."""
        threads = [
            threading.Thread(target=self._work, args=(partition, seconds), daemon=True)
            for partition in range(self.streams)
        ]
        with self.oracle.client() as plain, self.thermocline.client() as proxied:
            changes = Changes(
                self.thermocline,
                plain,
                proxied,
                self.seed,
                self.streams,
                self.tally,
                self._indexing,
            )
            self._switched = changes.switches
            if "changes" not in self.without:
                changes.start()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if "changes" not in self.without:
                changes.stop()
            if changes.failure is not None:
                self._failures.append(changes.failure)
        if self._failures:
            raise self._failures[0]
        return self.tally

    def _proxied(self, partition: int) -> Client:
        """One stream's commands go to either proxy, whichever comes: also those of one transaction or cursor."""
        if partition != 1:
            return self.thermocline.client()
        second = self.thermocline.services[SECOND_PROXY].listen
        uri = self.thermocline.uri().rstrip("/") + f",127.0.0.1:{second}/"
        return MongoClient(
            uri, tz_aware=True, uuidRepresentation="standard", localThresholdMS=1_000
        )

    def _work(self, partition: int, seconds: float) -> None:
        try:
            with self.oracle.client() as plain, self._proxied(partition) as proxied:
                self._steps(partition, seconds, Side(plain, None), Side(proxied, self.tally))
        except BaseException as error:  # noqa: BLE001 - handed to run()
            self._failures.append(error)
            self._stop.set()

    def _steps(self, partition: int, seconds: float, plain: Side, proxied: Side) -> None:
        stream = Stream(self.seed, partition, _now, self.without)
        stream.serial = 1_000_000
        other = TransactionStream(self.seed, partition, _now)
        other.serial = 2_000_000
        transactions = enumerate(other.transactions(self.seed))
        numbers = itertools.count(1)
        runners = (Runner(plain, numbers), Runner(proxied, numbers))
        chance = random.Random(f"{self.seed}/{partition}/between")
        watched = chance.sample(SHARED, WATCHED)
        clients = (plain.client, proxied.client)
        with contextlib.ExitStack() as stack:
            watches = {
                c.namespace: Watch(
                    c, partition, stream.ids, clients, self._switched, self.tally, chance
                )
                for c in watched
            }
            for watch in watches.values():
                stack.callback(watch.close)
            for number, step in enumerate(
                _until(time.monotonic() + seconds, self._stop, iter(stream))
            ):
                place = f"seed {self.seed}, partition {partition}, step {number}"
                # Two index builds on one collection at a time would answer by chance.
                alone = (
                    self._indexing if step.compared is Compared.CODES else contextlib.nullcontext()
                )
                with alone:
                    self._step(place, step, numbers, plain, proxied)
                if step.multi and step.namespace in watches:
                    watches[step.namespace].in_order = False
                if chance.random() < TRANSACTIONS and "transactions" not in self.without:
                    self._transaction(next(transactions), partition, runners, watches)
                if chance.random() < LOOKS:
                    self._look(place, watches)
            self._look(f"seed {self.seed}, partition {partition}, at the end", watches)

    def _look(self, place: str, watches: Mapping[str, Watch]) -> None:
        for namespace, watch in watches.items():
            found = watch.differ()
            if found is not None:
                raise Mismatch(f"{place}: change stream of {namespace}: {found}")

    def _step(
        self, place: str, step: Step, numbers: Iterator[int], plain: Side, proxied: Side
    ) -> None:
        command = dict(step.command)
        if step.txn:
            command["txnNumber"] = Int64(next(numbers))
        answered: Answer | None = None
        for attempt in range(1 + step.repeats):
            if attempt:
                time.sleep(step.pause)
            if step.limit is not None:  # if it is refused, nobody else is asked
                answered = self._ask(proxied, step, command)
                if step.limit.code in codes(answered[0]):
                    self.tally.refused[step.limit.name] += 1
                    return
            expected = plain.answer(step, step.on_plain or command)
            if step.limit is None:
                answered = self._ask(proxied, step, command)
            assert answered is not None
            self.tally.steps[step.kind] += 1
            for code in codes(expected[0]):
                self.tally.errors[code] += 1
            what = differ(step.compared, step.ordered, expected, answered)
            if what is None and self.paranoid and step.name in WRITES:
                look = Step("look", {"find": step.collection, "filter": {}}, database=step.database)
                if step.database == SHOP:
                    look.command["filter"] = {"p": int(place.split("partition ")[1].split(",")[0])}
                after = [side.answer(look, look.command)[2] for side in (plain, proxied)]
                expected, answered = (expected[0], [], after[0]), (answered[0], [], after[1])
                what = differ(look.compared, False, expected, answered)
            if what is not None:
                where = f"{place}, sending {attempt + 1} (last error of Thermocline: {proxied.last_error})"
                raise Mismatch(self.places.describe(where, what, step, command, expected, answered))

    def _ask(self, proxied: Side, step: Step, command: Mapping[str, Any]) -> Answer:
        started = time.monotonic()
        answered = proxied.answer(step, command)
        self.tally.took(time.monotonic() - started, step.kind)
        return answered

    def _transaction(
        self,
        numbered: tuple[int, Any],
        partition: int,
        runners: tuple[Runner, Runner],
        watches: Mapping[str, Watch],
    ) -> None:
        number, transaction = numbered
        for step in transaction.steps:
            if step.multi and step.namespace in watches:
                watches[step.namespace].in_order = False
        started = time.monotonic()
        found = compare(transaction, *runners, self.tally.steps)
        self.tally.took(time.monotonic() - started, "transaction")
        if found is None:
            return
        what, at, expected, answered = found
        step = transaction.steps[min(at, len(transaction.steps) - 1)]
        place = f"seed {self.seed}, partition {partition}, transaction {number}, statement {at}"
        lines = [f"{place}: {what} differs ({step.kind}); {transaction.end}"]
        lines.append(f"last error of Thermocline: {runners[1].side.last_error}")
        lines += [f"  {each.database} {each.command}" for each in transaction.steps]
        lines += [f"plain:   {expected}", f"proxied: {answered}"]
        lines += [self.places.where(step.namespace, value) for value in step.touched]
        lines += [self.places.standing(ns) for ns in {s.namespace for s in transaction.steps}]
        raise Mismatch("\n".join(lines))

    def verify(self) -> int:
        """At rest: the archive byte for byte, the answers through the proxy, and F within A.

        Returns the number of documents. Raises :class:`Mismatch`.
        """
        self.thermocline.wait_applied()
        return data.verify(self.oracle, self.thermocline, self.streams, self.places)


def _until(deadline: float, stop: threading.Event, steps: Iterator[Drawn]) -> Iterator[Drawn]:
    for step in steps:
        if time.monotonic() > deadline or stop.is_set():
            return
        yield step


def _now() -> dt.datetime:
    now = dt.datetime.now(dt.UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)

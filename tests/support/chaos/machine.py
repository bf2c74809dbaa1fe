"""One run of the machine: set up, load and break for a while, come to rest, judge."""

import datetime as dt
import os
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.chaos import checks, evictions, evidence
from support.chaos.checks import Span
from support.chaos.clients import DATABASE, Applications, Workload
from support.chaos.cluster import PROXIES, SERVICES, Cluster
from support.chaos.contents import decoded, judge_tiers, read_archive
from support.chaos.ddl import SCRATCH, Ddl
from support.chaos.histories import Attempt, Kind, Operation, Violation
from support.chaos.money import (
    ACCOUNTS,
    ACCOUNTS_HELD,
    BALANCE,
    COUNTED,
    COUNTERS,
    TRANSFERS,
    Bank,
    Counting,
)
from support.chaos.nemesis import Happened, Nemesis
from support.chaos.orders import ORDERS, Orders
from support.chaos.record import Record
from support.chaos.registers import LOCKS, REGISTERS, Keys, Locks, Registers, age
from support.chaos.schedule import Planned
from support.chaos.shop import AGED, KEYS, policies

SPAN: Final = 24.0
"""Documents are up to so many seconds old when they are written."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many clients of each kind; ``coroutines``: how many of them are asynchronous."""

    registers: int = 4
    locks: int = 2
    orders: int = 3
    counters: int = 2
    banks: int = 2
    coroutines: int = 6
    pause: float = 0.04


@dataclass(slots=True)
class Result:
    """What a run came to."""

    seed: int
    attempts: list[Attempt]
    faults: list[Happened]
    violations: list[Violation]
    keys: int = 0
    undecided: list[Hashable] = field(default_factory=list)
    evicted: int = 0
    copied: int = 0
    documents: int = 0
    load: float = 0.0


class Machine:
    """One run on a cluster that is up; :meth:`load` comes before the services start."""

    def __init__(self, cluster: Cluster, seed: int, size: Size, max_age: int) -> None:
        self.cluster = cluster
        self._max_age = max_age
        span = self._span = SPAN
        self.seed = seed
        self.size = size
        self.record = Record()
        self.register_keys, self.lock_keys = Keys(KEYS), Keys(40)
        self.registers = [
            Registers(self.record, self.register_keys, i, seed, span) for i in range(size.registers)
        ]
        self.locks = [Locks(self.record, self.lock_keys, i, seed, span) for i in range(size.locks)]
        self.orders = [Orders(self.record, i, seed, span) for i in range(size.orders)]
        self.counting = [Counting(self.record, i, seed) for i in range(size.counters)]
        self.banks = [Bank(self.record, i, seed, span) for i in range(size.banks)]
        self._dice = random.Random(f"{seed}/load")
        self.happened: list[Happened] = []
        self.load_average = 0.0
        """Processes that ran or wanted to, on average of five minutes, when the faults had ended."""

    def load(self) -> None:
        """Documents of all ages, straight into the archive."""
        with self.cluster.archive.client(w="majority") as client:
            database = client[DATABASE]
            for name in AGED:
                database[name].create_index("at")
                database[name].create_index("at2")
            database[LOCKS].create_index("k", unique=True)
            for name in SCRATCH:
                database.create_collection(name)
            initial = self.register_keys.initial
            documents = []
            for key in range(0, KEYS, 2):
                value = next(self.record.values)
                initial[key] = value
                documents.append(self.registers[0].document(key, value))
            database[REGISTERS].insert_many(documents)
            for orders in self.orders:
                database[ORDERS].insert_many(orders.load())
            database[COUNTERS].insert_many(
                [{"_id": i, "n": 0, **self._ages()} for i in range(COUNTED)]
            )
            database[ACCOUNTS].insert_many(
                [{"_id": i, "balance": BALANCE, **self._ages()} for i in range(ACCOUNTS_HELD)]
            )

    def _policies(self, detail: str) -> list[dict[str, Any]]:
        return policies(detail, self._max_age)

    def _ages(self) -> dict[str, Any]:
        at = age(self._dice, self._span)
        return {"at": at, "at2": at}

    def run(self, plan: Sequence[Planned], seconds: float) -> None:
        """Clients work while the plan is carried out; then everything is mended and comes to rest."""
        workloads: list[Workload] = [
            *self.registers, *self.orders, *self.counting, *self.banks, *self.locks,
        ]  # fmt: skip
        uris = [self.cluster.uri(first) for first in range(len(PROXIES))]
        applications = Applications(self.record, self.seed, self.size.pause)
        ddl = Ddl(self.record, uris[0], {"serverSelectionTimeoutMS": 30_000})
        nemesis = Nemesis(self.cluster, self.record.now, self._policies, ddl.order)
        self.happened = nemesis.happened
        began = self.record.now()
        shifted = [_shift(planned, began) for planned in plan]
        # One of each workload alike among threads and coroutines.
        random.Random(self.seed).shuffle(workloads)
        applications.start(uris, workloads, _settings, self.size.coroutines)
        ddl.start()
        nemesis.run(shifted, began + seconds, lambda: bool(applications.failures))
        self.load_average = os.getloadavg()[1]
        self.cluster.heal()
        try:
            applications.stop(300)
        finally:
            ddl.stop(300)

    def come_to_rest(self) -> None:
        """All namespaces active, everything replayed."""
        for label in SERVICES:
            self.cluster.services[label].wait_ready(240)
        thermocline = self.cluster.thermocline
        thermocline.wait_state("Active", timeout=300)
        # Services know each other by their names' first part.
        thermocline.wait_applied(300)

    def judge(self) -> Result:
        """All checks."""
        faults = [Span(h.began, h.began if h.ended is None else h.ended) for h in self.happened]
        violations = list(self.record.violations)
        patience = checks.patience(self.load_average, os.cpu_count() or 1)
        violations += checks.judge_errors(self.record.attempts, faults, patience)
        contents = read_archive(self.cluster)
        violations += judge_tiers(self.cluster, contents)
        readable = {
            name: [decoded(d) for d in documents.values()] for name, documents in contents.items()
        }
        found, keys, undecided = self._judge_registers(readable)
        violations += found
        violations += self._judge_workloads(readable)
        changes = evictions.read_fast(self.cluster.fast, [f"{DATABASE}.{name}" for name in AGED])
        positions = evictions.read_positions(self.cluster.archive)
        violations += evictions.judge_evictions(changes, positions)
        ages = {
            (f"{DATABASE}.{name}", repr(d["_id"]).encode()): d["at"].timestamp()
            for name in AGED
            for d in readable[name]
            if isinstance(d["at"], dt.datetime)
        }
        # The shortest that a change of policy makes of it.
        violations += evictions.judge_ages(changes, ages, self._max_age // 2)
        violations += evictions.judge_reports(self._evictor_reports())
        counted = evictions.count(changes)
        return Result(
            self.seed,
            self.record.attempts,
            self.happened,
            violations,
            keys,
            undecided,
            counted[evictions.Change.EVICTED],
            counted[evictions.Change.COPIED],
            sum(len(documents) for documents in contents.values()),
            self.load_average,
        )

    def unfinished(self, why: Violation) -> Result:
        """What is known of a run that couldn't be judged."""
        violations = [*self.record.violations, why]
        return Result(self.seed, self.record.attempts, self.happened, violations)

    def write_evidence(self, directory: Path, result: Result) -> None:
        """Of every register or lock whose history is wrong, all that is known."""
        operations = self.record.operations
        for name in (REGISTERS, LOCKS):
            ids = {
                v.key: _documents(v.key, operations)
                for v in result.violations
                if v.key is not None and isinstance(v.key, tuple) == (name == LOCKS)
            }
            if ids:
                namespace, epoch = f"{DATABASE}.{name}", self.record.epoch
                evidence.write(directory, self.cluster, namespace, ids, operations, epoch)

    def _judge_registers(
        self, found: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> tuple[list[Violation], int, list[Hashable]]:
        """Histories, each with a last read of what is in the archive now."""
        now = self.record.now()
        last: dict[Hashable, Any] = dict.fromkeys({o.key for o in self.record.operations})
        last |= dict.fromkeys(self.register_keys.initial)
        last |= {d["_id"]: d["v"] for d in found[REGISTERS]}
        last |= {("lock", d["k"]): d["_id"] for d in found[LOCKS]}
        reads = [
            Operation("the end", Kind.READ, key, None, value, now, now + 1)
            for key, value in last.items()
        ]
        return checks.judge_registers([*self.record.operations, *reads], self.register_keys.initial)

    def _judge_workloads(self, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Violation]:
        violations = []
        for orders in self.orders:
            mine = {d["_id"]: d for d in found[ORDERS] if d["p"] == orders.partition}
            wrong = orders.ledger.check(mine)
            if wrong:
                violations.append(
                    Violation("acknowledged writes stay", orders.name, tuple(wrong[:12]))
                )
        violations += checks.judge_counters(
            {d["_id"]: d for d in found[COUNTERS]},
            {c.field: c.acknowledged for c in self.counting},
            {c.field: c.doubtful for c in self.counting},
            [pair for c in self.counting for pair in c.returned],
        )
        violations += checks.judge_money(
            {d["_id"]: d["balance"] for d in found[ACCOUNTS]},
            {d["_id"]: d for d in found[TRANSFERS]},
            {number for bank in self.banks for number in bank.acknowledged},
            BALANCE,
        )
        return violations + checks.judge_unique(LOCKS, "k", found[LOCKS])

    def _evictor_reports(self) -> dict[str, Mapping[str, Any]]:
        reports: dict[str, Mapping[str, Any]] = {}
        for label, service in self.cluster.services.items():
            if service.name == "evictor" and service.process.running:
                shown = service.status().get("evictor", {}).get("namespaces", {})
                reports |= {f"{label} {name}": report for name, report in shown.items()}
        return reports


def _documents(key: Hashable, operations: Sequence[Operation]) -> set[Any]:
    """The ids of the documents that a key is about: its own, or those of all who wanted the lock."""
    if not isinstance(key, tuple):
        return {key}
    return {o.argument for o in operations if o.key == key}


def _shift(planned: Planned, began: float) -> Planned:
    return Planned(
        planned.at + began,
        planned.seconds,
        planned.fault,
        planned.target,
        planned.other,
        planned.detail,
    )


def _settings(number: int) -> Mapping[str, Any]:
    """Every other client gives up a silent socket, as many applications do; the others never do."""
    options: dict[str, Any] = {"serverSelectionTimeoutMS": 20_000}
    return {**options, "socketTimeoutMS": 8_000} if number % 2 else options

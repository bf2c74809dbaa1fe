"""One generator process: its share of the operations, in a closed or an open loop, every answer checked."""

import random
import select
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rig.documents import CHANGED_BYTES, Catalogue
from rig.histograms import Histogram
from rig.ledger import Ledger
from rig.schedule import Schedule
from rig.wire import Connection
from rig.workloads import WORKLOADS, Kind, Workload

DRAIN_SECONDS: Final = 5.0
MOST_TEXTS: Final = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement. ``rate`` in operations a second of all processes together; None: a closed loop.

    ``begin``: of the monotonic clock, the same for all processes. ``settle`` seconds come first and
    are left out of the histograms; the timeline has them.
    """

    port: int
    workload: str
    connections: int
    rate: float | None
    begin: float
    settle: float
    seconds: float
    seed: int

    @property
    def end(self) -> float:
        """When nothing is sent any more."""
        return self.begin + self.settle + self.seconds


@dataclass(slots=True)
class Outcome:
    """What one process saw."""

    histograms: dict[str, bytes] = field(default_factory=dict)
    """Encoded, by kind."""
    timeline: Counter[int] = field(default_factory=Counter)
    """Right answers by the second in which they came, from ``begin``."""
    within: Counter[str] = field(default_factory=Counter)
    """Right answers by kind that came in the time that counts."""
    written: int = 0
    """Writes that were answered, at any time."""
    failed: Counter[str] = field(default_factory=Counter)
    """Operations that were refused or lost, by what was said."""
    wrong: list[str] = field(default_factory=list)
    """Wrong answers, the first few."""
    wrong_count: int = 0
    unanswered: int = 0
    """Still without an answer at the end: recorded with the time that they have waited."""
    cpu: float = 0.0
    """Seconds of processor time that this process took."""


@dataclass(slots=True)
class Operation:
    """One that was sent: since when its latency counts, and what its answer must be."""

    kind: Kind
    number: int
    since: float
    least: int


class Generator:
    """Runs plans one after the other; what it wrote stays known from plan to plan."""

    def __init__(self, owner: int, owners: int, catalogue: Catalogue) -> None:
        self.owner = owner
        self.owners = owners
        self.catalogue = catalogue
        self.ledger = Ledger(owner, owners, catalogue.count)

    def run(self, plan: Plan) -> Outcome:
        """Carry out a plan. Raises ``OSError`` where nobody listens at its start."""
        return _Run(self, plan).go()


class _Run:
    def __init__(self, generator: Generator, plan: Plan) -> None:
        self.plan = plan
        self.workload: Workload = WORKLOADS[plan.workload]
        self.catalogue = generator.catalogue
        self.ledger = generator.ledger
        self.dice = random.Random(plan.seed * 1_000 + generator.owner)
        self.schedule = (
            Schedule(plan.rate, generator.owner, generator.owners) if plan.rate else None
        )
        self.turn = 0
        self.turns = self.schedule.until(plan.settle + plan.seconds) if self.schedule else 0
        self.histograms = {kind: Histogram() for kind in Kind}
        self.outcome = Outcome()
        self.poll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.busy: dict[int, Operation] = {}
        self.free: list[int] = []

    def go(self) -> Outcome:
        for _ in range(self.plan.connections):
            self._connect()
        time.sleep(max(0.0, self.plan.begin - time.monotonic()))
        before = time.process_time()
        for now in self._turns():
            self._send_due(now)
            self._receive(self._patience(now))
        self._close()
        self.outcome.cpu = time.process_time() - before
        self.outcome.histograms = {
            kind.value: of.encode() for kind, of in self.histograms.items() if of.count
        }
        return self.outcome

    def _turns(self) -> Iterator[float]:
        """Until all is answered, or for a while after the end."""
        while True:
            now = time.monotonic()
            if now >= self.plan.end and not self.busy and self.turn >= self.turns:
                return
            if now >= self.plan.end + DRAIN_SECONDS:
                return
            yield now

    def _patience(self, now: float) -> float:
        """How long to wait for answers: until the next operation is due, or the end."""
        if self.schedule and self.free and self.turn < self.turns:
            return min(0.5, max(0.0, self.plan.begin + self.schedule.due(self.turn) - now))
        return 0.5

    def _connect(self) -> None:
        connection = Connection(self.plan.port)
        descriptor = connection.socket.fileno()
        self.connections[descriptor] = connection
        self.poll.register(descriptor, select.EPOLLIN)
        self.free.append(descriptor)

    def _send_due(self, now: float) -> None:
        if self.schedule is None:
            while self.free and now < self.plan.end:
                self._send(self.free.pop(), now)
            return
        while self.free and self.turn < self.turns:
            due = self.plan.begin + self.schedule.due(self.turn)
            if due > now:
                return
            self.turn += 1
            self._send(self.free.pop(), due)

    def _send(self, descriptor: int, since: float) -> None:
        connection = self.connections[descriptor]
        kind = self.workload.kind(self.dice)
        if kind is Kind.INSERT:
            number = self.ledger.next_insert()
        else:
            number = self.ledger.own(self.workload.keys.pick(self.dice, self.ledger.top))
        operation = Operation(kind, number, since, self.ledger.least(number))
        self.busy[descriptor] = operation
        try:
            if kind is Kind.READ:
                connection.find(number)
            elif kind is Kind.UPDATE:
                self.ledger.update_sent(number)
                start = self.dice.randrange(len(self.catalogue.block) - CHANGED_BYTES)
                connection.update(number, self.catalogue.block[start : start + CHANGED_BYTES])
            else:
                connection.insert(self.catalogue.document(number, self.catalogue.now))
        except OSError as error:
            self._lost(descriptor, error)

    def _receive(self, patience: float) -> None:
        for descriptor, _ in self.poll.poll(patience):
            connection = self.connections.get(descriptor)
            if connection is None:
                continue
            try:
                reply = connection.receive()
            except OSError as error:
                self._lost(descriptor, error)
                continue
            if reply is None:
                continue
            now = time.monotonic()
            operation = self.busy.pop(descriptor)
            self.free.append(descriptor)
            self._judge(operation, reply, now)
            if self.schedule is None and now < self.plan.end:
                self._send(self.free.pop(), now)

    def _judge(self, operation: Operation, reply: dict[str, Any], now: float) -> None:
        failure = refusal(reply)
        if failure is not None:
            self.outcome.failed[failure] += 1
            return
        fault = self._fault(operation, reply)
        if fault is not None:
            self.outcome.wrong_count += 1
            if len(self.outcome.wrong) < MOST_TEXTS:
                self.outcome.wrong.append(f"{operation.kind}: {fault}")
            return
        self._count(operation, now)

    def _fault(self, operation: Operation, reply: dict[str, Any]) -> str | None:
        number = operation.number
        if operation.kind is Kind.READ:
            batch = reply["cursor"]["firstBatch"]
            found = batch[0] if batch else None
            return self.catalogue.fault(found, number, operation.least, self.ledger.most(number))
        if reply.get("n") != 1:
            return f"{number}: n is {reply.get('n')}"
        if operation.kind is Kind.UPDATE:
            self.ledger.update_acknowledged(number)
        else:
            self.ledger.insert_acknowledged(number)
        return None

    def _count(self, operation: Operation, now: float) -> None:
        self.outcome.timeline[int(now - self.plan.begin)] += 1
        self.outcome.written += operation.kind is not Kind.READ
        counts_from = self.plan.begin + self.plan.settle
        if counts_from <= now < self.plan.end:
            self.outcome.within[operation.kind.value] += 1
        if operation.since >= counts_from:
            self.histograms[operation.kind].record(now - operation.since)

    def _lost(self, descriptor: int, error: OSError) -> None:
        """A connection broke: its operation failed, another connection takes its place."""
        self.outcome.failed[f"connection: {type(error).__name__}"] += 1
        self.busy.pop(descriptor, None)
        self.poll.unregister(descriptor)
        self.connections.pop(descriptor).close()
        if time.monotonic() < self.plan.end:
            self._connect()

    def _close(self) -> None:
        """What has no answer by now is recorded with what it has waited: leaving it out would flatter."""
        now = time.monotonic()
        for operation in self.busy.values():
            self.outcome.unanswered += 1
            self.histograms[operation.kind].record(now - operation.since)
        while self.schedule and self.turn < self.turns:
            self.outcome.unanswered += 1
            since = self.plan.begin + self.schedule.due(self.turn)
            self.histograms[self.workload.kind(self.dice)].record(now - since)
            self.turn += 1
        for connection in self.connections.values():
            connection.close()
        self.poll.close()


def refusal(reply: dict[str, Any]) -> str | None:
    """What a server refused, by its code's name; None where it did what it was asked."""
    if reply.get("ok") != 1:
        return str(reply.get("codeName") or reply.get("errmsg") or "not ok")[:80]
    if reply.get("writeErrors"):
        return f"write error {reply['writeErrors'][0].get('code')}"
    if reply.get("writeConcernError"):
        return f"write concern: {reply['writeConcernError'].get('codeName')}"
    return None

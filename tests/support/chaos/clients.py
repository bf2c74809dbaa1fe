"""Applications: unchanged PyMongo, in threads and in coroutines, that run the same workloads.

A workload's step is a generator: it yields calls of the driver and is sent their results (awaited,
where the driver is asynchronous), or the errors. So each is written once.
"""

import asyncio
import inspect
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.errors import PyMongoError
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)
from pymongo.read_concern import ReadConcern

from support.chaos.histories import Outcome
from support.chaos.record import Record

DATABASE = "shop"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the driver. ``what`` names it in reports."""

    what: str
    run: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements in one transaction, repeated as a whole as ``with_transaction`` does."""

    what: str
    script: Callable[[Any], "Script"]


Script = Generator[Call | Transaction, Any, Any]


class Trail(CommandListener):
    """Which proxies a client's commands went to, and how: ``127.0.0.1:1234 update, ...``."""

    def __init__(self) -> None:
        self._steps: deque[str] = deque(maxlen=40)

    def started(self, event: CommandStartedEvent) -> None:
        """A command is sent."""
        number = event.command.get("txnNumber")
        session = event.command.get("lsid", {}).get("id")
        tail = "" if number is None else f" #{number}/{bytes(session or b'')[-2:].hex()}"
        self._steps.append(f"{event.connection_id[1]}{tail}")

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """It was answered."""
        again = " again" if event.reply.get("retriedStmtIds") else ""
        self._steps.append(f"ok{again}")

    def failed(self, event: CommandFailedEvent) -> None:
        """It wasn't, or with an error."""
        failure = event.failure
        self._steps.append(f"failed {failure.get('code', failure.get('errmsg', '?'))}")

    def begin(self) -> None:
        """Forget what was."""
        self._steps.clear()

    @property
    def repeated(self) -> bool:
        """Whether the driver sent a command again after an attempt that was never answered."""
        return any(step.startswith("failed") for step in self._steps)

    def __str__(self) -> str:
        return f"[{' '.join(self._steps)}]"


@dataclass(frozen=True, slots=True)
class Desk:
    """What a workload works with: the collections at level majority, and a causally consistent session."""

    client: Any
    session: Any
    trail: Trail

    def collection(self, name: str, level: str = "majority") -> Any:
        """Writes with ``w: majority``; reads at ``level``."""
        return self.client[DATABASE].get_collection(
            name, write_concern=WriteConcern("majority"), read_concern=ReadConcern(level)
        )


class Workload(Protocol):
    """What one client does over and over."""

    name: str

    def step(self, desk: Desk) -> Script:
        """One operation, or a few that belong together."""
        ...


class Applications:
    """All clients of a run. ``settings``: of PyMongo, by client."""

    def __init__(self, record: Record, seed: int, pause: float = 0.03) -> None:
        self.record = record
        self.pause = pause
        self.failures: list[BaseException] = []
        self._seed = seed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(
        self,
        uris: Sequence[str],
        workloads: Sequence[Workload],
        settings: Callable[[int], Mapping[str, Any]],
        coroutines: int,
    ) -> None:
        """Each workload is a client of its own; the last ``coroutines`` share an event loop."""
        first = len(workloads) - coroutines
        for number, workload in enumerate(workloads[:first]):
            arguments = (uris[number % len(uris)], workload, settings(number))
            self._threads.append(threading.Thread(target=self._guard, args=(self._run, *arguments)))
        if coroutines:
            jobs = [
                (uris[number % len(uris)], workload, settings(number))
                for number, workload in enumerate(workloads[first:], first)
            ]
            self._threads.append(
                threading.Thread(target=self._guard, args=(self._run_coroutines, jobs))
            )
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def stop(self, timeout: float) -> None:
        """Let every client end its step. Raises what one of them raised."""
        self._over.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        if self.failures:
            raise self.failures[0]
        if any(thread.is_alive() for thread in self._threads):
            self.record.violate("clients end", "some hang", [f"not within {timeout} s"])

    def _guard(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - handed to stop()
            self.failures.append(error)

    def _pause(self, dice: random.Random, failed: bool) -> float:
        return 0.4 if failed else dice.expovariate(1 / self.pause)

    def _run(self, uri: str, workload: Workload, options: Mapping[str, Any]) -> None:
        dice = random.Random(f"{self._seed}/{workload.name}")
        trail = Trail()
        client: MongoClient[dict[str, Any]] = MongoClient(
            uri, tz_aware=True, event_listeners=[trail], **options
        )
        with client, client.start_session() as session:
            desk = Desk(client, session, trail)
            while not self._over.is_set():
                failed = self._drive(workload, workload.step(desk), desk)
                self._over.wait(self._pause(dice, failed))

    def _drive(self, workload: Workload, script: Script, desk: Desk) -> bool:
        """Run a step; whether anything in it failed."""
        failed = False
        answer: Any = None
        error: PyMongoError | None = None
        while True:
            try:
                request = script.send(answer) if error is None else script.throw(error)
            except StopIteration:
                return failed
            began, answer, error = self.record.now(), None, None
            try:
                if isinstance(request, Call):
                    answer = request.run()
                else:
                    with desk.client.start_session() as session:
                        answer = session.with_transaction(_synchronous(request.script), **LEVELS)
            except PyMongoError as problem:
                error = problem
            failed |= self._note(workload, request, began, error)

    def _note(
        self, workload: Workload, request: Call | Transaction, began: float, error: Any
    ) -> bool:
        return self.record.note(workload.name, request.what, began, error) is not Outcome.DONE

    def _run_coroutines(self, jobs: Sequence[tuple[str, Workload, Mapping[str, Any]]]) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self._coroutine(*job) for job in jobs))

        asyncio.run(all_of_them())

    async def _coroutine(self, uri: str, workload: Workload, options: Mapping[str, Any]) -> None:
        dice = random.Random(f"{self._seed}/{workload.name}")
        trail = Trail()
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            uri, tz_aware=True, event_listeners=[trail], **options
        )
        async with client, client.start_session() as session:
            desk = Desk(client, session, trail)
            while not self._over.is_set():
                failed = await self._drive_coroutine(workload, workload.step(desk), desk)
                await asyncio.sleep(self._pause(dice, failed))

    async def _drive_coroutine(self, workload: Workload, script: Script, desk: Desk) -> bool:
        failed = False
        answer: Any = None
        error: PyMongoError | None = None
        while True:
            try:
                request = script.send(answer) if error is None else script.throw(error)
            except StopIteration:
                return failed
            began, answer, error = self.record.now(), None, None
            try:
                if isinstance(request, Call):
                    answer = request.run()
                    if inspect.isawaitable(answer):
                        answer = await answer
                else:
                    async with desk.client.start_session() as session:
                        answer = await session.with_transaction(
                            _asynchronous(request.script), **LEVELS
                        )
            except PyMongoError as problem:
                error = problem
            failed |= self._note(workload, request, began, error)


LEVELS: Mapping[str, Any] = {
    "read_concern": ReadConcern("snapshot"),
    "write_concern": WriteConcern("majority"),
    "read_preference": ReadPreference.PRIMARY,
}


def _synchronous(script: Callable[[Any], Script]) -> Callable[[Any], Any]:
    """A callback of ``with_transaction`` that runs the script; errors go to the driver, as they should."""

    def callback(session: Any) -> Any:
        statements = script(session)
        answer: Any = None
        while True:
            try:
                request = statements.send(answer)
            except StopIteration as end:
                return end.value
            assert isinstance(request, Call)
            answer = request.run()

    return callback


def _asynchronous(script: Callable[[Any], Script]) -> Callable[[Any], Any]:
    async def callback(session: Any) -> Any:
        statements = script(session)
        answer: Any = None
        while True:
            try:
                request = statements.send(answer)
            except StopIteration as end:
                return end.value
            assert isinstance(request, Call)
            answer = await request.run()

    return callback

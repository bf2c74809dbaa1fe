"""The proxy's barrier, shared by all queries that wait: until the archive holds what F acknowledged.

One marker is written at a time; queries that arrive meanwhile share the next, because a marker
that was already on its way may be older than what they must see. One poller watches the
feeder's checkpoint for all of them.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from thermocline_common.barrier import (
    FIRST_POLL_SECONDS,
    LONGEST_POLL_SECONDS,
    Reached,
    checkpoint_reached,
    write_marker,
)
from thermocline_common.errors import Code, CommandError
from thermocline_common.tiers import Tiers
from thermocline_proxy.routing.at_snapshot import quarantined

AGAIN_SECONDS = 0.5
"""Before another try at a tier that couldn't be reached, for whoever is patient."""


class SharedBarrier:
    """``timeout``: seconds that a query waits at most (``proxy.barrierTimeout``), then 262.

    ``problem``: what kept the last query from passing, None since one passed; shown in status.
    """

    def __init__(
        self, tiers: Tiers, proxy_id: uuid.UUID, clock: Callable[[], float], timeout: float
    ) -> None:
        self.timeout = timeout
        self.problem: str | None = None
        self._tiers = tiers
        self._marker_id = f"barrier:{proxy_id}"
        self._clock = clock
        self._writing: asyncio.Task[Timestamp] | None = None
        self._next: asyncio.Task[Timestamp] | None = None
        self._waiting: list[tuple[Timestamp, asyncio.Future[Reached]]] = []
        self._poller: asyncio.Task[None] | None = None

    async def passed(
        self,
        deadline: float | None,
        *,
        patience: float | None = None,
        whole: Collection[str] = (),
    ) -> Timestamp:
        """Wait until A holds every write that F had acknowledged when this was called.

        Returns the time of A to read at (``afterClusterTime``, level ``majority``). ``deadline``:
        monotonic seconds. ``patience``: seconds instead of ``timeout``, for what no driver would send
        again; then the deadline alone limits, where there is one, and a tier that can't be reached is
        waited for as well. ``whole``: namespaces of which A must have every document: a quarantine that
        began a moment ago counts, though no lease tells of it yet. Raises ``CommandError``: 50 at the
        deadline, 262 after ``timeout`` (or ``patience``) or where a tier can't be reached, 96 where A
        lacks documents of a namespace in ``whole``.
        """
        limit = self.timeout if patience is None else max(patience, self.timeout)
        seconds = limit
        if deadline is not None:
            left = deadline - self._clock()
            seconds = min(limit, left) if patience is None else left
            if seconds <= 0:
                raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit")
        try:
            async with asyncio.timeout(seconds):
                reached = await self._passed(patient=patience is not None)
        except TimeoutError:
            self.problem = f"the archive didn't catch up with the fast tier within {seconds:.1f} s"
            if deadline is not None and (patience is not None or seconds < limit):
                raise CommandError(
                    Code.MaxTimeMSExpired, "operation exceeded time limit waiting for the archive"
                ) from None
            raise CommandError(Code.ExceededTimeLimit, self.problem) from None
        except PyMongoError as error:
            self.problem = f"the barrier failed: {error}"
            raise CommandError(Code.ExceededTimeLimit, self.problem) from error
        self.problem = None
        for namespace in sorted(reached.lacking.intersection(whole)):
            refused = quarantined(namespace)
            raise CommandError(refused.code, refused.message)
        return reached.archive_time

    async def _passed(self, *, patient: bool) -> Reached:
        while True:
            try:
                return await self._reached(await self._marker())
            except (PyMongoError, TimeoutError) as error:
                if not patient:
                    raise
                self.problem = f"the barrier failed: {error}"
                await asyncio.sleep(AGAIN_SECONDS)

    async def close(self) -> None:
        """Stop waiting; queries that still wait are cancelled."""
        tasks = [task for task in (self._poller, self._next, self._writing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _marker(self) -> Timestamp:
        if self._writing is None:
            self._writing = self._start(self._write())
            return await asyncio.shield(self._writing)
        if self._next is None:
            self._next = self._start(self._write_after(self._writing))
        return await asyncio.shield(self._next)

    def _start(self, work: Coroutine[Any, Any, Timestamp]) -> asyncio.Task[Timestamp]:
        task = asyncio.create_task(work)
        # Every waiter may have left before it fails: then nobody else reads the exception.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _write(self) -> Timestamp:
        try:
            async with asyncio.timeout(self.timeout):
                return await write_marker(self._tiers, self._marker_id)
        finally:
            self._writing, self._next = self._next, None

    async def _write_after(self, running: asyncio.Task[Timestamp]) -> Timestamp:
        await asyncio.wait((running,))
        return await self._write()

    async def _reached(self, target: Timestamp) -> Reached:
        future: asyncio.Future[Reached] = asyncio.get_running_loop().create_future()
        self._waiting.append((target, future))
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        return await future

    async def _poll(self) -> None:
        poll = FIRST_POLL_SECONDS
        while self._waiting:
            count = len(self._waiting)
            try:
                self._settle(await checkpoint_reached(self._tiers))
            except PyMongoError as error:
                # An election ends; whoever can't wait that long leaves at its own limit.
                self.problem = f"the archive's checkpoint can't be read: {error}"
                self._settle(None)
                poll = LONGEST_POLL_SECONDS
            if len(self._waiting) > count:
                poll = FIRST_POLL_SECONDS
            if self._waiting:
                await asyncio.sleep(poll)
                poll = min(poll * 1.5, LONGEST_POLL_SECONDS)

    def _settle(self, reached: Reached | None) -> None:
        """Let go everyone whose marker is at or before ``reached``, and drop who has left."""
        left = []
        for target, future in self._waiting:
            if future.done():
                continue
            if reached is None or reached.time is None or reached.time < target:
                left.append((target, future))
            else:
                future.set_result(reached)
        self._waiting = left

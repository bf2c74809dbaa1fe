"""Reads of the archive such as applications do, beside background work and without it."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable
from typing import Final, TypeVar

from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from thermocline_common.clock import Clock, monotonic
from thermocline_common.id_range import between
from thermocline_common.ids import DocId, wrap
from thermocline_common.pacing import Cost, Throttle
from thermocline_common.raw_reads import Client, run_raw

PROBE_SECONDS: Final = 0.2
"""Between two reads of a kind: few enough to be no load themselves."""
LONGEST_PROBE_MS: Final = 5_000
ENDS_SECONDS: Final = 60.0
STARTED_SECONDS: Final = 0.002
"""The work has reached the archive by then."""

T = TypeVar("T")


class ArchiveProbe:
    """Measures what our work costs others, and keeps the throttle that follows from it.

    A probe reads one document at random: what we worked with ourselves is in the cache.
    """

    def __init__(self, archive: Client, clock: Clock = monotonic) -> None:
        self._archive = archive
        self._clock = clock
        self._last = {True: float("-inf"), False: float("-inf")}
        self._known: dict[str, tuple[float, DocId, DocId]] = {}
        self.cost = Cost()
        self.throttle = Throttle()

    async def beside(self, namespace: str, work: Awaitable[T]) -> T:
        """``work``'s result; meanwhile a read is timed, now and then."""
        if not self._due(beside=True):
            return await work
        probe = asyncio.create_task(self._probe(namespace))
        task = asyncio.ensure_future(work)
        try:
            result = await task
            if not probe.done():
                # It began beside the work; what is left of it is still the work's doing.
                await asyncio.wait({probe}, timeout=LONGEST_PROBE_MS / 1_000)
            if probe.done():
                self._saw_beside(probe.result())
            return result
        finally:
            for one in (probe, task):
                one.cancel()
            await asyncio.gather(probe, task, return_exceptions=True)

    async def sample(self, namespace: str) -> None:
        """Time a read beside work that goes on elsewhere in this process."""
        if self._due(beside=True):
            self._saw_beside(await self._probe(namespace, started=True))

    def _saw_beside(self, seconds: float | None) -> None:
        if seconds is not None:
            self.cost = self.cost.saw_beside(seconds)
            self.throttle = self.throttle.adjusted(self.cost.strain)

    async def alone(self, namespace: str) -> None:
        """Time a read while we rest, now and then."""
        if self._due(beside=False):
            seconds = await self._probe(namespace, started=True)
            if seconds is not None:
                self.cost = self.cost.saw_alone(seconds)

    def _due(self, *, beside: bool) -> bool:
        now = self._clock()
        if now - self._last[beside] < PROBE_SECONDS:
            return False
        self._last[beside] = now
        return True

    async def _probe(self, namespace: str, *, started: bool = False) -> float | None:
        """Seconds of one read, as the server counts them; None where it failed.

        Our own process's work would count, too, if the clock were ours.
        """
        if not started:
            await asyncio.sleep(STARTED_SECONDS)
        with contextlib.suppress(PyMongoError, KeyError, IndexError):
            database, collection = namespace.split(".", 1)
            low, high = await self._ends(namespace)
            chosen = between(low, high, random.random())  # noqa: S311
            find = {
                "find": collection,
                "filter": {"_id": RawBSONDocument(wrap(chosen.element(b"$gte")))},
                "sort": {"_id": 1},
                "limit": 1,
                "hint": "_id_",
                "maxTimeMS": LONGEST_PROBE_MS,
            }
            explain = {"explain": find, "verbosity": "executionStats"}
            reply = await run_raw(self._archive, database, explain)
            statistics = reply["executionStats"]
            if statistics["nReturned"]:
                return float(statistics["executionTimeMillis"]) / 1_000
        return None

    async def _ends(self, namespace: str) -> tuple[DocId, DocId]:
        """The lowest and the highest ``_id``, as they were lately. Raises ``IndexError`` of nothing."""
        known = self._known.get(namespace)
        if known is None or self._clock() - known[0] > ENDS_SECONDS:
            database, collection = namespace.split(".", 1)
            ends = []
            for order in (1, -1):
                find = {
                    "find": collection,
                    "projection": {"_id": 1},
                    "sort": {"_id": order},
                    "limit": 1,
                    "singleBatch": True,
                    "maxTimeMS": LONGEST_PROBE_MS,
                }
                reply = await run_raw(self._archive, database, find)
                ends.append(DocId.of_document(bytes(reply["cursor"]["firstBatch"][0].raw)))
            known = self._known[namespace] = (self._clock(), ends[0], ends[1])
        return known[1], known[2]

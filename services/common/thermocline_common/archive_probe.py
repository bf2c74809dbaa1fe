"""Reads of the archive such as applications do, beside background work and without it."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable
from typing import Final, TypeVar

from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from thermocline_common.clock import Clock, monotonic
from thermocline_common.ids import DocId, wrap
from thermocline_common.pacing import CAREFUL, PROBE_SECONDS, Courtesy, Throttle
from thermocline_common.random_ids import LONGEST_READ_MS, RandomIds
from thermocline_common.raw_reads import Client, run_raw

SETTLED_SECONDS: Final = 0.3
"""What we did so long ago holds nobody up: disks count what they allow in pieces of up to a tenth of a second."""
UNSETTLED_SECONDS: Final = 3.0
"""How long work goes on without a read that it doesn't touch."""
LONGEST_SETTLING: Final = SETTLED_SECONDS + 4 * PROBE_SECONDS
WATCHED_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 30.0

T = TypeVar("T")


class ArchiveProbe:
    """Measures what our work costs others, and keeps the throttle that follows from it.

    While there is work now and then, it reads one document at random (of each kind of ``_id``, the slowest
    counts) at moments that nothing but chance chooses: what a disk has lent to work is missing a little
    later. What we worked with ourselves is in the cache.
    """

    def __init__(
        self, archive: Client, clock: Clock = monotonic, throttle: Throttle = CAREFUL
    ) -> None:
        self._archive = archive
        self._clock = clock
        self._ids = RandomIds(archive, clock)
        self._namespace = ""
        self._working = 0
        self._worked = clock()
        self._quiet = clock()
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.courtesy = Courtesy.beginning(throttle)

    @property
    def throttle(self) -> Throttle:
        """How long to rest, and how much to take at once."""
        return self.courtesy.throttle

    async def beside(self, namespace: str, work: Awaitable[T], documents: int = 0) -> T:
        """``work``'s result; meanwhile, and for a while after it, reads are timed now and then.

        ``documents`` that it is about: what they take is learned from, too.
        """
        if self._clock() - self._worked > IDLE_SECONDS:
            self.courtesy = self.courtesy.after_idling()
        self._working += 1
        self.works(namespace)
        began = self._clock()
        try:
            result = await work
        finally:
            self._working -= 1
            self._worked = self._clock()
        if documents:
            took = self._worked - began
            self.courtesy = self.courtesy.saw_piece(documents, took, self._worked)
        return result

    def works(self, namespace: str) -> None:
        """Some work on this namespace goes on, elsewhere in this process."""
        self._namespace = namespace
        self._worked = self._clock()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    async def settle(self) -> None:
        """Rest until a read was timed that our work didn't touch, if there was none for long."""
        if self._clock() - self._quiet > UNSETTLED_SECONDS:
            self._settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_SETTLING):
                    await self._settled.wait()

    async def look(self, namespace: str) -> None:
        """Time a read, and learn from it."""
        worked = self._worked
        quiet = self._is_quiet()
        seconds = await self._probe(namespace)
        if seconds is None:
            return
        if not quiet:
            self.courtesy = self.courtesy.saw_beside(seconds)
        elif self._worked == worked and not self._working:
            self.courtesy = self.courtesy.saw_alone(seconds)
            self._quiet = self._clock()
            self._settled.set()

    def _is_quiet(self) -> bool:
        return not self._working and self._clock() - self._worked > SETTLED_SECONDS

    async def _watch(self) -> None:
        while self._working or self._clock() - self._worked < WATCHED_SECONDS:
            await asyncio.sleep(2 * PROBE_SECONDS * random.random())  # noqa: S311
            await self.look(self._namespace)

    async def _probe(self, namespace: str) -> float | None:
        """Seconds of one read, as the server counts them; None where it failed.

        Our own process's work would count, too, if the clock were ours.
        """
        with contextlib.suppress(PyMongoError, KeyError):
            reads = [self._read(namespace, i) for i in await self._ids.choose(namespace)]
            found = [seconds for seconds in await asyncio.gather(*reads) if seconds is not None]
            return max(found, default=None)
        return None

    async def _read(self, namespace: str, chosen: DocId) -> float | None:
        database, collection = namespace.split(".", 1)
        find = {
            "find": collection,
            "filter": {"_id": RawBSONDocument(wrap(chosen.element(b"$gte")))},
            "sort": {"_id": 1},
            "limit": 1,
            "hint": "_id_",
            "maxTimeMS": LONGEST_READ_MS,
        }
        reply = await run_raw(
            self._archive, database, {"explain": find, "verbosity": "executionStats"}
        )
        statistics = reply["executionStats"]
        if not statistics["nReturned"]:
            return None
        return float(statistics["executionTimeMillis"]) / 1_000

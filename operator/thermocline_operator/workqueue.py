"""One worker for each key: turns of one resource never overlap, and one that fails holds up no other."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from thermocline_common.clock import monotonic

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a resource."""

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
AT_ONCE: Final = 16
"""Turns at one time."""


@dataclass(frozen=True, slots=True)
class Again:
    """When the next turn is due by itself, in seconds."""

    after: float


Turn = Callable[[Key, bool], Awaitable[Again | None]]
"""One turn; the second argument says whether something has happened. None: forget the key."""


@dataclass(slots=True)
class _Worker:
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    began: float | None = None
    failures: int = 0


class WorkQueue:
    """``turn`` is called for every key that was added, again at its time, and again when there is news."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._workers: dict[Key, _Worker] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    @property
    def keys(self) -> list[Key]:
        """Every key that is worked on."""
        return sorted(self._workers)

    @property
    def longest_turn(self) -> float:
        """Seconds that the longest running turn takes already."""
        now = monotonic()
        return max(
            (now - w.began for w in self._workers.values() if w.began is not None), default=0
        )

    def failures(self, key: Key) -> int:
        """How often the key's turns failed in a row."""
        worker = self._workers.get(key)
        return 0 if worker is None else worker.failures

    def add(self, key: Key) -> None:
        """Something has happened to ``key``; many calls before its turn make one turn."""
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = _Worker()
            worker.task = asyncio.create_task(self._work(key, worker), name=f"turns of {key}")
        worker.news.set()

    async def close(self) -> None:
        """End every worker; a turn in hand is given up."""
        tasks = [w.task for w in self._workers.values() if w.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: Key, worker: _Worker) -> None:
        wait: float | None = None
        while True:
            news = worker.news.is_set()
            if not news and wait is not None:
                try:
                    async with asyncio.timeout(wait):
                        await worker.news.wait()
                        news = True
                except TimeoutError:
                    news = False
            worker.news.clear()
            try:
                async with self._slots:
                    worker.began = monotonic()
                    again = await self._turn(key, news)
            except Exception as error:
                worker.failures += 1
                wait = pause(worker.failures)
                text = f"{type(error).__name__}: {error}"
                known = worker.failures > 1
                log.log(
                    logging.INFO if known else logging.WARNING,
                    "a turn failed and is tried again: %s",
                    text,
                    extra={"resource": "/".join(key), "seconds": round(wait, 1)},
                    exc_info=None if _ordinary(error) else error,
                )
                # News within the pause doesn't shorten it: a server that refuses would be flooded.
                worker.began = None
                await asyncio.sleep(wait)
                wait = 0.0
                continue
            finally:
                worker.began = None
            worker.failures = 0
            if again is None:
                if not worker.news.is_set():
                    self._workers.pop(key, None)
                    return
                wait = None
            else:
                wait = again.after


def _ordinary(error: Exception) -> bool:
    """An error that says all itself, without a stack."""
    return hasattr(error, "retry_after")


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row, with jitter."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.75, 1.25)  # noqa: S311 (jitter)

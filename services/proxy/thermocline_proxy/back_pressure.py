"""Slows writers down while replay is far behind: before F's oplog ends, and so that everybody sees it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from thermocline_common.errors import Code, CommandError
from thermocline_common.health import Problems
from thermocline_common.logs import redact
from thermocline_common.oplog_window import (
    Brake,
    Look,
    Window,
    brake_for,
    delay_seconds,
    describe,
)

LOOK_SECONDS: Final = 1.0
NEAR_LOOK_SECONDS: Final = 0.25
"""Between two looks while writers wait."""
LONGEST_LOOK_SECONDS: Final = 5.0
PROBLEM: Final = "window"


class BackPressure:
    """What writers wait for. ``look``, ``window``: see :class:`~thermocline_common.oplog.OplogMeter`;
    ``checkpoint``: the feeder's, from the archive; ``wanted``: whether anything is tiered at all.

    A failed look changes nothing: while F or A can't be reached, tiered writes fail anyway.
    """

    def __init__(
        self,
        *,
        look: Callable[[], Awaitable[Look]],
        window: Callable[[Look, Timestamp], Window],
        checkpoint: Callable[[], Awaitable[Timestamp | None]],
        wanted: Callable[[], bool],
        problems: Problems,
        clock: Callable[[], float],
    ) -> None:
        self._look = look
        self._window = window
        self._checkpoint = checkpoint
        self._wanted = wanted
        self._problems = problems
        self._clock = clock
        self._news = asyncio.Event()
        self.window: Window | None = None
        self.waiting = 0
        self.slowed = 0
        self.slowed_seconds = 0.0
        self.refused = 0

    @property
    def brake(self) -> Brake:
        """What is done with writers now."""
        return brake_for(self.window)

    async def admit(self, size: int, deadline: float | None, longest_hold: float) -> None:
        """Return when a write command of ``size`` bytes may go on.

        ``deadline``: monotonic seconds, of ``maxTimeMS``. Raises ``CommandError``: 50 where that ends;
        262 after ``longest_hold`` seconds without room; nothing was sent then.
        """
        if self.window is None or self.brake in (Brake.FREE, Brake.GONE):
            return
        started = self._clock()
        self.waiting += 1
        try:
            while (left := self._left(started, size, deadline, longest_hold)) > 0:
                await self._wait(left)
        finally:
            self.waiting -= 1
            self.slowed += 1
            self.slowed_seconds += self._clock() - started

    def _left(
        self, started: float, size: int, deadline: float | None, longest_hold: float
    ) -> float:
        """Seconds to wait at most before looking again; 0: go on."""
        window, now, brake = self.window, self._clock(), self.brake
        if window is None or brake in (Brake.FREE, Brake.GONE):
            return 0.0
        if deadline is not None and now >= deadline:
            raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit")
        if brake is Brake.SLOWED:
            end = started + delay_seconds(window.used, size)
        else:
            end = started + longest_hold
            if now >= end:
                self.refused += 1
                raise CommandError(
                    Code.ExceededTimeLimit,
                    f"writes are held: replay to the archive is behind by {describe(window)}, and "
                    "what isn't replayed must not be overwritten there; is the feeder running?",
                )
        return max(0.0, (end if deadline is None else min(end, deadline)) - now)

    async def _wait(self, seconds: float) -> None:
        news = self._news
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await news.wait()

    # Looking.

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            if self._wanted():
                await self.look()
            else:
                self._show(None)
            free = self.brake is Brake.FREE
            await asyncio.sleep(LOOK_SECONDS if free else NEAR_LOOK_SECONDS)

    async def look(self) -> None:
        """One look at both tiers."""
        try:
            async with asyncio.timeout(LONGEST_LOOK_SECONDS):
                seen = await self._look()
                checkpoint = await self._checkpoint()
        except OperationFailure as error:
            if error.code == Code.Unauthorized:
                self._show(None)
                self._problems.set(
                    PROBLEM,
                    "the fast tier's oplog can't be measured, so writes aren't slowed down where replay "
                    "falls behind: grant the services' role find and collStats on local.oplog.rs "
                    f"({redact(str(error.details and error.details.get('errmsg')))})",
                )
            return
        except (PyMongoError, TimeoutError, KeyError):
            return
        self._show(None if checkpoint is None else self._window(seen, checkpoint))

    def _show(self, window: Window | None) -> None:
        self.window = window
        self._problems.put(PROBLEM, _text(window, self.brake))
        self._news.set()
        self._news = asyncio.Event()

    # What it shows.

    def status(self) -> dict[str, Any]:
        """For ``/status``; nulls where nothing is known."""
        window = self.window
        return {
            "brake": self.brake.value,
            "windowUsed": None if window is None else round(window.used, 4),
            "behindBytes": None if window is None else window.behind,
            "behindSeconds": None if window is None else window.seconds,
            "oplogBytes": None if window is None else window.capacity,
            "delaySeconds": self.delay,
            "waiting": self.waiting,
            "slowedTotal": self.slowed,
            "slowedSecondsTotal": round(self.slowed_seconds, 3),
            "refusedTotal": self.refused,
        }

    @property
    def delay(self) -> float:
        """Seconds that a small write waits now; where writes are held, the longest delay."""
        if self.window is None or self.brake in (Brake.FREE, Brake.GONE):
            return 0.0
        return round(delay_seconds(self.window.used, 0), 4)


def _text(window: Window | None, brake: Brake) -> str | None:
    if window is None or brake is Brake.FREE:
        return None
    behind = f"replay to the archive is behind by {describe(window)}"
    if brake is Brake.SLOWED:
        return f"writes are slowed down: {behind}; look at the feeder, or enlarge the oplog"
    if brake is Brake.HELD:
        return (
            f"writes are held, and refused with 262 in the end: {behind}; bring the feeder back, or "
            "enlarge the oplog (replSetResizeOplog), which counts at once"
        )
    return (
        f"the fast tier's oplog no longer reaches back to where replay is ({behind}): the feeder will "
        "compare all its documents, nothing is lost; writes go on"
    )

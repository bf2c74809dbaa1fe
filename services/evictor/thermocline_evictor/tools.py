"""What the evictor's parts work with, and what they report."""

import asyncio
import datetime as dt
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from thermocline_common.archive_probe import ArchiveProbe
from thermocline_common.clock import Clock, monotonic
from thermocline_common.ids import DocId
from thermocline_common.pacing import AUTO, Latency
from thermocline_common.tiers import Tiers
from thermocline_evictor.deleter import Pause
from thermocline_evictor.ledger import Ledger
from thermocline_evictor.members import FastMembers
from thermocline_evictor.settings import Settings

BEAT_SECONDS = 5.0
T = TypeVar("T")


@dataclass(slots=True)
class Tools:
    """Shared by all namespaces. ``marker_id``: this process's own document in ``markers``.

    ``now`` is the wall clock: it decides what is wished for, never what is safe. ``latency``: F's.
    """

    tiers: Tiers
    members: FastMembers
    settings: Settings = field(default_factory=Settings)
    clock: Clock = monotonic
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    marker_id: str = field(default_factory=lambda: f"barrier:{uuid.uuid4()}")
    stopping: Callable[[], bool] = lambda: False
    beat: Callable[[], None] = lambda: None
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    latency: Latency = field(default_factory=Latency)
    pause: Pause | None = None
    """A test's pause point."""

    probe: ArchiveProbe | None = None
    """What work costs the archive's readers; None: nobody asks, and it never rests for them."""

    def piece(self, most: int) -> int:
        """Documents to take at once."""
        return most if self.probe is None else self.probe.throttle.piece(most)

    async def beside(self, namespace: str, work: Awaitable[T], documents: int) -> T:
        """``work``'s result; what it costs others is measured."""
        if self.probe is None:
            return await work
        return await self.probe.beside(namespace, work, documents)

    async def give_way(self, pace: str | int, took: float) -> None:
        """Rest for the archive's readers after work that took so long."""
        if self.probe is not None and pace == AUTO:
            await self.rest(self.probe.throttle.seconds(took))
            await self.probe.settle()

    async def paused(self, step: str) -> None:
        """A test's pause point, where there is one."""
        if self.pause is not None:
            await self.pause(step)

    async def rest(self, seconds: float) -> None:
        """Rest, alive; at most until the service is to end."""
        left = seconds
        while left > 0 and not self.stopping():
            self.beat()
            await self.sleep(min(left, BEAT_SECONDS))
            left -= BEAT_SECONDS


@dataclass(slots=True)
class Report:
    """What the status shows of one namespace."""

    state: str = "waiting"
    floor: dt.datetime | None = None
    claim: dt.datetime | None = None
    horizon: dt.datetime | None = None
    oldest_resident: int | None = None
    would_evict: int | None = None
    pending: int = 0
    lag: float = 0.0
    mismatches: list[DocId] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

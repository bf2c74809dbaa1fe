"""What the feeder measures of itself: its rate, F's oplog, and what it costs the archive's readers."""

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field

from pymongo.errors import PyMongoError

from thermocline_common.archive_probe import ArchiveProbe
from thermocline_common.clock import Clock
from thermocline_common.oplog import OplogMeter
from thermocline_common.oplog_window import Brake, Window, brake_for, describe
from thermocline_common.pacing import PROBE_SECONDS, REPLAY_BACKLOG, Throttle, replay_rest
from thermocline_common.runtime import Context
from thermocline_feeder.assembly import Parts

LOOK_SECONDS = 5.0
QUIET_PROBES = 10
"""Of so many turns to probe, one is used while there is no backlog."""


@dataclass(slots=True)
class Measures:
    """For one term of ownership."""

    context: Context
    parts: Parts
    clock: Clock
    draining: bool
    rate: float = 0.0
    """Documents a second, of late."""
    reach: float | None = None
    """Seconds of F's oplog behind the checkpoint."""
    window: Window | None = None
    """What of F's oplog is still to be replayed, at the last look."""
    _probe: ArchiveProbe = field(init=False)

    def __post_init__(self) -> None:
        self._probe = ArchiveProbe(self.context.tiers.archive, self.clock, Throttle())

    async def run(self) -> None:
        """Rate, how far F's oplog reaches back, and how much of it is still to be replayed."""
        meter = OplogMeter(self.context.tiers.fast)
        before, then = self.parts.replay.figures.documents, self.clock()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now, documents = self.clock(), self.parts.replay.figures.documents
            self.rate = (documents - before) / (now - then)
            before, then = documents, now
            await self._look(meter)

    async def _look(self, meter: OplogMeter) -> None:
        reach: float | None = None
        window: Window | None = None
        with contextlib.suppress(PyMongoError):  # F is away, or the privilege is missing
            look = await meter.look()
            time = self.parts.replay.time
            if time is not None:
                reach = float(time.time - look.oldest.time)
                window = meter.window(look, time)
        self.reach, self.window = reach, window
        slow = window is not None and brake_for(window) is not Brake.FREE
        self.context.problems.put(
            "window",
            f"replay is behind by {describe(window)}: the proxies slow writers down"
            if slow and window is not None
            else None,
        )

    def _namespace(self) -> str | None:
        return next(iter(self.parts.registry.pairs), None)

    async def probe(self) -> None:
        """Time reads of the archive: beside replay while it has a backlog, else now and then."""
        for number in itertools.count():
            await asyncio.sleep(PROBE_SECONDS)
            namespace = self._namespace()
            if namespace is None:
                continue
            if self.parts.replay.backlog >= REPLAY_BACKLOG:
                self._probe.works(namespace)
            elif number % QUIET_PROBES == 0:
                await self._probe.look(namespace)

    async def give_way(self, documents: int, took: float) -> None:
        """After a batch: rest for the archive's readers, as far as replay may."""
        pace = self.context.manifest.current.spec.feeder.pace
        used = None if self.window is None else self.window.used
        rest = replay_rest(pace, documents, took, self._probe.throttle, used)
        if rest > 0 and not self.draining:
            await asyncio.sleep(rest)

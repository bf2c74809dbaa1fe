"""Once a second during a measurement: disk reads, warm share, lag, load, and who took the processors."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rig.blocks import busy_ticks, cpu_ticks
from rig.place import Place

TICK: Final = os.sysconf("SC_CLK_TCK")
STATUS_EVERY: Final = 5
LIMITED_BEFORE: Final = 3.0
"""Seconds before the time that counts: what was on its way to the disk is through by then."""


@dataclass(frozen=True, slots=True)
class Sample:
    """At one moment; ``at`` in seconds from the start, counts so far, processor time in seconds."""

    at: float
    disk_reads: int
    warm_percent: float
    copied: int
    lag: float
    replayed: int
    load: float
    busy: float
    cpu: dict[str, float]


@dataclass(slots=True)
class Watch:
    """Collects samples of a place."""

    place: Place
    settle: float
    """Until just before, the archive's disk goes at full speed: caches are to be as full as after hours."""
    samples: list[Sample] = field(default_factory=list)
    _warm: float = 0.0
    _copied: int = 0
    _lag: float = 0.0
    _replayed: int = 0
    _limited: bool = True

    def take(self, at: float) -> None:
        """One sample; the services' own figures come every few seconds only, because asking costs."""
        self._limit(at)
        if len(self.samples) % STATUS_EVERY == 0 and self.place.thermocline is not None:
            self._warm = self.place.warm_percent()
            namespaces = self.place.status("warmer").get("namespaces", {}).values()
            self._copied = sum(int(each.get("copied", 0)) for each in namespaces)
            feeder = self.place.status("feeder")
            self._lag = float(feeder.get("lagSeconds", 0.0))
            self._replayed = int(feeder.get("appliedTotal", 0))
        self.samples.append(
            Sample(
                at,
                self.place.disk_reads(),
                self._warm,
                self._copied,
                self._lag,
                self._replayed,
                os.getloadavg()[0],
                busy_ticks(Path("/proc/stat").read_text()) / TICK,
                processor_seconds(self.place.processes()),
            )
        )

    def _limit(self, at: float) -> None:
        limited = at >= self.settle - LIMITED_BEFORE
        if limited != self._limited:
            self.place.throttle(on=limited)
            self._limited = limited


def processor_seconds(processes: dict[str, int]) -> dict[str, float]:
    """Of each process that still runs, since it started."""
    found = {}
    for name, pid in processes.items():
        with contextlib.suppress(OSError):
            found[name] = cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) / TICK
    return found

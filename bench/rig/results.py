"""What was measured, as plain values; pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rig.steps import Arm

QUIET: Final = 0.15
"""Processors that others may have used, on average, for a figure to count as undisturbed."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    count: int
    p50: float
    p95: float
    p99: float
    p999: float
    most: float
    curve: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Moment:
    """A second of the timeline."""

    at: float
    operations: int
    disk_reads: float
    warm_percent: float


@dataclass(frozen=True, slots=True)
class Result:
    """One step."""

    arm: Arm
    title: str
    round: int
    wanted: float | None
    """Operations a second; None: as many as possible."""
    settle: float
    seconds: float
    operations: float
    """A second: right answers within the time that counts."""
    latency: dict[str, Latency]
    """By kind."""
    failed: dict[str, int]
    wrong: list[str]
    wrong_count: int
    unanswered: int
    disk_reads: float
    """Of the archive, a second."""
    warmed: int
    """Documents that were warmed meanwhile."""
    lag_most: float
    """Of the feeder, seconds."""
    replayed: int
    """Documents that the feeder wrote to the archive meanwhile, settling included."""
    written: int
    """Updates and inserts that were answered meanwhile, settling included; an update may be replayed with others."""
    load: float
    """Load average at the end: ours with others'."""
    others: float
    """Processors that processes which aren't ours used, on average."""
    cpu_us: dict[str, float]
    """Microseconds of processor time an operation, by process."""
    timeline: list[Moment]

    @property
    def undisturbed(self) -> bool:
        """Whether the machine did little else."""
        return self.others <= QUIET

    @property
    def refused(self) -> int:
        """Operations that failed, whatever the reason."""
        return sum(self.failed.values())


@dataclass(frozen=True, slots=True)
class Spread:
    """A median over rounds, with the lowest and the highest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None of nothing."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1]) if found else None


def of_kind(results: Sequence[Result], arm: Arm, title: str) -> list[Result]:
    """All rounds of one measurement."""
    return [each for each in results if each.arm is arm and each.title == title]


def ratios(results: Sequence[Result], arm: Arm, title: str, figure: "Figure") -> Spread | None:
    """A figure over the archive's alone, round by round; None where one of both is missing or the archive's is 0."""
    base = {each.round: figure(each) for each in of_kind(results, Arm.ARCHIVE, title)}
    found = []
    for each in of_kind(results, arm, title):
        below, above = base.get(each.round), figure(each)
        if below and above is not None:
            found.append(above / below)
    return Spread.of(found)


class Figure:
    """Which number of a result: ``operations``, ``disk_reads``, or a kind's latency such as ``read.p99``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, result: Result) -> float | None:
        """None where the step had no such operations."""
        kind, _, percentile = self.name.partition(".")
        if not percentile:
            return float(getattr(result, kind))
        latency = result.latency.get(kind)
        return None if latency is None else float(getattr(latency, percentile))


def ahead_after(archive: Result, other: Result, width: int = 10) -> float | None:
    """Seconds after which ``other`` answers more a second than ``archive`` on average, for good: in windows of
    ``width`` seconds, of which each later one is ahead, too. None: it isn't ahead at the end."""
    windows = [
        statistics.fmean(moment.operations for moment in other.timeline[at : at + width])
        for at in range(0, len(other.timeline) - width + 1, width)
    ]
    behind = [number for number, rate in enumerate(windows) if rate <= archive.operations]
    if not windows or (behind and behind[-1] == len(windows) - 1):
        return None
    return float((behind[-1] + 1) * width) if behind else 0.0

"""What a run does, in order: as data."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rig.workloads import CONCENTRATED, ONE_KIND, READ_ONLY, SHOP, UNIFORM, WRITE_HEAVY, Workload


class Arm(StrEnum):
    """What the application is connected to."""

    ARCHIVE = "archive"
    HAPROXY = "haproxy"
    EMPTY = "empty"
    WARM = "warm"


ORDER: Final = (Arm.ARCHIVE, Arm.HAPROXY, Arm.EMPTY, Arm.WARM)
NAMES: Final = {
    Arm.ARCHIVE: "archive alone",
    Arm.HAPROXY: "archive behind HAProxy",
    Arm.EMPTY: "Thermocline, empty at the start",
    Arm.WARM: "Thermocline, warm",
}


class Pace(StrEnum):
    """How operations come."""

    CLOSED = "closed"
    """Each connection sends its next operation when it has its answer."""
    FIXED = "fixed"
    """At the rate that the archive alone just manages, whatever the answers take."""
    SLOW = "slow"
    """So few that nothing is at its limit: for what an operation costs."""


FIXED_SHARE: Final = 0.95
"""Of the archive's own uncapped rate in the same round; published: it did 6,086 of 6,165 wanted."""
SLOW_RATE: Final = 100.0
"""Operations a second."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement. ``settle`` seconds of the same load come first and don't count."""

    arm: Arm
    workload: Workload
    pace: Pace
    settle: float
    seconds: float

    @property
    def title(self) -> str:
        """Which workload at which pace; the same for all arms that are compared."""
        return self.workload.name + (" at a fixed rate" if self.pace is Pace.FIXED else "")


def costs(arms: frozenset[Arm], seconds: float = 10) -> tuple[Step, ...]:
    """What each kind of operation costs, on the archive alone and on a warm Thermocline."""
    loads = [(workload, Pace.SLOW) for workload in ONE_KIND]
    steps = [step for arm in (Arm.ARCHIVE, Arm.WARM) for step in _steps(arm, 4, seconds, *loads)]
    return tuple(step for step in steps if step.arm in arms)


def _steps(arm: Arm, settle: float, seconds: float, *loads: tuple[Workload, Pace]) -> list[Step]:
    return [Step(arm, workload, pace, settle, seconds) for workload, pace in loads]


def quick(arms: frozenset[Arm]) -> tuple[Step, ...]:
    """Five minutes: the concentrated workload everywhere, the shop on the archive and warm."""
    both = ((CONCENTRATED, Pace.CLOSED), (SHOP, Pace.CLOSED), (SHOP, Pace.FIXED))
    steps = [
        *_steps(Arm.ARCHIVE, 8, 20, *both),
        *_steps(Arm.HAPROXY, 4, 15, both[0]),
        *_steps(Arm.WARM, 8, 20, *both),
    ]
    return tuple(step for step in steps if step.arm in arms)


def full(arms: frozenset[Arm], seconds: float, empty: float) -> tuple[Step, ...]:
    """One round of all workloads on all arms; ``empty`` seconds for the start with an empty fast tier."""
    loads = (
        (CONCENTRATED, Pace.CLOSED),
        (SHOP, Pace.CLOSED),
        (SHOP, Pace.FIXED),
        (READ_ONLY, Pace.CLOSED),
        (WRITE_HEAVY, Pace.CLOSED),
        (UNIFORM, Pace.CLOSED),
    )
    steps = [
        *_steps(Arm.ARCHIVE, 20, seconds, *loads),
        *_steps(Arm.HAPROXY, 10, seconds, *loads[:3]),
        *_steps(Arm.EMPTY, 0, empty, (SHOP, Pace.CLOSED)),
        *_steps(Arm.WARM, 20, seconds, *loads),
    ]
    return tuple(step for step in steps if step.arm in arms)

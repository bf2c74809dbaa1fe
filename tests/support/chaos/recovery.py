"""How long applications notice a fault, where faults come one at a time. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from support.chaos.histories import Attempt, Outcome
from support.chaos.schedule import Fault, Planned

SLOW: Final = 1.0
"""An operation that takes more seconds isn't normal."""
GAP: Final = 14.0
"""Seconds between two faults: each is over before the next begins."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault that was done: its name, when it began, and when a tier had a primary again."""

    name: str
    began: float
    elected: float | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long operations failed or were slow after a fault; ``after_election``: of that, after MongoDB's own."""

    name: str
    seconds: float
    after_election: float | None = None


def plan_singly(services: Sequence[str], rounds: int) -> tuple[Planned, ...]:
    """Kills of every service and of primaries, step-downs, one after the other."""
    faults = [Planned(0, 1.0, Fault.KILL_SERVICE, service) for service in services]
    for tier in ("fast", "archive"):
        faults.append(Planned(0, 3.0, Fault.KILL_MEMBER, f"{tier} primary"))
        faults.append(Planned(0, 2.0, Fault.STEP_DOWN, f"{tier} primary"))
        faults.append(Planned(0, 3.0, Fault.KILL_MEMBER, f"{tier} secondary"))
    planned = []
    for number, fault in enumerate(faults * rounds):
        at = 5.0 + number * GAP
        planned.append(Planned(at, fault.seconds, fault.fault, fault.target))
    return tuple(planned)


def recoveries(blows: Sequence[Blow], attempts: Iterable[Attempt]) -> list[Recovery]:
    """For each fault, from its beginning to the end of the last operation that it disturbed."""
    disturbed = [a for a in attempts if a.outcome is not Outcome.DONE or a.ended - a.began > SLOW]
    found = []
    for number, blow in enumerate(blows):
        until = blows[number + 1].began if number + 1 < len(blows) else blow.began + GAP
        ends = [a.ended for a in disturbed if a.ended > blow.began and a.began < until]
        end = min(max(ends, default=blow.began), until)
        after = None if blow.elected is None else max(0.0, end - blow.elected)
        found.append(Recovery(blow.name, end - blow.began, after))
    return found


def table(found: Iterable[Recovery]) -> list[str]:
    """A line for each kind of fault: how many, median and longest, and the same after elections."""
    kinds: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in found:
        kinds[recovery.name].append(recovery)
    lines = []
    for name, met in sorted(kinds.items()):
        seconds = [recovery.seconds for recovery in met]
        line = f"{name}: n={len(met)} median={median(seconds):.1f} s longest={max(seconds):.1f} s"
        after = [r.after_election for r in met if r.after_election is not None]
        if after:
            line += f"; after the election median={median(after):.1f} s longest={max(after):.1f} s"
        lines.append(line)
    return lines

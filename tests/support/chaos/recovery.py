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
FEW: Final = 0.02
"""Of the operations of a second so many may be slow or fail, and traffic is normal: clients contend, and machines stall."""
LATE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault that was done: its name, when it began, and when a tier had a primary again."""

    name: str
    began: float
    elected: float | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was noticed of a fault.

    ``traffic``: seconds until the last second in which more than a few operations were slow or failed, or none ended;
    ``last``: until the last single one of these. ``election``: until the tier had a primary again, by MongoDB's own
    election. ``late``: what ended later than :data:`LATE` seconds after the fault or the election.
    """

    name: str
    traffic: float
    last: float
    election: float | None = None
    late: tuple[str, ...] = ()


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
    """What was noticed of each fault, until the next."""
    known = list(attempts)
    found = []
    for number, blow in enumerate(blows):
        until = blows[number + 1].began if number + 1 < len(blows) else blow.began + GAP
        # What ends after the next fault was disturbed by that one.
        near = [a for a in known if blow.began < a.ended <= until]
        ends = [a.ended for a in near if _disturbed(a)]
        election = None if blow.elected is None else blow.elected - blow.began
        late = blow.began + LATE + (election or 0.0)
        found.append(
            Recovery(
                blow.name,
                _traffic(blow.began, until, near),
                max(ends, default=blow.began) - blow.began,
                election,
                tuple(_line(a, blow.began) for a in near if _disturbed(a) and a.ended > late),
            )
        )
    return found


def _disturbed(attempt: Attempt) -> bool:
    return attempt.outcome is not Outcome.DONE or attempt.ended - attempt.began > SLOW


def _traffic(began: float, until: float, attempts: Sequence[Attempt]) -> float:
    """Seconds until traffic was normal for good; an operation counts in every second that it lasted."""
    normal = 0.0
    last = max((a.ended for a in attempts), default=began)
    for second in range(int(min(until, last) - began)):
        start = began + second
        under_way = [a for a in attempts if a.began < start + 1 and a.ended > start]
        disturbed = sum(_disturbed(a) for a in under_way)
        idle = not any(a.ended <= start + 1 for a in under_way)
        if idle or disturbed > FEW * len(under_way):
            normal = second + 1.0
    return normal


def _line(attempt: Attempt, began: float) -> str:
    times = f"{attempt.began - began:5.1f}..{attempt.ended - began:5.1f}"
    return f"{times} {attempt.client} {attempt.what} {attempt.error}".rstrip()


def table(found: Iterable[Recovery]) -> list[str]:
    """A line for each kind of fault, medians and longest; then what came late, by fault."""
    known = list(found)
    kinds: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in known:
        kinds[recovery.name].append(recovery)
    lines = []
    for name, met in sorted(kinds.items()):
        line = (
            f"{name}: n={len(met)} traffic normal after {_both([r.traffic for r in met])}, "
            f"last operation noticed {_both([r.last for r in met])}"
        )
        elections = [r.election for r in met if r.election is not None]
        if elections:
            after = [max(0.0, r.traffic - r.election) for r in met if r.election is not None]
            line += f"; election {_both(elections)}, traffic after it {_both(after)}"
        lines.append(line)
    for recovery in known:
        lines += [f"  late, {recovery.name}: {text}" for text in recovery.late]
    return lines


def _both(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} s (longest {max(seconds):.1f})"

"""The goals and the published figures, as data; and which goals a run meets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rig.results import Figure, Result, Spread, ahead_after, of_kind, ratios
from rig.steps import NAMES, Arm

FIXED: Final = "shop at a fixed rate"


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio to the archive alone in the same round, at least or at most ``bound``; and the published one."""

    arm: Arm
    title: str
    figure: str
    bound: float
    at_least: bool
    published: str


GOALS: Final = (
    Goal(Arm.WARM, "concentrated", "operations", 5.2, True, "5.2 (4,447 -> 23,340 op/s)"),
    Goal(Arm.WARM, "concentrated", "read.p99", 0.09, False, "0.09 (92 -> 8 ms)"),
    Goal(Arm.WARM, "concentrated", "update.p99", 1.0, False, "not given"),
    Goal(Arm.WARM, FIXED, "read.p95", 0.05, False, "0.04 (70.5 -> 2.8 ms)"),
    Goal(Arm.WARM, FIXED, "disk_reads", 0.68, False, "0.68 (2,704 -> 1,838 reads/s)"),
    Goal(Arm.WARM, FIXED, "update.p99", 1.0, False, "about 4 (104-189 -> 455-472 ms)"),
    Goal(Arm.WARM, "shop", "update.p99", 1.0, False, "about 4"),
    Goal(Arm.WARM, "shop", "operations", 0.9, True, "1.6 to 5.2 over all mixes"),
    Goal(Arm.EMPTY, "shop", "operations", 1.42, True, "1.42 (5,803 -> 8,221 op/s)"),
    Goal(Arm.WARM, "read-only", "operations", 0.9, True, "1.6 to 5.2 over all mixes"),
    Goal(Arm.WARM, "write-heavy", "operations", 0.9, True, "1.6 to 5.2 over all mixes"),
    Goal(Arm.WARM, "write-heavy", "update.p99", 1.0, False, "not given"),
    Goal(Arm.WARM, "uniform", "operations", 0.9, True, "1.6 to 5.2 over all mixes"),
)
AHEAD_SECONDS: Final = 100.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """``measured`` None: this run can't say."""

    text: str
    bound: str
    measured: Spread | None
    met: bool | None
    published: str


def judge(results: Sequence[Result]) -> list[Verdict]:
    """Every goal, also those that this run didn't measure."""
    verdicts = []
    for goal in GOALS:
        measured = ratios(results, goal.arm, goal.title, Figure(goal.figure))
        met = None
        if measured is not None:
            met = measured.median >= goal.bound if goal.at_least else measured.median <= goal.bound
        text = f"{goal.title}, {NAMES[goal.arm]}: {goal.figure.replace('.', ' ').replace('_', ' ')}"
        bound = f"at {'least' if goal.at_least else 'most'} {goal.bound:g} x"
        verdicts.append(Verdict(text, bound, measured, met, goal.published))
    return [*verdicts, _ahead(results), _answered(results)]


def _ahead(results: Sequence[Result]) -> Verdict:
    text = "shop, Thermocline, empty at the start: ahead of the archive after (s)"
    archive = {each.round: each for each in of_kind(results, Arm.ARCHIVE, "shop")}
    pairs = [
        (archive[each.round], each)
        for each in of_kind(results, Arm.EMPTY, "shop")
        if each.round in archive
    ]
    moments = [ahead_after(*pair) for pair in pairs]
    known = [moment for moment in moments if moment is not None]
    measured = Spread.of(known)
    met = None
    if pairs:
        met = len(known) == len(pairs) and measured is not None and measured.median <= AHEAD_SECONDS
    return Verdict(text, f"at most {AHEAD_SECONDS:g}", measured, met, "100")


def _answered(results: Sequence[Result]) -> Verdict:
    bad = float(sum(each.refused + each.wrong_count for each in results))
    return Verdict(
        "operations refused or answered wrong, all steps", "0", Spread(bad, bad, bad), bad == 0, "0"
    )

"""Ratios, goals and tables of made-up results."""

from dataclasses import replace

import pytest

from rig.goals import judge
from rig.results import Figure, Latency, Moment, Result, Spread, ahead_after, ratios
from rig.scales import FULL, QUICK
from rig.steps import Arm, Pace, full, quick
from rig.tables import Heading, number, report

READ = Latency(1_000, 10.0, 50.0, 100.0, 120.0, 150.0, [])
BASE = Result(
    arm=Arm.ARCHIVE,
    title="shop",
    round=1,
    wanted=None,
    settle=5,
    seconds=20,
    operations=500.0,
    latency={"read": READ, "update": READ},
    failed={},
    wrong=[],
    wrong_count=0,
    unanswered=0,
    disk_reads=300.0,
    warmed=0,
    lag_most=0.0,
    replayed=0,
    written=0,
    load=1.0,
    others=0.0,
    cpu_us={"archive": 100.0},
    timeline=[],
)


def timeline(*rates: int) -> list[Moment]:
    """Ten seconds of each."""
    return [Moment(at, rates[at // 10], 0.0, 0.0) for at in range(10 * len(rates))]


@pytest.mark.parametrize(
    ("figure", "expected"),
    [("operations", 3.0), ("disk_reads", 0.5), ("read.p99", 0.1), ("insert.p99", None)],
)
def test_ratios_are_of_one_round(figure: str, expected: float | None) -> None:
    quick_read = replace(READ, p99=10.0)
    warm = replace(
        BASE, arm=Arm.WARM, operations=1_500.0, disk_reads=150.0, latency={"read": quick_read}
    )
    other = replace(warm, round=2, operations=9_000.0)  # without the archive's: doesn't count
    found = ratios([BASE, warm, other], Arm.WARM, "shop", Figure(figure))
    assert (None if found is None else found.median) == expected


def test_spread_of_rounds() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    ("rates", "seconds"),
    [
        ([600, 700, 800], 0.0),
        ([400, 600, 700], 10.0),
        ([600, 400, 700], 20.0),
        ([600, 700, 400], None),
        ([], None),
    ],
)
def test_ahead_for_good(rates: list[int], seconds: float | None) -> None:
    other = replace(BASE, arm=Arm.EMPTY, timeline=timeline(*rates))
    assert ahead_after(BASE, other) == seconds


def test_goals_that_were_not_measured_are_neither_met_nor_missed() -> None:
    verdicts = {each.text: each for each in judge([BASE])}
    assert verdicts["shop, Thermocline, warm: operations"].met is None
    assert verdicts["operations refused or answered wrong, all steps"].met is True


@pytest.mark.parametrize(("p99", "met"), [(100.0, True), (101.0, False)])
def test_update_p99_must_not_be_higher_than_the_archive_s(p99: float, met: bool) -> None:
    warm = replace(BASE, arm=Arm.WARM, latency={"update": replace(READ, p99=p99)})
    verdicts = {each.text: each for each in judge([BASE, warm])}
    assert verdicts["shop, Thermocline, warm: update p99"].met is met


@pytest.mark.parametrize(
    "bad", [{"failed": {"NotWritablePrimary": 1}}, {"wrong_count": 1}], ids=str
)
def test_one_refused_or_wrong_answer_misses_a_goal(bad: dict[str, object]) -> None:
    spoilt = replace(BASE, arm=Arm.WARM, **bad)  # type: ignore[arg-type] # fields by name, of several types
    assert judge([BASE, spoilt])[-1].met is False


@pytest.mark.parametrize(
    ("value", "text"), [(12_345.6, "12,346"), (12.34, "12.3"), (1.0, "1.0"), (0.056, "0.06")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_a_disturbed_step_is_called_so() -> None:
    heading = Heading("quick", "today", "abc", "2 processors", 1, QUICK, ["a note"])
    assert "disturbed" not in report(heading, [BASE])
    assert "(disturbed)" in report(heading, [replace(BASE, others=0.8)])


@pytest.mark.parametrize("scale", [QUICK, FULL], ids=["quick", "full"])
def test_data_is_at_least_twenty_times_the_cache(scale: object) -> None:
    assert isinstance(scale, type(QUICK))
    assert scale.data_to_cache >= 20
    # The newest 9 % must not fit into what is left beside the process, or no disk is the limit.
    assert scale.memory_mb - 130 < 0.09 * scale.data_mb


def test_the_archive_alone_is_measured_before_what_needs_its_rate() -> None:
    everything = frozenset(Arm)
    for steps in (quick(everything), full(everything, 60, 600)):
        for at, step in enumerate(steps):
            if step.pace is Pace.FIXED:
                assert any(
                    before.arm is Arm.ARCHIVE and before.title == step.workload.name
                    for before in steps[:at]
                )


def test_a_quick_run_takes_less_than_five_minutes_of_measuring() -> None:
    assert sum(step.settle + step.seconds for step in quick(frozenset(Arm))) < 230

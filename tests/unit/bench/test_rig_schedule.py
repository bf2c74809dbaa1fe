"""When operations are due."""

import pytest

from rig.schedule import Schedule


def test_processes_take_turns_at_the_whole_rate() -> None:
    schedules = [Schedule(100, process, 4) for process in range(4)]
    due = sorted(schedule.due(turn) for schedule in schedules for turn in range(5))
    assert due == pytest.approx([number / 100 for number in range(20)])


@pytest.mark.parametrize(
    ("rate", "process", "processes", "seconds", "turns"),
    [
        (10, 0, 1, 1.0, 10),
        (10, 0, 1, 1.05, 11),
        (10, 0, 1, 0.0, 0),
        (10, 0, 2, 1.0, 5),
        (10, 1, 2, 1.0, 5),
        (10, 0, 3, 1.0, 4),
        (10, 2, 3, 1.0, 3),
        (0.5, 0, 1, 1.0, 1),
        (0.5, 1, 2, 1.0, 0),
    ],
)
def test_how_many_are_due_before_the_end(
    rate: float, process: int, processes: int, seconds: float, turns: int
) -> None:
    schedule = Schedule(rate, process, processes)
    assert schedule.until(seconds) == turns
    assert schedule.due(turns) >= seconds
    assert turns == 0 or schedule.due(turns - 1) < seconds

"""Percent and time left."""

import datetime as dt

import pytest

from thermocline_warmer.plan.progress import Progress, progress, share_by_age, share_by_count

NOW = dt.datetime(2026, 6, 30, tzinfo=dt.UTC)
HORIZON = NOW - dt.timedelta(days=10)


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        (None, 0.0),
        (NOW + dt.timedelta(days=3), 0.0),
        (NOW - dt.timedelta(days=5), 0.5),
        (HORIZON, 1.0),
        (HORIZON - dt.timedelta(days=1), 1.0),
    ],
)
def test_share_by_age(floor: dt.datetime | None, expected: float) -> None:
    assert share_by_age(floor, HORIZON, NOW) == expected


def test_a_whole_collection_is_never_full_by_estimate() -> None:
    assert share_by_count(5, 10) == 0.5
    assert share_by_count(20, 10) == 0.99
    assert share_by_count(0, 0) == 0.0


@pytest.mark.parametrize(
    ("share", "start", "elapsed", "expected"),
    [
        (0.5, 0.0, 10.0, Progress(50.0, 10.0)),
        (0.75, 0.5, 10.0, Progress(75.0, 10.0)),
        (0.5, 0.5, 10.0, Progress(50.0)),
        (1.0, 0.5, 10.0, Progress(100.0)),
        (0.2, 0.4, 10.0, Progress(20.0)),
    ],
)
def test_progress(share: float, start: float, elapsed: float, expected: Progress) -> None:
    assert progress(share, start, elapsed) == expected

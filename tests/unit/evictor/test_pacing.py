"""How much at once."""

import pytest

from thermocline_evictor.plan.pacing import (
    LARGEST_BATCH,
    LEAST_AHEAD,
    MOST_AHEAD,
    after_conflict,
    ahead,
    conflict_rest,
    next_batch,
)


@pytest.mark.parametrize(
    ("size", "opened", "expected"),
    [
        (50, 0.03, 25),
        (1, 0.5, 1),
        (12, 0.5, 10),
        (25, 0.005, 31),
        (1, 0.005, 2),
        (50, 0.005, LARGEST_BATCH),
        (30, 0.015, 30),
    ],
)
def test_next_batch(size: int, opened: float, expected: int) -> None:
    assert next_batch(size, opened) == expected


@pytest.mark.parametrize(
    ("rate", "expected"), [(0.0, LEAST_AHEAD), (100.0, 9_000), (1e6, MOST_AHEAD)]
)
def test_ahead(rate: float, expected: int) -> None:
    assert ahead(rate) == expected


@pytest.mark.parametrize(("size", "row", "expected"), [(50, 1, 50), (50, 3, 25), (1, 9, 1)])
def test_a_single_conflict_splits_no_batch(size: int, row: int, expected: int) -> None:
    assert after_conflict(size, row) == expected


def test_conflicts_keep_evictors_apart() -> None:
    assert conflict_rest(1, 0.1, 0.5) == pytest.approx(0.05)
    assert conflict_rest(9, 0.1, 0.5) == pytest.approx(0.2)
    assert conflict_rest(4, 10.0, 1.0) == 1.0

"""Background work makes way."""

import random
import statistics

import pytest

from thermocline_common.pacing import (
    LEAST_PIECE,
    LONGEST_PAUSE,
    LONGEST_REST,
    MOST_REST,
    Cost,
    Latency,
    Throttle,
    lag_rest,
    replay_rest,
    rest_seconds,
)

CALM = Latency(0.01, 0.012)
STRAINED = Latency(0.01, 0.05)


@pytest.mark.parametrize(
    ("pace", "documents", "took", "latency", "expected"),
    [
        ("Auto", 100, 1.0, Latency(), 0.0),
        ("Auto", 100, 1.0, CALM, 0.0),
        ("Auto", 100, 1.0, STRAINED, 3.0),
        ("Auto", 100, 1.0, Latency(0.01, 10.0), LONGEST_REST),
        ("Auto", 100, 1.0, Latency(0.0001, 0.0049), 0.0),
        (100, 100, 0.25, STRAINED, 0.75),
        (100, 10, 0.25, STRAINED, 0.0),
    ],
)
def test_rest(
    pace: str | int, documents: int, took: float, latency: Latency, expected: float
) -> None:
    assert rest_seconds(pace, documents, took, latency) == pytest.approx(expected)


def test_latency_forgets_a_lucky_measurement_slowly() -> None:
    latency = Latency().observe(0.001)
    for _ in range(20):
        latency = latency.observe(0.1)
    assert latency.strain > 15
    for _ in range(2_000):
        latency = latency.observe(0.1)
    assert latency.strain == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("lag", "expected"), [(0.0, 0.0), (1.0, 0.0), (3.0, 3.0), (60.0, 10.0)])
def test_lag_rest(lag: float, expected: float) -> None:
    assert lag_rest(lag) == expected


def test_the_cost_of_work_is_what_reads_take_longer_beside_it() -> None:
    assert Cost().strain == 1.0
    assert Cost(alone=0.01).strain == 1.0
    assert Cost(0.01, 0.03).strain == pytest.approx(3.0)
    assert Cost(0.0001, 0.0019).strain == 1.0  # both from memory


def test_load_of_others_is_no_cost_of_ours() -> None:
    """Everything takes ten times as long, with us and without: nothing that we do causes it."""
    cost = Cost(0.004, 0.004)
    for _ in range(100):
        cost = cost.saw_alone(0.04).saw_beside(0.041)
    assert cost.strain == pytest.approx(1.025, abs=0.01)


def test_our_own_load_never_becomes_usual() -> None:
    cost = Cost()
    for _ in range(10_000):
        cost = cost.saw_alone(0.005).saw_beside(0.02)
    assert cost.strain == pytest.approx(4.0)


def test_the_throttle_closes_and_opens_in_steps() -> None:
    throttle, closed, opened = Throttle(), 0, 0
    while throttle.rest < MOST_REST:
        throttle = throttle.adjusted(1.3)
        closed += 1
    while throttle.rest > 0:
        throttle = throttle.adjusted(1.1)
        opened += 1
    assert 15 < closed < 30
    assert 15 < opened < 40


def test_reads_that_vary_by_themselves_do_not_close_it() -> None:
    """Heavy tails, and no difference between the two."""
    chance = random.Random(3)
    cost, throttle, rests = Cost(), Throttle(), []
    for _ in range(5_000):
        alone, beside = (0.003 * chance.paretovariate(2.5) for _ in range(2))
        cost = cost.saw_alone(alone).saw_beside(beside)
        throttle = throttle.adjusted(cost.strain)
        rests.append(throttle.rest)
    assert statistics.median(rests) < 0.5


@pytest.mark.parametrize(
    ("rest", "most", "piece", "took", "seconds"),
    [
        (0.0, 250, 250, 1.0, 0.0),
        (1.0, 250, 125, 0.5, 0.5),
        (9.0, 250, 25, 0.1, 0.9),
        (MOST_REST, 250, LEAST_PIECE, 0.1, 3.0),
        (MOST_REST, 5, 5, 1.0, LONGEST_PAUSE),
    ],
)
def test_long_rests_between_small_pieces(
    rest: float, most: int, piece: int, took: float, seconds: float
) -> None:
    assert Throttle(rest).piece(most) == piece
    assert Throttle(rest).seconds(took) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("pace", "documents", "rest", "used", "expected"),
    [
        ("Auto", 5_000, 0.0, 0.0, 0.0),
        ("Auto", 5_000, 0.5, None, 0.2),
        ("Auto", 5_000, 30.0, 0.05, 0.4),  # never longer than it works
        ("Auto", 5_000, 30.0, 0.1, 0.0),  # never where the oplog gets short
        ("Auto", 100, 30.0, 0.0, 0.0),  # never where nothing is left behind
        (1_000, 500, 0.0, 0.0, 0.1),
        (1_000, 100, 30.0, 0.0, 0.0),
        (1_000, 500, 0.0, 0.2, 0.0),
    ],
)
def test_replay_rests_within_bounds(
    pace: str | int, documents: int, rest: float, used: float | None, expected: float
) -> None:
    found = replay_rest(pace, documents, 0.4, Throttle(rest), used)
    assert found == pytest.approx(expected)

"""Background work makes way."""

import dataclasses
import math
import random
import statistics

import pytest

from thermocline_common.pacing import (
    CALM_SECONDS,
    CAREFUL,
    CHANCE_AGAIN,
    CLOSE,
    FIRST_CLOSE,
    HELD_UP_FLOOR,
    HELD_UP_SHARE,
    LEAST_PIECE,
    LONGEST_PAUSE,
    LONGEST_REST,
    MOST_PIECES_REST,
    MOST_REST,
    Courtesy,
    Latency,
    Pieces,
    Throttle,
    Usual,
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


def test_what_is_usual() -> None:
    usual = Usual()
    assert not usual.is_slow(5.0)  # nothing to compare it with
    for _ in range(200):
        usual = usual.saw(0.005)
    assert usual.seconds == pytest.approx(0.005)
    assert usual.chance == 0
    assert usual.is_slow(0.011)
    assert not usual.is_slow(0.009)
    held_up = usual.saw(5.0)
    assert held_up.chance == pytest.approx(0.02)
    assert held_up.seconds == pytest.approx(0.0065)  # and no average of seconds
    assert not Usual().saw(0.0).saw(0.0).is_slow(0.004)  # from memory, and the counting is coarse


CALM_READS = Usual(0.005)


def test_the_throttle_closes_in_a_few_steps() -> None:
    throttle, closed = Throttle(), 0
    while throttle.rest < MOST_REST:
        throttle = throttle.adjusted(CALM_READS, slow=True)
        closed += 1
    assert 10 < closed < 20


def test_it_opens_fast_until_a_read_was_held_up() -> None:
    throttle, steps = CAREFUL, 0
    while throttle.rest > 0:
        throttle = throttle.adjusted(CALM_READS, slow=False)
        steps += 1
    assert 60 < steps < 200  # of five a second
    met = CAREFUL.adjusted(CALM_READS, slow=True)
    assert met.rest > CAREFUL.rest
    assert 0.99 < met.adjusted(CALM_READS, slow=False).rest / met.rest < 1


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("rest", [0.5, 4.0, 20.0])
def test_it_stands_where_as_many_reads_are_held_up_as_may_be(chance: float, rest: float) -> None:
    usual = dataclasses.replace(CALM_READS, chance=chance)
    opened = math.log(rest / Throttle(rest).adjusted(usual, slow=False).rest)
    closed = math.log(Throttle(rest).adjusted(usual, slow=True).rest / rest)
    assert opened == pytest.approx((HELD_UP_SHARE + CHANCE_AGAIN * chance) * closed)


def test_reads_that_vary_by_themselves_do_not_close_it() -> None:
    """Heavy tails, and no difference between the two."""
    chance = random.Random(3)
    usual, throttle, rests = Usual(), CAREFUL, []
    for _ in range(20_000):
        alone, beside = (0.003 * chance.paretovariate(2.5) for _ in range(2))
        slow = usual.is_slow(beside)
        usual = usual.saw(alone)
        throttle = throttle.adjusted(usual, slow=slow)
        rests.append(throttle.rest)
    assert statistics.median(rests[10_000:]) < 1.0


@pytest.mark.parametrize(
    ("rest", "most", "piece", "took", "seconds"),
    [
        (0.0, 250, 250, 1.0, 0.0),
        (1.0, 250, 62, 0.5, 0.5),
        (9.0, 250, LEAST_PIECE, 0.1, 0.9),
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


@pytest.mark.parametrize(
    ("each", "documents", "seconds", "held_up"),
    [
        (0.0, 10, 5.0, False),  # nothing to compare it with
        (0.0005, 10, 0.005, False),
        (0.0005, 10, 0.9 * HELD_UP_FLOOR, False),  # nobody notices
        (0.0005, 10, 0.06, True),
        (0.0005, 100, 0.06, False),  # a large piece takes its time
        (0.0005, 100, 0.2, True),
        (0.02, 10, 0.4, False),  # an archive at its limit: so it is always
        (0.02, 10, 0.7, True),
    ],
)
def test_a_piece_of_work_that_was_held_up(
    each: float, documents: int, seconds: float, held_up: bool
) -> None:
    assert Pieces(each).is_held_up(documents, seconds) is held_up


def test_what_pieces_usually_take() -> None:
    pieces = Pieces()
    for _ in range(100):
        pieces = pieces.saw(10, 0.005)
    pieces = pieces.saw(0, 9.0)
    assert pieces.each == pytest.approx(0.0005)
    assert pieces.saw(10, 60.0).each == pytest.approx(0.00075)  # and no average of seconds


def test_pieces_that_are_held_up_close_the_throttle_at_once() -> None:
    first = CAREFUL.after_piece(0.1, held_up=False)
    assert CAREFUL.rest > first.rest > 0.9 * CAREFUL.rest
    met = Throttle(1.0, met=False).after_piece(0.1, held_up=True)
    assert met == Throttle(FIRST_CLOSE)
    assert met.after_piece(0.1, held_up=True).rest == pytest.approx(FIRST_CLOSE * CLOSE)
    open_again = met
    for _ in range(round(10 * CALM_SECONDS)):
        open_again = open_again.after_piece(0.1, held_up=False)
    assert open_again.rest == pytest.approx(FIRST_CLOSE / CLOSE)


def test_pieces_close_it_no_further_than_our_own_work_explains() -> None:
    throttle = Throttle()
    for _ in range(100):
        throttle = throttle.after_piece(0.1, held_up=True)
    assert throttle.rest == MOST_PIECES_REST
    assert Throttle(12.0).after_piece(0.1, held_up=True).rest == 12.0


def test_calm_counts_while_there_is_work() -> None:
    courtesy = dataclasses.replace(Courtesy.beginning(Throttle(4.0)), pieces=Pieces(0.0005))
    courtesy = courtesy.saw_piece(10, 0.005, 100.0)
    assert courtesy.own.rest == 4.0
    after = courtesy.saw_piece(10, 0.005, 800.0)
    assert after.own.rest > 3.9
    assert after.throttle.rest == 4.0  # probes have a say of their own
    assert courtesy.saw_piece(10, 0.5, 101.0).throttle.rest == pytest.approx(4.0 * CLOSE)

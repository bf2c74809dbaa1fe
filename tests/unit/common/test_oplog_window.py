"""How much of the oplog replay still needs, and what writers wait for that."""

import pytest
from bson.timestamp import Timestamp

from thermocline_common.oplog_window import (
    FIRST_DELAY,
    LONGEST_DELAY,
    UNIT_BYTES,
    Brake,
    Look,
    Track,
    Window,
    brake_for,
    delay_seconds,
    describe,
)

MB = 1_000_000


def at(seconds: int, increment: int = 1) -> Timestamp:
    return Timestamp(seconds, increment)


def look(
    time: int, written: int, *, size: int = 100 * MB, oldest: int = 0, process: str = "p"
) -> Look:
    return Look(process, at(time), written, size, 100 * MB, at(oldest))


def follow(*steps: tuple[Look, Timestamp]) -> Window:
    track, window = Track(), None
    for seen, checkpoint in steps:
        track = track.saw(seen, checkpoint)
        window = track.window(seen, checkpoint)
    assert window is not None
    return window


def test_a_feeder_that_keeps_up_uses_next_to_nothing() -> None:
    steps = [(look(1_000 + n, n * 5 * MB, oldest=900), at(999 + n)) for n in range(50)]
    assert follow(*steps).behind <= 5 * MB + 100 * MB / 256


def test_bytes_count_and_not_seconds() -> None:
    """Ten quiet days, then a burst of ten seconds that overwrites nearly all: seconds would say 0%."""
    day = 86_400
    quiet = look(10 * day, 50 * MB)
    burst = look(10 * day + 10, 145 * MB)
    assert follow((quiet, at(10 * day)), (burst, at(10 * day))).used == pytest.approx(0.95)


def test_a_quiet_night_without_a_feeder_uses_nothing() -> None:
    evening = look(1_000, 500 * MB, oldest=900)
    morning = look(40_000, 501 * MB, oldest=900)
    window = follow((evening, at(1_000)), (morning, at(1_000)))
    assert window.used == pytest.approx(0.01)
    assert window.seconds == 39_000


def test_what_was_written_before_the_first_look_is_estimated_by_time() -> None:
    window = follow((look(2_000, 7_000 * MB, oldest=1_000), at(1_400)))
    assert window.used == pytest.approx(0.6)
    later = look(2_010, 7_010 * MB, oldest=1_100)
    more = follow((look(2_000, 7_000 * MB, oldest=1_000), at(1_400)), (later, at(1_400)))
    assert more.behind == pytest.approx(10 * MB + 90 * MB * 600 / 900, rel=0.01)


def test_an_oplog_that_is_not_full_yet_is_no_reason_to_wait() -> None:
    """All of it is behind, and there is room for a hundred times as much."""
    young = look(1_030, 1 * MB, size=1 * MB, oldest=1_000)
    assert follow((young, at(1_000))).used == pytest.approx(0.01)


@pytest.mark.parametrize("change", ["another process", "counts from 0"])
def test_another_process_counts_anew(change: str) -> None:
    before = look(1_000, 9_000 * MB, oldest=0)
    process = "q" if change == "another process" else "p"
    written = 9_500 * MB if change == "another process" else 3 * MB
    after = look(1_100, written, oldest=100, process=process)
    window = follow((before, at(900)), (after, at(900)))
    assert window.used == pytest.approx(200 / 1_000, rel=0.01)


def test_an_oplog_that_is_enlarged_counts_at_once() -> None:
    full = look(1_000, 90 * MB, oldest=0)
    track = Track().saw(look(0, 0), at(0))
    assert track.window(full, at(0)).used == pytest.approx(0.9)
    enlarged = Look("p", at(1_001), 90 * MB, 100 * MB, 1_000 * MB, at(0))
    assert track.window(enlarged, at(0)).used == pytest.approx(0.09)


def test_a_checkpoint_read_after_the_look_may_be_ahead_of_it() -> None:
    assert follow((look(1_000, 5 * MB), at(1_001))).behind == 0


def test_marks_stay_few() -> None:
    track = Track()
    for n in range(20_000):
        track = track.saw(look(1_000 + n, n * 10_000), at(1_000))
    assert len(track.marks) <= 520
    assert track.window(look(21_000, 200 * MB), at(1_000)).used == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (None, Brake.FREE),
        (Window(0, 100, 0, gone=False), Brake.FREE),
        (Window(24, 100, 0, gone=False), Brake.FREE),
        (Window(25, 100, 0, gone=False), Brake.SLOWED),
        (Window(89, 100, 0, gone=False), Brake.SLOWED),
        (Window(90, 100, 0, gone=False), Brake.HELD),
        (Window(150, 100, 0, gone=False), Brake.HELD),
        (Window(150, 100, 0, gone=True), Brake.GONE),
        (Window(1, 100, 0, gone=True), Brake.FREE),
    ],
)
def test_brake(window: Window | None, expected: Brake) -> None:
    assert brake_for(window) is expected


@pytest.mark.parametrize(
    ("used", "size", "expected"),
    [
        (0.0, 100, 0.0),
        (0.2499, 48_000_000, 0.0),
        (0.25, 100, FIRST_DELAY),
        (0.30, 100, 0.002),
        (0.50, 100, 0.032),
        (0.75, 100, 1.024),
        (0.75, UNIT_BYTES, 1.024),
        (0.50, 10 * UNIT_BYTES, 0.32),
        (0.89, 48_000_000, LONGEST_DELAY),
        (9.0, 100, LONGEST_DELAY),
        (1e9, 100, LONGEST_DELAY),
    ],
)
def test_delay(used: float, size: int, expected: float) -> None:
    assert delay_seconds(used, size) == pytest.approx(expected)


def test_delays_only_grow() -> None:
    delays = [delay_seconds(share / 1_000, 500) for share in range(1_000)]
    assert delays == sorted(delays)


def test_people_read_steps() -> None:
    assert describe(Window(47, 100, 0, gone=False)).startswith("45% of")
    assert describe(Window(49, 100, 0, gone=False)).startswith("45% of")

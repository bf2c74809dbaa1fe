import logging

import pytest

from thermocline_common.health import Heartbeat, Problems


def test_a_heart_is_alive_while_it_beats() -> None:
    now = 100.0
    heart = Heartbeat(lambda: now, limit=60)
    assert (heart.age, heart.alive) == (0, True)
    now = 161.0
    assert (heart.age, heart.alive) == (61, False)
    heart.beat()
    assert heart.alive


def test_problems_are_logged_once_when_they_change(caplog: pytest.LogCaptureFixture) -> None:
    problems = Problems()
    with caplog.at_level(logging.INFO, logger="thermocline_common"):
        for text in ("down", "down", "still down", "still down"):
            problems.set("archive", text)
        assert problems.current == {"archive": "still down"}
        problems.clear("archive")
        problems.clear("archive")
        problems.put("x", None)
    assert [r.getMessage() for r in caplog.records] == [
        "problem: down",
        "problem: still down",
        "problem solved",
    ]
    assert problems.current == {}


def test_what_was_read_is_a_copy() -> None:
    problems = Problems()
    before = problems.current
    problems.set("a", "b")
    assert before == {}

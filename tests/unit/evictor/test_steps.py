"""The wait for readers who trust an old floor."""

from collections.abc import Iterable

from thermocline_evictor.plan.steps import LOOKS, Cursor, Phase, Wait, start

LEASE = 5.0


def looked(wait: Wait, times: Iterable[float], found: dict[str, list[int]]) -> Wait:
    for now in times:
        wait = wait.look(now, found, ())
    return wait


def fresh(read_at: float = 0.0) -> Wait:
    return start("epoch", 3, read_at)


def test_the_lease_runs_from_the_read_with_a_margin_for_clocks() -> None:
    assert fresh().phase(5.4, LEASE, {"a"}) is Phase.LEASE
    assert fresh().phase(5.6, LEASE, {"a"}) is Phase.CURSORS


def test_several_looks_over_a_second_without_cursors() -> None:
    quick = looked(fresh(), [6.0, 6.1, 6.2, 6.3, 6.4], {"a": []})
    assert quick.phase(6.4, LEASE, {"a"}) is Phase.CURSORS
    few = looked(fresh(), [6.0, 7.5], {"a": []})
    assert few.phase(7.5, LEASE, {"a"}) is Phase.CURSORS
    enough = looked(fresh(), [6.0, 6.3, 6.6, 7.0], {"a": []})
    assert enough.phase(7.0, LEASE, {"a"}) is Phase.READY


def test_one_look_that_misses_a_live_cursor_changes_nothing() -> None:
    wait = fresh()
    for number in range(40):
        wait = wait.look(6 + number * 0.3, {"a": [] if number % (LOOKS - 1) == 0 else [7]}, ())
        assert wait.phase(6 + number * 0.3, LEASE, {"a"}) is Phase.CURSORS
    wait = looked(wait, [20, 20.4, 20.8, 21.2], {"a": []})
    assert wait.phase(21.2, LEASE, {"a"}) is Phase.READY


def test_cursors_opened_under_the_new_floor_are_not_waited_for() -> None:
    wait = looked(fresh(), [6.0, 6.3, 6.6, 6.9], {"a": []})
    wait = wait.look(7.2, {"a": [9]}, ())
    assert wait.phase(7.2, LEASE, {"a"}) is Phase.READY
    # Once over, it stays over, whatever is opened later.
    wait = looked(wait, [7.5, 7.8], {"a": [9, 10]})
    assert wait.phase(7.8, LEASE, {"a"}) is Phase.READY


def test_every_serving_member_is_asked() -> None:
    wait = looked(fresh(), [6.0, 6.5, 7.0, 7.5], {"a": []})
    assert wait.phase(7.5, LEASE, {"a", "b"}) is Phase.CURSORS
    wait = looked(wait, [8.0, 8.5, 9.0, 9.5], {"b": []})
    assert wait.phase(9.5, LEASE, {"a", "b"}) is Phase.READY
    assert wait.phase(9.5, LEASE, ()) is Phase.CURSORS


def test_a_member_that_was_down_is_asked_when_it_is_back() -> None:
    wait = fresh()
    for now in (6.0, 6.5, 7.0, 7.5):
        wait = wait.look(now, {"a": []}, {"b"})
    assert wait.phase(7.5, LEASE, {"a"}) is Phase.READY
    assert wait.phase(7.6, LEASE, {"a", "b"}) is Phase.CURSORS
    assert wait.returned("b")
    assert not wait.returned("a")


def test_a_member_that_went_down_in_between_is_asked_anew() -> None:
    wait = looked(fresh(), [6.0, 6.5, 7.0, 7.5], {"a": [], "b": []})
    wait = wait.look(8.0, {"a": []}, {"b"})
    assert wait.phase(8.1, LEASE, {"a", "b"}) is Phase.CURSORS


def test_overdue_cursors() -> None:
    wait = looked(fresh(), [6.0, 6.5, 7.0], {"a": [7], "b": []})
    assert wait.overdue(7.0, 10.0) == []
    wait = wait.look(16.5, {"a": [7]}, ())
    assert wait.overdue(16.5, 10.0) == [Cursor("a", 7)]

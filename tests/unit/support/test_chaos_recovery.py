"""How long a fault is noticed, from what clients met."""

import itertools

from support.chaos.histories import Attempt, Outcome
from support.chaos.recovery import GAP, Blow, Recovery, plan_singly, recoveries, table


def attempt(began: float, ended: float, outcome: Outcome = Outcome.DONE) -> Attempt:
    return Attempt("c", "read", began, ended, outcome)


def busy(began: float, ended: float) -> list[Attempt]:
    """Fifty quick operations a second."""
    return [
        attempt(began + n / 50, began + n / 50 + 0.01) for n in range(round(50 * (ended - began)))
    ]


def test_from_the_fault_to_the_end_of_what_it_disturbed() -> None:
    blows = [Blow("kill", 10), Blow("elect", 24, elected=26)]
    attempts = [
        *busy(5, 24),
        *busy(27.5, 38),
        attempt(5, 9),  # slow, before
        *[attempt(10.1, 12.5, Outcome.RETRYABLE) for _ in range(5)],
        attempt(16.5, 16.6, Outcome.RETRYABLE),  # one alone
        attempt(23.5, 27),  # slow, into the second one
    ]
    assert recoveries(blows, attempts) == [
        Recovery("kill", 3.0, 16.6 - 10, None, ("  6.5..  6.6 c read",)),
        Recovery("elect", 3.0, 3.0, 2.0),
    ]


def test_nothing_noticed() -> None:
    blow = Blow("kill", 10, elected=12)
    assert recoveries([blow], busy(5, 30)) == [Recovery("kill", 0.0, 0.0, 2.0)]


def test_traffic_that_stands_still_is_not_normal() -> None:
    attempts = [*busy(5, 10), *busy(13, 24)]
    assert recoveries([Blow("kill", 10)], attempts)[0].traffic == 3.0


def test_the_table() -> None:
    lines = table(
        [
            Recovery("a", 1.0, 1.5),
            Recovery("a", 3.0, 9.0, late=("x",)),
            Recovery("b", 4.0, 5.0, 2.0),
        ]
    )
    assert lines == [
        "a: n=2 traffic normal after 2.0 s (longest 3.0), last operation noticed 5.2 s (longest 9.0)",
        (
            "b: n=1 traffic normal after 4.0 s (longest 4.0), last operation noticed 5.0 s (longest 5.0); "
            "election 2.0 s (longest 2.0), traffic after it 2.0 s (longest 2.0)"
        ),
        "  late, a: x",
    ]


def test_faults_come_one_at_a_time() -> None:
    planned = plan_singly(("proxy-1", "feeder"), 2)
    assert len(planned) == 16
    assert all(b.at - a.at >= GAP > a.seconds for a, b in itertools.pairwise(planned))

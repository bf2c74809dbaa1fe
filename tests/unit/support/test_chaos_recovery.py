"""How long a fault is noticed, from what clients met."""

import itertools

from support.chaos.histories import Attempt, Outcome
from support.chaos.recovery import GAP, Blow, Recovery, plan_singly, recoveries, table


def attempt(began: float, ended: float, outcome: Outcome = Outcome.DONE) -> Attempt:
    return Attempt("c", "read", began, ended, outcome)


def test_from_the_fault_to_the_end_of_what_it_disturbed() -> None:
    blows = [Blow("kill", 10), Blow("elect", 30, elected=32)]
    attempts = [
        attempt(5, 9),  # slow, before
        attempt(11, 11.2),
        attempt(12, 12.5, Outcome.RETRYABLE),
        attempt(29.5, 33),  # slow, into the second one
        attempt(34, 34.1),
    ]
    assert recoveries(blows, attempts) == [
        Recovery("kill", 20.0, None),
        Recovery("elect", 3.0, 1.0),
    ]
    assert recoveries(blows[:1], attempts[:3]) == [Recovery("kill", 2.5, None)]


def test_nothing_noticed() -> None:
    assert recoveries([Blow("kill", 10, elected=12)], [attempt(11, 11.1)]) == [
        Recovery("kill", 0.0, 0.0)
    ]


def test_the_table() -> None:
    lines = table([Recovery("a", 1.0), Recovery("a", 3.0), Recovery("b", 4.0, 2.0)])
    assert lines == [
        "a: n=2 median=2.0 s longest=3.0 s",
        "b: n=1 median=4.0 s longest=4.0 s; after the election median=2.0 s longest=2.0 s",
    ]


def test_faults_come_one_at_a_time() -> None:
    planned = plan_singly(("proxy-1", "feeder"), 2)
    assert len(planned) == 16
    assert all(b.at - a.at >= GAP > a.seconds for a, b in itertools.pairwise(planned))

"""Background work makes way."""

import pytest

from thermocline_common.pacing import LONGEST_REST, Latency, rest_seconds

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

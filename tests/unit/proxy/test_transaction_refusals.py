"""Which transactions over two tiers are refused for good, and which may be repeated."""

import pytest

from thermocline_proxy.transactions.patience import Patience
from thermocline_proxy.transactions.refusals import on_the_way


@pytest.mark.parametrize(
    ("untiered", "tiered", "wanted", "soon"),
    [
        (["loose"], ["orders"], {"orders"}, False),
        (["loose"], ["orders"], {"orders", "loose"}, True),
        (["orders"], ["stock"], set(), True),
        (["loose"], ["orders", "stock"], {"orders"}, True),
        (["loose"], [], {"orders"}, False),
    ],
    ids=["never", "still coming in", "everything leaves", "one leaves", "nothing tiered"],
)
def test_on_the_way(untiered: list[str], tiered: list[str], wanted: set[str], soon: bool) -> None:
    assert bool(on_the_way(untiered, tiered, wanted)) is soon


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([0.0, 9.0, 18.0, 27.0, 36.0, 45.0, 54.0, 60.0], [True] * 8),
        ([0.0, 9.0, 18.0, 27.0, 36.0, 45.0, 54.0, 61.0, 62.0], [True] * 7 + [False] * 2),
        ([0.0, 9.0, 18.0, 27.0, 36.0, 45.0, 54.0, 61.0, 72.0], [True] * 7 + [False, True]),
    ],
)
def test_a_switch_that_never_comes_is_waited_for_a_minute(
    asked: list[float], expected: list[bool]
) -> None:
    patience = Patience()
    assert [patience.lasts(["d.c"], 100 + at) for at in asked] == expected
    assert patience.lasts(["d.other"], 1_000)

"""Which transactions over two tiers are refused for good, and which may be repeated."""

import pytest

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
    assert on_the_way(untiered, tiered, wanted) is soon

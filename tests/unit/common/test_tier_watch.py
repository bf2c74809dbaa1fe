"""What is said of a wrong clock."""

import datetime as dt

import pytest

from thermocline_common.coverage import Tier
from thermocline_common.tier_watch import describe_clocks


@pytest.mark.parametrize(
    ("archive", "fast", "expected"),
    [
        (None, None, None),
        (0, 59, None),
        (-59, 0, None),
        (0, 60, "1 minutes ahead of the fast tier's:"),
        (-7_000, None, "117 minutes behind the archive's:"),
        (93_600, 93_600, "26 hours ahead of the archive's and 26 hours ahead of the fast tier's:"),
        (-93_600, 120, "26 hours behind the archive's and 2 minutes ahead of the fast tier's:"),
    ],
)
def test_clocks(archive: float | None, fast: float | None, expected: str | None) -> None:
    ahead = {
        tier: None if seconds is None else dt.timedelta(seconds=seconds)
        for tier, seconds in ((Tier.ARCHIVE, archive), (Tier.FAST, fast))
    }
    found = describe_clocks(ahead)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert f"this host's clock is {expected}" in found

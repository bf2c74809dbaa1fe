"""What is said of a wrong clock, and of tiers with which TLS doesn't come about."""

import datetime as dt

import pytest

from thermocline_common.coverage import Tier
from thermocline_common.tier_watch import describe_clocks, hinted


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


@pytest.mark.parametrize(
    ("text", "tls", "hint"),
    [
        ("h:1: connection closed", False, "if it wants TLS, add tls=true"),
        ("h:1: connection closed", True, "it may not take this service's certificate"),
        ("SSL handshake failed: h:1", True, "take tls=true out of the URI"),
        (
            "h:1: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: expired",
            True,
            "caSecretRef",
        ),
        ("h:1: Connect call failed", True, None),
        ("h:1: Connect call failed", False, None),
    ],
)
def test_one_side_without_tls_is_named(text: str, tls: bool, hint: str | None) -> None:
    found = hinted(text, tls=tls)
    assert found.startswith(text)
    assert (found == text) if hint is None else (hint in found)

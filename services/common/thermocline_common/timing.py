"""Waits that two components agree on, because the safety of one rests on the other's.

A test may shorten them together with one variable; in operation they are no configuration.
"""

import os
from collections.abc import Mapping
from typing import Final

TEST_VARIABLE: Final = "THERMOCLINE_TEST_ANNOUNCE_SECONDS"
"""For tests only, and then for every service alike: the keep time shrinks with it."""
KEEP_SHARE: Final = 6


def announce_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """The override, or 60 s. Raises ``ValueError`` on a bad one."""
    seconds = float(environment.get(TEST_VARIABLE, "60"))
    if not 0 < seconds <= 60:
        raise ValueError(f"{TEST_VARIABLE} must be above 0 and at most 60")
    return seconds


ANNOUNCE_SECONDS: Final = announce_seconds()
"""From the announcement of an eviction (a ``leaving`` record at majority) to the eviction, at least."""
KEEP_SECONDS: Final = ANNOUNCE_SECONDS / KEEP_SHARE
"""For so long (10 s) a proxy may rely on what it kept in F, or saw there without a record."""

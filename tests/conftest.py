"""Fixtures for all tests. They live in ``support.fixtures`` so that they can be imported and typed."""

import pytest
from hypothesis import HealthCheck, settings

from thermocline_common import asyncio_mend, driver_sessions, driver_waits

pytest_plugins = ["support.fixtures"]

# As every service does before its first connection: tests run their parts within this process.
asyncio_mend.mend()
driver_waits.mend()
driver_sessions.mend()

# The same examples each time, however slow the machine is: a run that fails has found something in
# the change under test. `pytest --hypothesis-profile=search` looks for new examples.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", settings.get_profile("search"), derandomize=True)
settings.load_profile("fixed")

# The files that take longest begin first and the quick ones fill the end, so that no process is left
# alone with a long one (`make test` keeps this order; whoever adds a longer file adds it here).
LONG = (
    "test_compat", "test_chaos", "test_differential", "test_modes", "test_change_streams",
    "test_evictor", "test_feeder_recovery", "test_schedules",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order whole files: the long ones, other integration tests, unit tests."""

    def place(item: pytest.Item) -> int:
        if "unit" in item.path.parts:
            return 2
        return 0 if item.path.stem.startswith(LONG) else 1

    items.sort(key=place)

"""Fixtures for all tests. They live in ``support.fixtures`` so that they can be imported and typed."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["support.fixtures"]

# The same examples each time, however slow the machine is: a run that fails has found something in
# the change under test. `pytest --hypothesis-profile=search` looks for new examples.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", settings.get_profile("search"), derandomize=True)
settings.load_profile("fixed")

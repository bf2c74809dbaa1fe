"""A sample of other people's test suites through the proxy; ``make compat`` runs all of them.

Untouched drivers and object mappers, compared test by test with what they give on a plain mongod.
"""

import shutil
from pathlib import Path

import pytest

from support.compat.suites import run_units

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("mongod_binary"),
]

SAMPLES = {
    "passthrough": [
        "smoke/*", "umongo/*", "spec/gridfs", "spec/read-write-concern", "spec/collection-management",
        "spec/sessions", "spec/run-command", "pymongo/test_raw_bson",
    ],
    "tiered": ["smoke/*", "spec/run-command", "pymongo/test_raw_bson"],
}  # fmt: skip


@pytest.mark.parametrize("setting", SAMPLES)
def test_sample(setting: str, tmp_path: Path) -> None:
    outcome = run_units(setting, SAMPLES[setting], tmp_path)
    print(f"{setting}: {outcome.passed} passed, as listed: {outcome.verdict.allowed}")
    assert not outcome.ended
    assert not outcome.verdict.unexpected
    assert outcome.passed > 50


def test_the_node_driver_is_there() -> None:
    """The kit leaves its unit out where there is no Node; that must show among the skips."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("no node and npm: smoke/node-driver was left out of both settings")

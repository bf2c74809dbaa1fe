"""A sample of other people's test suites through the proxy; ``make compat`` runs all of them.

Untouched drivers and object mappers, compared test by test with what they give on a plain mongod.
"""

import shutil
from pathlib import Path

import pytest

from support.compat import run_units

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("mongod_binary"),
]

SAMPLES = {
    "passthrough": [
        "smoke/*", "umongo/*", "spec/gridfs", "spec/read-write-concern", "spec/collection-management",
        "pymongo/test_raw_bson",
    ],
    "tiered": ["smoke/*", "pymongo/test_raw_bson"],
}  # fmt: skip


@pytest.mark.parametrize("mode", SAMPLES)
def test_sample(mode: str, tmp_path: Path) -> None:
    outcome = run_units(mode, SAMPLES[mode], tmp_path)
    print(f"{mode}: {outcome.passed} passed")
    assert not outcome.ended
    assert not outcome.lost
    assert outcome.passed > 50


def test_the_node_driver_is_there() -> None:
    """The kit leaves its unit out where there is no Node; that must show among the skips."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("no node and npm: smoke/node-driver was left out of both modes")

"""Samples of the chaos machine: everything breaks under applications that know the truth.

``SEED`` and ``SECONDS`` in the environment choose another run or a longer one; ``make chaos`` runs the
whole, ``make chaos-defects`` shows that it notices services that are broken on purpose.
"""

import os
from dataclasses import replace

import pytest

from support.chaos.noticed import noticed, options_for
from support.chaos.report import summary
from support.chaos.run import SAMPLE, run

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("mongod_binary"),
]


def test_nothing_is_lost_and_nothing_comes_back() -> None:
    """Three members a tier, logins: services, members and links break; two feeders, two evictors."""
    seed, seconds = os.environ.get("SEED", SAMPLE.seed), os.environ.get("SECONDS", SAMPLE.seconds)
    result = run(replace(SAMPLE, seed=int(seed), seconds=float(seconds)))
    told = summary(result)
    print(told)
    assert not result.violations, told
    assert len(result.attempts) > 50, told


def test_a_defect_is_noticed() -> None:
    """A feeder that skips ids; a member a tier, without logins. ``make chaos-defects`` tries them all."""
    result = run(options_for("skipped-id", 20, logins=False))
    assert noticed(result), summary(result)

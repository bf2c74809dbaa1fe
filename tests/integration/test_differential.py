"""A plain mongod and Thermocline get the same commands and must give the same answers.

``SEED`` and ``SECONDS`` in the environment choose another stream or a longer one.
"""

import os
from collections.abc import Callable

import pytest

from support.differential.run import SECOND_PROXY, Differential, make
from support.mongod import ReplicaSet
from support.processes import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def compare(
    fast: ReplicaSet, archive: ReplicaSet, oracle: ReplicaSet, seed: int, seconds: float
) -> None:
    seed, seconds = int(os.environ.get("SEED", seed)), float(os.environ.get("SECONDS", seconds))
    thermocline = make(fast, archive, 3)
    run = Differential(oracle, thermocline, seed)
    run.prepare()
    with thermocline.logs_on_failure(), thermocline:
        thermocline.services[SECOND_PROXY].start()
        thermocline.services[SECOND_PROXY].wait_ready()
        thermocline.wait_state("Active")
        tally = run.run(seconds)
        wait_until("something is evicted", lambda: thermocline.evicted() > 0, 60, 0.2)
        documents = run.verify()
        evicted = thermocline.evicted()
    print(f"seed {seed}: {documents} documents equal, {evicted} evicted\n{tally}")
    # A starved machine does little; one that does nothing compares nothing.
    assert tally.steps.total() > seconds, "hardly anything was compared"
    assert tally.events.total() > 0, "no change stream was compared"


def test_with_logins_other_keyfiles_and_the_archives_clock_ahead(
    secure_fast: ReplicaSet,
    secure_archive: ReplicaSet,
    make_replica_set: Callable[..., ReplicaSet],
) -> None:
    compare(secure_fast, secure_archive, make_replica_set("plain"), 1, 15)


def test_without_logins(
    fast: ReplicaSet, archive: ReplicaSet, make_replica_set: Callable[..., ReplicaSet]
) -> None:
    compare(fast, archive, make_replica_set("plain"), 2, 10)

"""Services die and come back, two at a time, while an application works: nothing lost, nothing back.

``SEED`` and ``SECONDS`` in the environment choose another run or a longer one.
"""

import os

import pytest

from support.chaos import POLICIES, Chaos
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import SERVICES, Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_every_service_dies_with_two_feeders_and_two_evictors(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    thermocline = Thermocline(secure_fast, secure_archive, POLICIES, environment=HASTE)
    chaos = Chaos(thermocline, int(os.environ.get("SEED", "1")))
    chaos.prepare()
    with thermocline.logs_on_failure(), thermocline:
        thermocline.wait_state("Active")
        chaos.run(float(os.environ.get("SECONDS", "60")))
        documents = chaos.verify()
    print(f"{documents} documents equal; {chaos.summary()}")
    disturbed = chaos.kills + chaos.freezes
    assert set(SERVICES) <= set(disturbed), f"not every service was disturbed: {disturbed}"

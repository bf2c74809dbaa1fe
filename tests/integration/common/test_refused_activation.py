"""What a person sees where a policy can't take effect, and that mending it is all it takes."""

import json
from collections.abc import Callable

import pytest

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

pytestmark = pytest.mark.integration


def test_a_policy_waits_for_its_index_and_says_which(
    make_replica_set: Callable[..., ReplicaSet],
) -> None:
    fast, archive = make_replica_set("fast"), make_replica_set("archive")
    with archive.client() as client:
        client["shop"]["orders"].insert_one({"at": 1})
        client["shop"].create_collection("log", capped=True, size=4096)
        policies = [
            {"namespace": "shop.orders", "ageField": "at", "maxAge": "30d"},
            {"namespace": "shop.log", "keep": "All"},
        ]
        thermocline = Thermocline(fast, archive, policies)
        try:
            thermocline.start(only=["feeder"], wait=False)
            feeder = thermocline.services["feeder"]

            def told(text: str) -> bool:
                return text in json.dumps(feeder.status(), ensure_ascii=False)

            wait_until("index named", lambda: told("no full index that starts with it"), 60, 0.2)
            assert told("spec.collections[0].ageField")
            assert told("createIndex(")
            wait_until("capped named", lambda: told("spec.collections[1].namespace"), 60, 0.2)
            assert told("is capped")
            assert (thermocline.coverage("shop.orders") or {}).get("state") != "Active"
            client["shop"]["orders"].create_index("at")
            thermocline.wait_state("Active", "shop.orders", 60)
            wait_until("problem gone", lambda: not told("no full index"), 15, 0.2)
            assert (thermocline.coverage("shop.log") or {}).get("state") != "Active"
        finally:
            thermocline.stop()

"""The feeder's process with logins on, the tiers' keyfiles different and the archive's clock ahead."""

import uuid
from pathlib import Path

import pytest
from bson.binary import Binary

from support.feeders import QUICK
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import ServiceProcess, Thermocline
from thermocline_common import names

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}
TOKEN = Binary.from_uuid(uuid.UUID(int=1))
ENVIRONMENT = {
    f"THERMOCLINE_TEST_FEEDER_{name.upper()}": str(getattr(QUICK, name))
    for name in (
        "look_back",
        "record_age",
        "record_scan",
        "marker_interval",
        "state_poll",
        "move_retry",
    )
}


def test_least_privileges_suffice_for_everything(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet, tmp_path: Path
) -> None:
    with secure_archive.client() as archive, secure_fast.client() as fast:
        archive["shop"]["orders"].create_index("t")
        archive["shop"]["orders"].create_index("u", unique=True, sparse=True)
        archive["shop"]["orders"].insert_many([{"_id": i, "u": i} for i in range(50)])
        # Not ours: it must be set aside, which needs a privilege too.
        fast["shop"]["orders"].insert_one({"_id": "foreign"})
        system = Thermocline(
            secure_fast, secure_archive, [POLICY], environment=ENVIRONMENT, directory=tmp_path
        )
        system.start(only=("feeder",))
        feeder: ServiceProcess = system.services["feeder"]
        try:
            system.wait_state("Active")
            fast["shop"]["orders"].insert_many([{"_id": i, "u": i} for i in range(100, 150)])
            fast[names.DATABASE][names.REMOVED].insert_one(
                {"_id": {"ns": NS, "id": 100}, "kind": "deleted", "token": TOKEN}
            )
            fast["shop"]["orders"].delete_one({"_id": 100})
            system.wait_applied()
            assert archive["shop"]["orders"].count_documents({}) == 99
            removed = fast[names.DATABASE][names.REMOVED]
            wait_until("records gone", lambda: removed.count_documents({}) == 0, 30)
            status = feeder.status()["feeder"]
            assert status["role"] == "owner"
            assert status["namespaces"][NS]["state"] == "Active"
            assert len(status["setAside"]) == 1
            text = feeder.metrics()
            assert "thermocline_feeder_owner 1.0" in text
            assert 'thermocline_feeder_namespaces{state="Active"} 1.0' in text
            system.manifest.change(mode="Passthrough")
            system.wait_state("Passthrough")
            wait_until("emptied", lambda: "orders" not in fast["shop"].list_collection_names(), 30)
            assert archive["shop"]["orders"].count_documents({}) == 99
            assert feeder.terminate() == 0
            found = archive[names.DATABASE][names.CHECKPOINT].find_one()
            assert found is not None
            assert "feeder" not in found
        finally:
            system.stop()
            print(feeder.process.tail(30))


def test_a_refused_collection_stays_in_passthrough_and_says_why(
    fast: ReplicaSet, archive: ReplicaSet, tmp_path: Path
) -> None:
    with archive.client() as client:
        client["shop"]["orders"].insert_one({"_id": 1})
        system = Thermocline(fast, archive, [POLICY], environment=ENVIRONMENT, directory=tmp_path)
        system.start(only=("feeder",))
        feeder = system.services["feeder"]
        try:
            wait_until("refused", lambda: "ageField" in str(feeder.status().get("problems")), 30)
            assert "createIndex" in str(feeder.status()["problems"])
            assert feeder.status()["feeder"]["namespaces"][NS]["state"] == "Passthrough"
            assert client[names.DATABASE][names.TIERED].find_one({"_id": NS}) is None
            client["shop"]["orders"].create_index("t")
            system.wait_state("Active")
            wait_until("solved", lambda: not feeder.status()["problems"], 30)
        finally:
            system.stop()


def test_a_tier_that_is_down_is_said_and_waited_for(
    make_replica_set: object, tmp_path: Path
) -> None:
    assert callable(make_replica_set)
    fast, archive = make_replica_set("fast"), make_replica_set("archive")
    with archive.client() as client:
        client["shop"]["orders"].create_index("t")
    fast.members[0].kill()
    system = Thermocline(fast, archive, [POLICY], environment=ENVIRONMENT, directory=tmp_path)
    feeder = system.services["feeder"]
    feeder.start()
    try:
        wait_until("said", lambda: "fast" in feeder.status().get("problems", {}), 40)
        assert not feeder.ready()
        fast.members[0].start()
        system.wait_state("Active")
        fast.members[0].kill()
        wait_until("said again", lambda: "fast" in feeder.status().get("problems", {}), 40)
        fast.members[0].start()
        with fast.client() as client:
            client["shop"]["orders"].insert_one({"_id": 1})
        system.wait_applied()
        wait_until("solved", lambda: not feeder.status()["problems"], 30)
        assert feeder.process.running
    finally:
        system.stop()

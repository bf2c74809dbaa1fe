"""Drivers send the time of their session with writes, too; the archive, whose clock is another, never gets it."""

from collections.abc import Callable

import pytest
from pymongo import IndexModel, UpdateOne

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_writes_of_a_causal_session_after_a_switch(
    make_replica_set: Callable[..., ReplicaSet],
) -> None:
    fast, archive = make_replica_set("fast"), make_replica_set("archive")
    fast.push_clock(1_000)  # whatever F says is in A's future
    policies = [{"namespace": "shop.items", "keep": "All"}]
    thermocline = Thermocline(fast, archive, policies, evictor="Paused", environment=HASTE)
    with thermocline.logs_on_failure():
        try:
            thermocline.start(only=("feeder", "proxy", "warmer"))
            thermocline.wait_state("Active")
            with thermocline.client() as client, client.start_session() as session:
                items = client["shop"]["items"]
                items.insert_one({"_id": 0, "n": 0}, session=session)
                thermocline.manifest.change(mode="Passthrough")
                thermocline.wait_state("Passthrough")
                # In raw commands, because not every version of the driver sends it with every write.
                concern = {"readConcern": {"afterClusterTime": session.operation_time}}

                def run(**command: object) -> None:
                    assert client["shop"].command({**command, **concern}, session=session)["ok"]

                run(insert="items", documents=[{"_id": 1, "n": 0}])
                run(update="items", updates=[{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}])
                run(findAndModify="items", query={"_id": 0}, update={"$inc": {"n": 1}})
                run(delete="items", deletes=[{"q": {"_id": 7}, "limit": 1}])
                items.insert_many([{"_id": 2, "n": 1}, {"_id": 3, "n": 1}], session=session)
                items.bulk_write([UpdateOne({"_id": 3}, {"$set": {"n": 1}})], session=session)
                items.create_indexes([IndexModel("n")], session=session)
                assert items.count_documents({"n": 1}, session=session) == 4
                thermocline.manifest.change(mode="Active")
                thermocline.wait_state("Active")
                # Unique indexes and drops run on the archive alone.
                items.create_index("u", unique=True, sparse=True, session=session)
                items.insert_many([{"_id": 4}, {"_id": 5}], session=session)
                items.drop(session=session)
                items.insert_many([{"_id": 6}, {"_id": 7}], session=session)
                assert items.count_documents({}, session=session) == 2
        finally:
            thermocline.stop()

"""Collections join, leave and change their policy while writers go on: nothing fails, nothing is lost or done twice."""

import datetime as dt
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError

from support.cutting import CuttingRelay
from support.hand_feeder import utc
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

pytestmark = pytest.mark.integration
NS = "shop.orders"
BY_T: dict[str, Any] = {"namespace": NS, "ageField": "t", "maxAge": "30d"}
BY_U: dict[str, Any] = {"namespace": NS, "ageField": "u", "maxAge": "30d"}
WHOLE: dict[str, Any] = {"namespace": NS, "keep": "All"}
COUNTERS = 20
WRITERS = 3


def order(identity: str, days: float) -> dict[str, Any]:
    when = utc(days * 86_400)
    return {"_id": identity, "t": when, "u": when + dt.timedelta(seconds=1), "n": 0}


@pytest.fixture
def running(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    with archive.client() as client:
        client.shop.orders.create_index("t")
        client.shop.orders.create_index("u")
        for writer in range(WRITERS):
            client.shop.orders.insert_many(
                [order(f"{writer}/c{i}", 3 * i) for i in range(COUNTERS)]
            )
    # A starved machine may take longer than a short lease to renew it.
    system = Thermocline(fast, archive, [BY_T], lease="2s", environment=HASTE)
    try:
        system.start()
        with system.logs_on_failure():
            yield system
    finally:
        system.stop()


@dataclass
class Writer:
    """Counters of its own, hot and cold ones, and inserts: each write acknowledged once must be there once."""

    number: int
    port: int
    stop: threading.Event
    counts: Counter[str] = field(default_factory=Counter)
    inserted: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        concern = WriteConcern("majority")
        with MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{self.port}/") as client:
            orders = client.shop.get_collection("orders", write_concern=concern)
            step = 0
            while not self.stop.is_set():
                step += 1
                try:
                    self.one(orders, step)
                except PyMongoError as error:
                    self.failed.append(f"{time.monotonic():.1f} {step}: {error!r}"[:300])
                time.sleep(0.02)

    def one(self, orders: Any, step: int) -> None:
        identity = f"{self.number}/c{step % COUNTERS}"
        if step % 4 == 0:
            name = f"{self.number}/i{step}"
            orders.insert_one(order(name, step % 60))
            self.inserted.add(name)
        elif step % 4 == 1:
            after = orders.find_one_and_update(
                {"_id": identity}, {"$inc": {"n": 1}}, return_document=True
            )
            self.counts[identity] += 1
            if after is None or after["n"] != self.counts[identity]:
                self.wrong.append(f"{identity}: {after}, not {self.counts[identity]}")
        else:
            result = orders.update_one({"_id": identity}, {"$inc": {"n": 1}})
            self.counts[identity] += 1
            if result.matched_count != 1:
                self.wrong.append(f"{identity}: matched {result.raw_result}")


def test_modes_and_policies_change_under_load(running: Thermocline) -> None:
    running.wait_state("Active")
    stop = threading.Event()
    with CuttingRelay(running.port) as relay:
        writers = [Writer(i, relay.port, stop) for i in range(WRITERS)]
        threads = [threading.Thread(target=writer.run) for writer in writers]
        for thread in threads:
            thread.start()
        try:
            change(running)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        assert relay.cut > 0
    assert [text for writer in writers for text in writer.failed] == []
    assert [text for writer in writers for text in writer.wrong] == []
    assert all(writer.inserted for writer in writers)
    running.wait_applied()
    with running.archive.client() as there, running.client() as client:
        for found in (there.shop.orders.find(), client.shop.orders.find()):
            documents = {d["_id"]: d["n"] for d in found}
            wanted = {f"{w.number}/c{i}": 0 for w in writers for i in range(COUNTERS)}
            for writer in writers:
                wanted |= writer.counts | dict.fromkeys(writer.inserted, 0)
            assert documents == wanted


def change(running: Thermocline) -> None:
    """Each step once the one before has come through."""
    manifest = running.manifest
    manifest.change(mode="Passthrough")
    running.wait_state("Passthrough", NS)
    manifest.change(mode="Active")
    running.wait_state("Active", NS)
    manifest.change(collections=[])
    wait_until("no coverage", lambda: gone(running), 90, 0.2)
    manifest.change(collections=[BY_T])
    running.wait_state("Active", NS)
    for policy in (BY_U, WHOLE, BY_T):
        manifest.change(collections=[policy])
        wait_until(f"{policy}", partial(in_force, running, policy), 90, 0.2)
        time.sleep(2.0)


def gone(running: Thermocline) -> bool:
    document = running.coverage(NS)
    return document is None or document["state"] == "Passthrough"


def in_force(running: Thermocline, policy: dict[str, Any]) -> bool:
    document = running.coverage(NS) or {}
    wanted = (policy.get("ageField"), policy.get("keep"))
    return (document.get("ageField"), document.get("keep")) == wanted


def test_a_writer_that_bypasses_the_proxy_is_named(running: Thermocline) -> None:
    running.wait_state("Active")
    feeder = running.services["feeder"]
    with running.archive.client() as client:
        client.shop.orders.update_one({"_id": "0/c1"}, {"$inc": {"n": 1}})

    def seen() -> bool:
        status = feeder.status()
        return status.get("feeder", {}).get("foreignWrites", {}).get(NS) == 1 and NS in status[
            "problems"
        ].get(f"foreign {NS}", "")

    wait_until("the foreign write is reported", seen, 60, 0.2)

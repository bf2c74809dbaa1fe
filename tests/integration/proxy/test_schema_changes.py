"""Drops, renames and unique indexes on tiered collections, through real services under load."""

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

pytestmark = pytest.mark.integration

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
ORDERS, OTHERS, PRODUCTS = "shop.orders", "shop.others", "shop.products"
COLLECTIONS = [
    {"namespace": ORDERS, "ageField": "t", "maxAge": "30d"},
    {"namespace": OTHERS, "ageField": "t", "maxAge": "30d"},
    {"namespace": PRODUCTS, "keep": "All"},
]
QUICK = {
    "THERMOCLINE_TEST_FEEDER_STATE_POLL": "0.2",
    "THERMOCLINE_TEST_FEEDER_MOVE_RETRY": "1",
    "THERMOCLINE_TEST_FEEDER_REQUEST_AGE": "8",
    "THERMOCLINE_TEST_FEEDER_REQUEST_REST": "1",
    "THERMOCLINE_TEST_FEEDER_TAKEOVER_AFTER": "4",
    "THERMOCLINE_TEST_FEEDER_HEARTBEAT_INTERVAL": "1",
}


def document(number: int, **fields: Any) -> dict[str, Any]:
    """One a day, so that every other tier has some."""
    return {"_id": number, "t": NOW - dt.timedelta(days=number % 60), "n": number, **fields}


@pytest.fixture(scope="module")
def tiers(mongod_binary: str) -> Iterator[tuple[ReplicaSet, ReplicaSet]]:
    with ReplicaSet("fast") as fast, ReplicaSet("archive") as archive:
        yield fast, archive


@pytest.fixture
def thermocline(tiers: tuple[ReplicaSet, ReplicaSet]) -> Iterator[Thermocline]:
    fast, archive = tiers
    for replica_set in tiers:
        with replica_set.client() as client:
            for name in client.list_database_names():
                if name not in ("admin", "config", "local"):
                    client.drop_database(name)
    with archive.client() as client:
        for name in ("orders", "others"):
            client.shop[name].create_index("t")
            client.shop[name].insert_many([document(n, of=name) for n in range(60)])
        client.shop.products.insert_many([{"_id": n} for n in range(10)])
    made = Thermocline(fast, archive, COLLECTIONS, environment=QUICK, lease="400ms")
    with made, made.logs_on_failure():
        made.wait_state("Active")
        yield made


def states(thermocline: Thermocline, *namespaces: str) -> list[str]:
    found = (thermocline.coverage(namespace) for namespace in namespaces)
    return ["Passthrough" if document is None else document["state"] for document in found]


class Load:
    """Writers that number their documents and remember which were acknowledged, until told to stop."""

    def __init__(self, thermocline: Thermocline, name: str, writers: int = 2) -> None:
        self.acknowledged: dict[str, tuple[float, float]] = {}
        """When each insert was sent, and when its answer came."""
        self.in_doubt: set[str] = set()
        self.failures: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(thermocline, name, f"{name}-{writer}"))
            for writer in range(writers)
        ]

    def _write(self, thermocline: Thermocline, name: str, prefix: str) -> None:
        number = 0
        with thermocline.client() as client:
            while not self._stop.is_set():
                number += 1
                key = f"{prefix}-{number}"
                sent = time.monotonic()
                try:
                    client.shop[name].insert_one({"_id": key, "t": NOW, "n": number})
                except PyMongoError as error:
                    self.in_doubt.add(key)
                    self.failures.append(error)
                else:
                    self.acknowledged[key] = (sent, time.monotonic())
                time.sleep(0.01)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def check_after_drop(
    load: Load, found: set[str], dropped: tuple[float, float], *, exists: bool = True
) -> None:
    """What was acknowledged before the drop began is gone; what was sent after its answer is there."""
    began, ended = dropped
    before = {k for k, (_, answered) in load.acknowledged.items() if answered < began}
    after = {k for k, (sent, _) in load.acknowledged.items() if sent > ended}
    assert not before & found, sorted(before & found)[:10]
    assert exists is False or after <= found, sorted(after - found)[:10]


def test_a_drop_under_load_and_the_collection_that_follows(thermocline: Thermocline) -> None:
    """M5, H23: what was acknowledged before is gone for good, what came after is all there."""
    with thermocline.client() as client, Load(thermocline, "orders") as load:
        time.sleep(1.0)
        began = time.monotonic()
        client.shop.orders.drop()
        dropped = (began, time.monotonic())
        time.sleep(1.5)
        assert "orders" in client.shop.list_collection_names(), "the writers made it anew"
        # What the application does next; the namespace stays in Passthrough until there is the index.
        client.shop.orders.create_index("n", name="by n")
        blocked = thermocline.services["feeder"].status()["feeder"]["namespaces"][ORDERS]
        assert "createIndex" in (blocked["blockedOn"] or ""), blocked
        client.shop.orders.create_index("t")
        thermocline.wait_state("Active", ORDERS)
        time.sleep(1.0)
    with thermocline.client() as client:
        found = {d["_id"] for d in client.shop.orders.find({}, {"_id": 1})}
        assert not found & set(range(60)), "old documents came back"
        check_after_drop(load, found, dropped)
        assert not load.failures, load.failures[:3]
        assert client.shop.others.count_documents({}) == 60
    thermocline.wait_applied()
    with thermocline.archive.client() as archive:
        assert {d["_id"] for d in archive.shop.orders.find({}, {"_id": 1})} == found
    status = thermocline.services["feeder"].status()["feeder"]
    assert status["foreignWrites"] == {}, status["foreignWrites"]

"""TTL indexes on tiered collections, through real services: both tiers forget alike, and nobody complains."""

import datetime as dt
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

pytestmark = pytest.mark.integration

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
OLD = NOW - dt.timedelta(days=40)
HOUR = dt.timedelta(hours=1)
ORDERS, SESSIONS, CARTS = "shop.orders", "shop.sessions", "shop.carts"
COLLECTIONS = [
    {"namespace": ORDERS, "ageField": "t", "maxAge": "30d"},
    {"namespace": SESSIONS, "keep": "All"},
    {"namespace": CARTS, "keep": "All"},
]
QUICK = {
    "THERMOCLINE_TEST_FEEDER_STATE_POLL": "0.2",
    "THERMOCLINE_TEST_FEEDER_MOVE_RETRY": "1",
    "THERMOCLINE_TEST_FEEDER_REQUEST_REST": "1",
}
Client = MongoClient[dict[str, Any]]


@pytest.fixture
def thermocline(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    """Two have TTL indexes from the beginning; one is the index on the age field itself."""
    with archive.client() as client:
        client.shop.orders.create_index("t", expireAfterSeconds=90 * 86_400)
        client.shop.sessions.create_index("e", expireAfterSeconds=0)
        client.shop.orders.insert_many([{"_id": n, "t": NOW, "n": n} for n in range(20)])
        client.shop.orders.insert_many([{"_id": n, "t": OLD, "n": n} for n in range(20, 40)])
        client.shop.sessions.insert_many([{"_id": n, "e": NOW + HOUR} for n in range(10)])
    made = Thermocline(fast, archive, COLLECTIONS, environment=QUICK)
    with made, made.logs_on_failure():
        warm(made)
        yield made
        warm(
            made
        )  # a warmer that is stopped in the middle waits for the feeder, which is gone by then


def warm(thermocline: Thermocline) -> None:
    """All active, and covered."""
    thermocline.wait_state("Active")
    wait_until("a floor", lambda: "floor" in (thermocline.coverage(ORDERS) or {}), 60)
    for namespace in (SESSIONS, CARTS):
        wait_until("whole", partial(whole, thermocline, namespace), 60)


def whole(thermocline: Thermocline, namespace: str) -> bool:
    return bool((thermocline.coverage(namespace) or {}).get("complete"))


def ids(client: Client, name: str, **query: Any) -> set[Any]:
    return {document["_id"] for document in client.shop[name].find(query, {"_id": 1})}


def lacks(client: Client, name: str, query: dict[str, Any]) -> bool:
    return not ids(client, name, **query)


def rest(thermocline: Thermocline) -> None:
    """No pass over the fast tier's documents until :func:`next_pass`."""
    assert thermocline.services["evictor"].terminate() == 0


def next_pass(thermocline: Thermocline) -> None:
    """The evictor goes through the rules when it starts, and then once a minute."""
    evictor = thermocline.services["evictor"]
    evictor.start()
    evictor.wait_ready()


def assert_content(thermocline: Thermocline) -> None:
    """Nothing is wrong with any namespace."""
    feeder = thermocline.services["feeder"].status()
    assert feeder["feeder"]["foreignWrites"] == {}
    assert feeder["feeder"]["deletedByHand"] == 0
    assert feeder["problems"] == {}
    evictor = thermocline.services["evictor"].status()
    assert not any(n["mismatches"] for n in evictor["evictor"]["namespaces"].values())
    assert evictor["problems"] == {}


def test_both_tiers_forget_alike(thermocline: Thermocline) -> None:
    with (
        thermocline.client() as client,
        thermocline.fast.client() as fast,
        thermocline.archive.client() as archive,
        client.shop.sessions.watch() as stream,
    ):
        rest(thermocline)
        # A rule that is made while the collection is active.
        client.shop.carts.create_index("f", expireAfterSeconds=3_600)
        due = {f"due-{n}" for n in range(5)}
        client.shop.sessions.insert_many([{"_id": key, "e": NOW - HOUR} for key in sorted(due)])
        client.shop.sessions.insert_one({"_id": "text", "e": "2001-01-01"})
        client.shop.carts.insert_many([{"_id": key, "f": NOW - 2 * HOUR} for key in sorted(due)])
        client.shop.carts.insert_one({"_id": "not yet", "f": NOW})
        client.shop.orders.insert_one({"_id": "due-0", "t": NOW - dt.timedelta(days=91)})
        thermocline.wait_applied()
        # The archive acts within a second. Its deletes are nobody's who goes round the proxy.
        gone = {"_id": {"$in": sorted(due)}}
        for name in ("sessions", "carts", "orders"):
            wait_until(f"{name} expired", partial(lacks, archive, name, gone), 30)
        next_pass(thermocline)
        left = set(range(10)) | {"text"}
        wait_until("expired in the fast tier", lambda: ids(fast, "sessions") == left, 30)
        wait_until("carts too", lambda: ids(fast, "carts") == {"not yet"}, 30)
        wait_until("orders too", lambda: not ids(fast, "orders", _id="due-0"), 30)
        assert ids(client, "sessions") == ids(archive, "sessions") == left
        assert ids(client, "carts") == ids(archive, "carts") == {"not yet"}
        assert ids(client, "orders") == ids(archive, "orders") == set(range(40))
        for name in ("sessions", "carts", "orders"):
            assert client.shop[name].find_one({"_id": "due-0"}) is None
        # An application's change stream shows what a TTL index of one MongoDB would show.
        events: list[tuple[str, Any]] = []
        while len(events) < 11:
            event = stream.next()
            events.append((event["operationType"], event["documentKey"]["_id"]))
        assert sorted(events[:6]) == sorted(("insert", key) for key in due | {"text"})
        assert sorted(events[6:]) == sorted(("delete", key) for key in due)
        # An _id that expired may be used again.
        client.shop.sessions.insert_one({"_id": "due-1", "e": NOW + HOUR})
        thermocline.wait_applied()
        assert ids(archive, "sessions") == ids(client, "sessions") == left | {"due-1"}
        assert_content(thermocline)


def test_a_rule_that_is_dropped_or_put_off_leaves_the_tiers_equal(
    thermocline: Thermocline,
) -> None:
    """Of what the archive has removed already, and the fast tier not yet, nothing is left for good."""
    with (
        thermocline.client() as client,
        thermocline.fast.client() as fast,
        thermocline.archive.client() as archive,
    ):
        rest(thermocline)
        client.shop.orders.create_index("f", expireAfterSeconds=0)
        client.shop.sessions.insert_one({"_id": "due", "e": NOW - HOUR})
        client.shop.orders.insert_one({"_id": "due", "t": NOW, "f": NOW - HOUR})
        thermocline.wait_applied()
        for name in ("sessions", "orders"):
            wait_until(f"{name} expired", partial(lacks, archive, name, {"_id": "due"}), 30)
            assert ids(fast, name, _id="due")
        client.shop.sessions.drop_index("e_1")
        index = {"name": "f_1", "expireAfterSeconds": 10**8}
        client.shop.command("collMod", "orders", index=index)
        for namespace in (SESSIONS, ORDERS):
            assert client.shop[namespace.split(".")[1]].find_one({"_id": "due"}) is None
            thermocline.wait_state("Active", namespace)
        for name in ("sessions", "orders"):
            assert client.shop[name].find_one({"_id": "due"}) is None
            assert ids(client, name) == ids(archive, name)
        next_pass(thermocline)
        assert_content(thermocline)

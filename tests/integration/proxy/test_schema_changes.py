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
from pymongo.server_api import ServerApi

from support import accounts
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
    made = Thermocline(fast, archive, COLLECTIONS, environment=QUICK, lease="1s")
    with made, made.logs_on_failure():
        made.wait_state("Active")
        yield made


def states(thermocline: Thermocline, *namespaces: str) -> list[str]:
    found = (thermocline.coverage(namespace) for namespace in namespaces)
    return ["Passthrough" if document is None else document["state"] for document in found]


class Load:
    """Writers that number their documents and remember which were acknowledged, until told to stop."""

    def __init__(self, thermocline: Thermocline, name: str, writers: int = 2) -> None:
        self.name = name
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


def test_a_unique_index_over_hot_and_cold_documents(thermocline: Thermocline) -> None:
    """M9: duplicates across the tiers are refused in MongoDB's words; without any, it is built in both."""
    with thermocline.client() as client, thermocline.fast.client() as fast:
        orders = client.shop.orders
        orders.update_one({"_id": 1}, {"$set": {"k": "same"}})
        thermocline.wait_applied()
        with thermocline.archive.client() as archive:
            assert archive.shop.orders.count_documents({"_id": 59}) == 1
        wait_until("warm", lambda: (thermocline.coverage(ORDERS) or {}).get("floor"), 30)
        orders.update_one({"_id": 59}, {"$set": {"k": "same"}})
        with pytest.raises(DuplicateKeyError) as caught:
            orders.create_index("k", unique=True, name="k", sparse=True)
        details: dict[str, Any] = dict(caught.value.details or {})
        assert (details["keyPattern"], details["keyValue"]) == ({"k": 1}, {"k": "same"})
        thermocline.wait_state("Active", ORDERS)
        assert "k" not in orders.index_information()
        orders.update_one({"_id": 59}, {"$unset": {"k": 1}})
        assert orders.create_index("k", unique=True, name="k", sparse=True) == "k"
        thermocline.wait_state("Active", ORDERS)
        assert "k" in fast.shop.orders.index_information()
        assert (thermocline.coverage(ORDERS) or {})["unique"][0]["name"] == "k"
        epoch = (thermocline.coverage(ORDERS) or {})["activatedAt"]
        # As applications do at each start: nothing is switched for what is there already.
        orders.create_index("k", unique=True, name="k", sparse=True)
        assert (thermocline.coverage(ORDERS) or {})["activatedAt"] == epoch
        with pytest.raises(DuplicateKeyError):
            orders.update_one({"_id": 59}, {"$set": {"k": "same"}})
        orders.drop_index("k")
        thermocline.wait_state("Active", ORDERS)
        assert "k" not in fast.shop.orders.index_information()
        orders.update_one({"_id": 59}, {"$set": {"k": "same"}})
        with pytest.raises(OperationFailure) as refused:
            client.shop.command("collMod", "orders", index={"name": "nothing", "unique": True})
        assert refused.value.code == 27
        thermocline.wait_state("Active", ORDERS)
        assert orders.count_documents({}) == 60


def test_indexes_and_options_change_without_a_switch(thermocline: Thermocline) -> None:
    with thermocline.client() as client, thermocline.fast.client() as fast:
        orders = client.shop.orders
        before = (thermocline.coverage(ORDERS) or {})["activatedAt"]
        orders.create_index("n", name="n")
        client.shop.command("collMod", "orders", index={"name": "n", "hidden": True})
        assert fast.shop.orders.index_information()["n"]["hidden"] is True
        orders.drop_index("n")
        assert "n" not in fast.shop.orders.index_information()
        orders.create_index("e", name="e")
        for seconds in (10**8, 10**7):
            client.shop.command(
                "collMod", "orders", index={"keyPattern": {"e": 1}, "expireAfterSeconds": seconds}
            )
        assert orders.index_information()["e"]["expireAfterSeconds"] == 10**7
        assert "expireAfterSeconds" not in fast.shop.orders.index_information()["e"]
        client.shop.command(
            "collMod", "orders", validator={"n": {"$type": "int"}}, validationAction="error"
        )
        with pytest.raises(OperationFailure) as caught:
            orders.insert_one({"_id": "invalid", "t": NOW, "n": "text"})
        assert caught.value.code == 121
        client.shop.command("collMod", "orders", validator={})
        for attempt in (
            lambda: orders.drop_index("nothing"),
            lambda: client.shop.command("collMod", "orders", index={"name": "no", "hidden": True}),
        ):
            with pytest.raises(OperationFailure) as caught:
                attempt()
            assert caught.value.code == 27
        assert (thermocline.coverage(ORDERS) or {})["activatedAt"] == before
        assert states(thermocline, *thermocline.namespaces) == ["Active"] * 3


def test_a_rename_keeps_every_acknowledged_write(thermocline: Thermocline) -> None:
    """M22, M34: also of what the feeder had not replayed, and over a target with removal records."""
    with thermocline.client() as client:
        client.shop.orders.delete_many({"_id": {"$lt": 10}})
        with Load(thermocline, "others") as load:
            time.sleep(1.0)
            began = time.monotonic()
            client.shop.others.rename("orders", dropTarget=True)
            ended = time.monotonic()
        found = {d["_id"]: d for d in client.shop.orders.find()}
        assert {n for n in found if isinstance(n, int)} == set(range(60))
        assert all(found[n]["of"] == "others" for n in range(60))
        before = {k for k, (_, answered) in load.acknowledged.items() if answered < began}
        after = {k for k, (sent, _) in load.acknowledged.items() if sent > ended}
        again = {d["_id"] for d in client.shop.others.find({}, {"_id": 1})}
        assert before <= found.keys()
        assert after <= again
        assert load.acknowledged.keys() <= found.keys() | again
        assert not load.failures, load.failures[:3]
        thermocline.wait_state("Active", ORDERS)
        for number in range(60):
            assert client.shop.orders.find_one({"_id": number}) is not None, number
        with pytest.raises(OperationFailure) as caught:
            client.shop.orders.rename("nowhere")
        assert (caught.value.code, "policy" in str(caught.value)) == (115, True)
        with pytest.raises(OperationFailure) as caught:
            client.admin.command("renameCollection", ORDERS, to="elsewhere.orders")
        assert (caught.value.code, "database" in str(caught.value)) == (115, True)
        with pytest.raises(OperationFailure) as caught:
            client.shop.command("convertToCapped", "orders", size=100_000)
        assert caught.value.code == 115
        with pytest.raises(OperationFailure) as caught:
            client.shop.orders.rename("products")
        assert caught.value.code == 48, "the archive's own refusal: the target exists"
        thermocline.wait_state("Active", PRODUCTS)
        assert client.shop.products.count_documents({}) == 10


def test_a_database_is_dropped_as_in_the_set_up_of_tests(thermocline: Thermocline) -> None:
    with thermocline.client() as client, thermocline.fast.client() as fast:
        client.shop.plain.insert_one({"_id": 1})
        client.other.plain.insert_one({"_id": 1})
        for turn in range(2):
            client.drop_database("shop")
            assert client.shop.list_collection_names() == []
            client.shop.orders.create_index("t")
            client.shop.orders.create_index("k", unique=True)
            client.shop.orders.insert_one({"_id": turn, "t": NOW, "k": 1})
            with pytest.raises(DuplicateKeyError):
                client.shop.orders.insert_one({"_id": "again", "t": NOW, "k": 1})
            client.shop.products.insert_one({"_id": turn})
            thermocline.wait_state("Active", ORDERS)
            thermocline.wait_state("Active", PRODUCTS)
            assert [d["_id"] for d in client.shop.orders.find()] == [turn]
            assert [d["_id"] for d in client.shop.products.find()] == [turn]
        assert client.other.plain.count_documents({}) == 1
        assert "plain" not in client.shop.list_collection_names()
        assert "k_1" in fast.shop.orders.index_information()
        # What is nowhere is said to be nowhere at once.
        thermocline.wait_state("Active", PRODUCTS)
        client.shop.products.drop()
        thermocline.wait_state("Active", PRODUCTS)
        began = time.monotonic()
        with pytest.raises(OperationFailure) as caught:
            client.shop.command("drop", "products")
        assert (caught.value.code, caught.value.details["errmsg"]) == (26, "ns not found")  # type: ignore[index]
        assert time.monotonic() - began < 0.5
        client.shop.create_collection("products")
        client.shop.products.create_index("sku", unique=True)
        client.shop.products.insert_one({"_id": "new", "sku": 1})
        thermocline.wait_state("Active", PRODUCTS)
        with pytest.raises(DuplicateKeyError):
            client.shop.products.insert_one({"_id": "other", "sku": 1})


def test_a_database_is_dropped_under_load(thermocline: Thermocline) -> None:
    """Of each of its collections: what was acknowledged before is gone for good, what came after is there."""
    with (
        thermocline.client() as client,
        Load(thermocline, "orders") as orders,
        Load(thermocline, "products") as products,
    ):
        time.sleep(1.0)
        began = time.monotonic()
        client.drop_database("shop")
        dropped = (began, time.monotonic())
        time.sleep(0.5)
        client.shop.orders.create_index("t")
        for namespace in (ORDERS, PRODUCTS):
            thermocline.wait_state("Active", namespace)
        time.sleep(0.5)
    thermocline.wait_applied()
    with thermocline.client() as client, thermocline.archive.client() as archive:
        for load in (orders, products):
            found = {d["_id"] for d in client.shop[load.name].find({}, {"_id": 1})}
            assert not found & set(range(60)), "old documents came back"
            check_after_drop(load, found, dropped)
            assert {d["_id"] for d in archive.shop[load.name].find({}, {"_id": 1})} == found
            # One MongoDB, too, takes no writes in the moment in which it drops a database.
            others = [e for e in load.failures if getattr(e, "code", None) != 215]
            assert not others, others[:3]
        assert "others" not in client.shop.list_collection_names()


def test_a_client_that_insists_on_its_api_version(thermocline: Thermocline) -> None:
    """What is in the version works; what isn't is MongoDB's own 323, and switches nothing."""
    api = ServerApi("1", strict=True)
    with MongoClient[dict[str, Any]](thermocline.uri(), server_api=api) as client:
        orders = client.shop.orders
        before = (thermocline.coverage(ORDERS) or {})["activatedAt"]
        with pytest.raises(OperationFailure) as caught:
            orders.rename("others", dropTarget=True)
        assert caught.value.code == 323
        assert (thermocline.coverage(ORDERS) or {})["activatedAt"] == before
        orders.create_index("n", unique=True, name="n")
        with pytest.raises(DuplicateKeyError):
            orders.update_one({"_id": 50}, {"$set": {"n": 51}})
        orders.drop_index("n")
        assert orders.update_one({"_id": 50}, {"$set": {"n": 51}}).modified_count == 1
        orders.drop()
        assert "orders" not in client.shop.list_collection_names()
        client.drop_database("shop")
        assert client.shop.list_collection_names() == []


def test_time_limits_and_what_is_shown_while_it_waits(thermocline: Thermocline) -> None:
    with thermocline.client() as client, thermocline.fast.client() as fast:
        # A transaction that stays open holds the switch up.
        with fast.start_session() as session:
            session.start_transaction()
            fast.shop.orders.update_one({"_id": 1}, {"$set": {"x": 1}}, session=session)
            shown: list[Any] = []

            def look() -> None:
                proxy = thermocline.services["proxy"].status()["proxy"]["schemaChanges"]
                feeder = thermocline.services["feeder"].status()["feeder"]["namespaces"][ORDERS]
                shown.append((proxy, feeder["requests"]))

            watching = threading.Timer(2.0, look)
            watching.start()
            with pytest.raises(OperationFailure) as caught:
                client.shop.command("drop", "orders", maxTimeMS=4_000)
            assert caught.value.code == 50
            watching.join()
            ((proxy, requests),) = shown
            assert (proxy[0]["command"], proxy[0]["namespaces"]) == ("drop", [ORDERS])
            assert requests == ["drop"]
            session.abort_transaction()
        assert thermocline.services["proxy"].status()["proxy"]["schemaChanges"] == []
        thermocline.wait_state("Active", ORDERS)
        wait_until(
            "no request", lambda: not (thermocline.coverage(ORDERS) or {}).get("requests"), 10
        )
        assert client.shop.orders.count_documents({}) == 60


def connect(uri: str) -> MongoClient[dict[str, Any]]:
    return MongoClient(uri, serverSelectionTimeoutMS=2_000)


def kill_in_the_middle(
    thermocline: Thermocline, service: str, attempt: Callable[[MongoClient[Any]], object], at: str
) -> threading.Thread:
    """Begin a command through a second proxy, and kill the service once the namespace is as wanted."""
    proxy = thermocline.services["second"]

    def run() -> None:
        with (
            contextlib.suppress(PyMongoError),
            connect(thermocline.uri(proxy.listen)) as client,
        ):
            attempt(client)

    thread = threading.Thread(target=run)
    thread.start()

    def reached() -> bool:
        coverage = thermocline.coverage(ORDERS) or {}
        requests = coverage.get("requests", [])
        granted = any(r.get("granted") for r in requests)
        return {
            "asked": bool(requests),
            "Pausing": coverage.get("state") == "Pausing",
            "Passthrough": bool(requests) and coverage.get("state") == "Passthrough",
            "granted": granted,
        }[at]

    with contextlib.suppress(TimeoutError):  # over before it was seen: killed afterwards
        wait_until(at, reached, 10, 0.002)
    thermocline.services[service].kill()
    return thread


@pytest.mark.parametrize("at", ["asked", "Pausing", "Passthrough", "granted"])
@pytest.mark.parametrize("victim", ["second", "feeder"])
def test_a_crash_in_the_middle_of_a_drop(thermocline: Thermocline, victim: str, at: str) -> None:
    """M30: dropped or not, traffic goes on, and the namespace is active again by itself."""
    thermocline.add_service("proxy", "second").wait_ready()
    with thermocline.client() as client, Load(thermocline, "orders") as load:
        time.sleep(0.5)
        began = time.monotonic()
        thread = kill_in_the_middle(thermocline, victim, lambda c: c.shop.orders.drop(), at)
        if victim == "feeder":
            thermocline.services["feeder"].start()
        thread.join(170)  # the proxy itself gives up after 180 s
        assert not thread.is_alive()
        ended = time.monotonic()
        client.shop.orders.create_index("t")
        thermocline.wait_state("Active", ORDERS, timeout=60)
        client.shop.orders.insert_one({"_id": "last", "t": NOW})
    with thermocline.client() as client:
        found = {d["_id"] for d in client.shop.orders.find({}, {"_id": 1})}
        if victim == "feeder" or not set(range(60)) <= found:
            check_after_drop(load, found, (began, ended))
            assert not set(range(60)) & found
        else:
            assert load.acknowledged.keys() <= found, "nothing was dropped"
        point = {k for k in found if client.shop.orders.find_one({"_id": k}) is not None}
        assert point == found
    thermocline.wait_applied()
    with thermocline.archive.client() as archive:
        assert {d["_id"] for d in archive.shop.orders.find({}, {"_id": 1})} == found


def test_other_proxies_read_every_write_through_a_switch(thermocline: Thermocline) -> None:
    """Each proxy learns of a new state at its own time: none may answer from the tier that was left."""
    second = thermocline.add_service("proxy", "second")
    second.wait_ready()
    stop = threading.Event()
    wrong: list[tuple[str, int, int]] = []
    counted = [0]

    def count() -> None:
        with thermocline.client() as writer, connect(thermocline.uri(second.listen)) as reader:
            number = 0
            while not stop.is_set():
                number += 1
                writer.shop.orders.update_one({"_id": 1}, {"$set": {"c": number}})
                by_id = (reader.shop.orders.find_one({"_id": 1}) or {}).get("c", -1)
                by_time = reader.shop.orders.find_one({"t": NOW - dt.timedelta(days=1)}) or {}
                for how, seen in (("id", by_id), ("time", by_time.get("c", -1))):
                    if seen < number:
                        wrong.append((how, number, seen))
                counted[0] = number

    thread = threading.Thread(target=count)
    thread.start()
    try:
        with thermocline.client() as client:
            client.shop.orders.create_index("k", unique=True, sparse=True, name="k")
            thermocline.wait_state("Active", ORDERS)
            client.shop.orders.drop_index("k")
            thermocline.wait_state("Active", ORDERS)
            time.sleep(1.0)
    finally:
        stop.set()
        thread.join(60)
    assert not wrong, wrong[:10]
    assert counted[0] > 20


def test_privileges_are_asked_for_before_anything_is_switched(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    with secure_archive.client() as client:
        client.shop.products.insert_one({"_id": 1})
    policy = {"namespace": PRODUCTS, "keep": "All"}
    made = Thermocline(secure_fast, secure_archive, [policy], environment=QUICK, lease="1s")
    with made, made.logs_on_failure():
        made.wait_state("Active")
        before = (made.coverage(PRODUCTS) or {})["activatedAt"]
        for name, roles in (("reader", ["read"]), ("writer", ["readWrite"])):
            login = accounts.Login(name, "secret")
            granted = [{"role": role, "db": "shop"} for role in roles]
            accounts.create_application_user(secure_fast, secure_archive, login, granted)
        uri = f"mongodb://reader:secret@127.0.0.1:{made.port}/"
        with connect(uri) as client:
            for attempt in (
                lambda: client.shop.drop_collection("products"),
                lambda: client.drop_database("shop"),
                lambda: client.shop.products.create_index("k", unique=True),
                lambda: client.shop.products.create_index("k"),
                lambda: client.shop.products.rename("other"),
            ):
                with pytest.raises(OperationFailure) as caught:
                    attempt()
                assert caught.value.code in (13, 115), caught.value
        with connect(f"mongodb://writer:secret@127.0.0.1:{made.port}/") as client:
            with pytest.raises(OperationFailure) as caught:
                client.drop_database("shop")
            assert caught.value.code == 13
            assert (made.coverage(PRODUCTS) or {})["activatedAt"] == before
            client.shop.products.create_index("k", unique=True)
            client.shop.products.drop()
            made.wait_state("Active")
            client.shop.products.insert_one({"_id": 2})
            assert [d["_id"] for d in client.shop.products.find()] == [2]

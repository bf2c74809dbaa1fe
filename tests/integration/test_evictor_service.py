"""Evictor, warmer and feeder as processes: killed, restarted, doubled, and with a tier down."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from support.hand_feeder import utc
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from thermocline_common.timing import TEST_VARIABLE

pytestmark = pytest.mark.integration
NS = "shop.orders"
SERVICES = ("feeder", "warmer", "evictor")
POLICIES = [
    {"namespace": NS, "ageField": "t", "maxAge": "30d"},
    {"namespace": "shop.products", "keep": "All"},
]
QUICK = {TEST_VARIABLE: "1", "THERMOCLINE_TEST_FEEDER_STATE_POLL": "0.2"}


def load(archive: ReplicaSet, count: int = 2_000) -> None:
    """Orders over a hundred days, and some products, straight into the archive."""
    with archive.client() as client:
        client.shop.orders.create_index("t")
        client.shop.orders.insert_many(
            [{"_id": i, "t": utc(i * 4_320), "v": 0, "pad": "x" * 200} for i in range(count)]
        )
        client.shop.products.insert_many([{"_id": i} for i in range(200)])


@pytest.fixture
def running(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    load(archive)
    system = Thermocline(fast, archive, POLICIES, pace="Auto", environment=QUICK)
    try:
        system.start(SERVICES)
        with system.logs_on_failure():
            yield system
    finally:
        system.stop()


def own(system: Thermocline, service: str, namespace: str = NS) -> dict[str, Any]:
    """A service's own status of one namespace."""
    status = system.services[service].status().get(service, {})
    found: dict[str, Any] = status.get("namespaces", {}).get(namespace, {})
    return found


def warm(system: Thermocline, namespace: str = NS) -> bool:
    document = system.coverage(namespace) or {}
    return (
        bool(document.get("complete"))
        or own(system, "warmer", namespace).get("warmPercent") == 100.0
    )


def contents(client: MongoClient[dict[str, Any]], collection: str = "orders") -> dict[Any, Any]:
    return {d["_id"]: d for d in client.shop[collection].find()}


def test_warmed_evicted_killed_and_restarted(running: Thermocline) -> None:
    wait_until("orders warm", lambda: warm(running), 90)
    wait_until("products warm", lambda: warm(running, "shop.products"), 60)
    with running.fast.client() as here, running.archive.client() as there:
        recent = {i for i, d in contents(there).items() if d["t"] >= utc(30 * 86_400)}
        assert recent <= set(contents(here))
        assert set(contents(here, "products")) == set(range(200))
        floor = (running.coverage(NS) or {})["floor"]
        assert floor <= utc(30 * 86_400 - 60)

        # Old documents arrive; the evictor is killed over and over while it removes them.
        here.shop.orders.insert_many(
            [{"_id": f"old{i}", "t": utc((40 + i / 100) * 86_400)} for i in range(600)]
        )
        for _ in range(4):
            time.sleep(1.5)
            running.services["evictor"].kill()
            running.services["warmer"].kill()
            running.services["evictor"].start()
            running.services["warmer"].start()

        def gone() -> bool:
            return here.shop.orders.count_documents({"_id": {"$regex": "^old"}}) <= 600 * 0.5

        wait_until("half of the old ones evicted", gone, 90)
        running.wait_applied()
        assert len(contents(there)) == 2_600
        assert recent <= set(contents(here)) | {
            i for i in recent if contents(there)[i]["t"] < utc(30 * 86_400)
        }
        for service in ("evictor", "warmer"):
            running.services[service].wait_ready()
            assert running.services[service].terminate() == 0


def test_status_and_metrics(running: Thermocline) -> None:
    wait_until("orders warm", lambda: warm(running), 90)
    with running.fast.client() as here:
        here.shop.orders.insert_many([{"_id": f"old{i}", "t": utc(9e6)} for i in range(30)])
    wait_until("evicted", lambda: own(running, "evictor").get("evicted") == 30, 60)
    status = own(running, "evictor")
    assert status["announced"] == status["confirmed"] == 30
    assert status["mismatches"] == 0
    assert status["mode"] == "Running"
    wait_until("a look for the oldest", lambda: own(running, "evictor")["oldestResident"], 30)
    warmer = own(running, "warmer")
    assert warmer["warmPercent"] == 100.0
    assert warmer["copied"] > 500
    assert own(running, "warmer", "shop.products")["complete"]
    assert warmer["parity"] == {"indexes": [], "options": [], "error": None}
    json.dumps(running.services["evictor"].status())
    metrics = running.services["evictor"].metrics()
    assert f'thermocline_evictor_deleted_total{{namespace="{NS}"}} 30.0' in metrics
    assert "thermocline_warmer_documents_copied_total" in running.services["warmer"].metrics()


def test_modes_are_followed_without_a_restart(running: Thermocline) -> None:
    wait_until("orders warm", lambda: warm(running), 90)
    running.manifest.change(evictor={"mode": "DryRun"})
    wait_until("dry run", lambda: own(running, "evictor").get("mode") == "DryRun", 30)
    with running.fast.client() as here:
        here.shop.orders.insert_many([{"_id": f"old{i}", "t": utc(9e6)} for i in range(30)])
        running.wait_applied()
        running.services["evictor"].kill()  # a pass is once a minute
        running.services["evictor"].start()
        wait_until("counted", lambda: own(running, "evictor").get("wouldEvict") == 30, 60)
        assert here.thermocline.removed.find_one() is None
        running.manifest.change(evictor={"mode": "Running"})
        wait_until(
            "evicted", lambda: not here.shop.orders.count_documents({"_id": {"$regex": "old"}}), 60
        )


def test_a_tier_that_is_down_is_told_and_work_goes_on_afterwards(
    make_replica_set: Callable[..., ReplicaSet],
) -> None:
    fast, archive = make_replica_set("fast"), make_replica_set("archive")
    load(archive, 500)
    system = Thermocline(fast, archive, POLICIES, pace="Auto", environment=QUICK)
    try:
        system.start(SERVICES)
        wait_until("orders warm", lambda: warm(system), 90)
        archive.members[0].kill()
        with fast.client() as here:
            here.shop.orders.insert_many([{"_id": f"old{i}", "t": utc(9e6)} for i in range(30)])

            def told() -> bool:
                return bool(system.services["evictor"].status().get("problems"))

            wait_until("told", told, 60)
            assert here.shop.orders.count_documents({"_id": {"$regex": "old"}}) == 30
            archive.members[0].start()
            wait_until(
                "evicted",
                lambda: not here.shop.orders.count_documents({"_id": {"$regex": "old"}}),
                90,
            )
        with archive.client() as there:
            assert len(contents(there)) == 530
    finally:
        system.stop()


def test_with_logins_other_keys_and_the_archives_clock_ahead(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    """Under the services' least privileges; without logins foreign cluster times are simply accepted."""
    load(secure_archive, 500)
    system = Thermocline(secure_fast, secure_archive, POLICIES, pace="Auto", environment=QUICK)
    try:
        system.start(SERVICES)
        with system.logs_on_failure():
            wait_until("orders warm", lambda: warm(system), 90)
            wait_until("products warm", lambda: warm(system, "shop.products"), 60)
            with secure_archive.client() as there:
                there.admin.command("createUser", "late", pwd="late", roles=["readAnyDatabase"])
            with secure_fast.client() as here:
                here.shop.orders.insert_many([{"_id": f"old{i}", "t": utc(9e6)} for i in range(30)])
                reader = here.shop.orders.find(batch_size=2)
                next(reader)
                reader.close()
            wait_until("evicted", lambda: own(system, "evictor").get("evicted") == 30, 60)
            wait_until("the new user", lambda: can_log_in(secure_fast, "late"), 30)
            for service in ("evictor", "warmer"):
                problems = system.services[service].status()["problems"]
                assert set(problems) <= {"foreign users"}, problems
    finally:
        system.stop()


def can_log_in(replica_set: ReplicaSet, user: str) -> bool:
    with MongoClient[dict[str, Any]](replica_set.user_uri(user, user)) as client:
        try:
            client.shop.orders.find_one()
        except OperationFailure:
            return False
    return True

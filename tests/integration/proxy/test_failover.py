"""The archive's primary changes under load: drivers' retries through the proxy stay exact."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from support.mongod import ReplicaSet
from support.services import Thermocline

pytestmark = pytest.mark.integration


@pytest.fixture
def three(mongod_binary: str) -> Iterator[ReplicaSet]:
    with ReplicaSet("three", 3) as archive:
        yield archive


@pytest.mark.parametrize("how", ["step down", "kill"])
def test_increments_are_executed_exactly_once(
    three: ReplicaSet, fast: ReplicaSet, how: str
) -> None:
    with Thermocline(fast, three, [], mode="Passthrough") as thermocline:
        uri = f"mongodb://127.0.0.1:{thermocline.port}/?w=majority"
        acknowledged = [0] * 4
        unclear: list[str] = []
        stop = threading.Event()

        def work(number: int) -> None:
            client: MongoClient[dict[str, Any]] = MongoClient(uri, serverSelectionTimeoutMS=30_000)
            with client:
                counters = client.shop.counters
                while not stop.is_set():
                    try:
                        counters.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)
                    except PyMongoError as error:
                        unclear.append(repr(error))
                        return
                    acknowledged[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        stop.wait(1.0)
        primary = three.primary()
        assert primary is not None
        if how == "kill":
            primary.kill()
        else:
            with three.member_client(primary) as client:
                client.admin.command("replSetStepDown", 20, force=True)
        stop.wait(6.0)
        seen = sum(acknowledged)
        stop.wait(1.0)
        stop.set()
        for thread in threads:
            thread.join(40)
        assert not unclear, unclear
        assert sum(acknowledged) > seen, "writes went on after the election"
        with three.client() as client:
            stored = {d["_id"]: d["n"] for d in client.shop.counters.find()}
        assert stored == dict(enumerate(acknowledged))

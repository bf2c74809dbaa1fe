"""Drivers' snapshot sessions: reads at one time outside transactions, through any proxy."""

import contextlib
import datetime as dt
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo.errors import OperationFailure

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline
from support.wire import Wire
from thermocline_common.coverage import Tier
from thermocline_proxy.commands.snapshots import is_archives, is_whole

pytestmark = pytest.mark.integration

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
SNAPSHOT = {"level": "snapshot"}
POLICIES = [
    {"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"},
    {"namespace": "shop.products", "keep": "All"},
]


def at(concern: Any) -> dict[str, Any]:
    return {"level": "snapshot", "atClusterTime": concern}


def test_snapshot_sessions(fast: ReplicaSet, archive: ReplicaSet) -> None:
    with archive.client() as direct:
        direct.shop.orders.create_index("t")
        direct.shop.orders.insert_many(
            [{"_id": n, "t": NOW - dt.timedelta(days=90), "p": n % 3} for n in range(40)]
        )
        direct.shop.products.insert_many([{"_id": n, "name": str(n)} for n in range(3)])
        direct.shop.plain.insert_one({"_id": 1, "v": 0})
    system = Thermocline(
        fast, archive, POLICIES, spec={"proxy": {"barrierTimeout": "2s"}}, environment=HASTE
    )
    with contextlib.ExitStack() as stack:
        stack.callback(system.stop)
        stack.enter_context(system.logs_on_failure())
        system.start(only=("feeder", "proxy"))
        system.wait_state("Active")
        with system.client(retryReads=False) as client:
            orders, plain = client.shop.orders, client.shop.plain
            orders.insert_one({"_id": "hot", "t": NOW, "p": 0})
            for first in (plain, orders):
                _in_a_session(client, first)
            _another_proxy(system)
            system.services["feeder"].process.pause()
            try:
                _while_replay_stands_still(client, system)
            finally:
                system.services["feeder"].process.resume()


def _in_a_session(client: Any, first: Any) -> None:
    """A session that begins while a stalled machine's replay is late is refused, and begun anew."""
    for left in reversed(range(10)):
        try:
            with client.start_session(snapshot=True) as session:
                _sees_one_time(client, session, first)
            return
        except OperationFailure as error:
            if not left or error.code not in (72, 262):
                raise
            client.shop.orders.update_one({"_id": "hot"}, {"$set": {"t": NOW}}, upsert=True)
            client.shop.orders.update_one({"_id": 5}, {"$set": {"p": 2}})
            client.shop.products.update_one({"_id": 0}, {"$set": {"name": "0"}})


def _sees_one_time(client: Any, session: Any, first: Any) -> None:
    """Whatever is written meanwhile, with the collection that comes first untiered or tiered."""
    orders, products, plain = client.shop.orders, client.shop.products, client.shop.plain
    v = plain.find_one({"_id": 1})["v"]
    count = orders.count_documents({})
    first.find_one({}, session=session)
    plain.update_one({"_id": 1}, {"$inc": {"v": 1}})
    orders.insert_one({"t": NOW, "p": 1})
    orders.update_one({"_id": 5}, {"$set": {"p": 99}})
    orders.delete_one({"_id": "hot"})
    products.update_one({"_id": 0}, {"$set": {"name": "new"}})
    assert plain.find_one({"_id": 1}, session=session)["v"] == v
    assert orders.count_documents({}, session=session) == count
    assert len(list(orders.find({}, batch_size=7, session=session))) == count
    assert orders.find_one({"_id": 5}, session=session)["p"] != 99
    assert orders.find_one({"_id": "hot"}, session=session) is not None
    assert 99 not in orders.distinct("p", session=session)
    join = {"from": "products", "localField": "p", "foreignField": "_id", "as": "joined"}
    stages = [{"$match": {"_id": 0}}, {"$lookup": join}]
    (joined,) = orders.aggregate(stages, session=session)
    assert [product["name"] for product in joined["joined"]] == ["0"]
    orders.update_one({"_id": "hot"}, {"$set": {"t": NOW}}, upsert=True)
    orders.update_one({"_id": 5}, {"$set": {"p": 2}})
    products.update_one({"_id": 0}, {"$set": {"name": "0"}})


def _another_proxy(system: Thermocline) -> None:
    other = system.add_service("proxy", "other proxy")
    other.wait_ready()
    assert other.listen is not None
    with Wire(system.port) as one, Wire(other.listen) as two:
        ask = {"find": "orders", "batchSize": 2, "$db": "shop"}
        first = one.ask({**ask, "readConcern": SNAPSHOT})["cursor"]
        assert is_whole(first["atClusterTime"])
        more = {
            "getMore": Int64(first["id"]),
            "collection": "orders",
            "batchSize": 2,
            "$db": "shop",
        }
        assert is_archives(two.ask(more)["cursor"]["atClusterTime"]), "no bare time of the archive"
        repeated = {**more, "readConcern": at(first["atClusterTime"])}
        assert two.ask(repeated)["cursor"]["nextBatch"], "as some drivers ask for each batch"
        again = two.ask({**ask, "readConcern": at(first["atClusterTime"])})["cursor"]
        assert again["firstBatch"] == first["firstBatch"]
        assert again["atClusterTime"] == first["atClusterTime"]
        plain = two.ask({"find": "plain", "readConcern": at(first["atClusterTime"]), "$db": "shop"})
        assert len(plain["cursor"]["firstBatch"]) == 1
        bare = one.ask({"ping": 1, "$db": "admin"})["operationTime"]
        for name in ("plain", "orders"):
            refused = two.ask({"find": name, "readConcern": at(bare), "$db": "shop"})
            assert (refused["ok"], refused["code"]) == (0, 72), refused
        explained = two.ask(
            {
                "explain": {"find": "orders", "readConcern": at(first["atClusterTime"])},
                "$db": "shop",
            }
        )
        assert explained["serverInfo"]["tier"] == Tier.ARCHIVE.value
        with_count = two.ask({"count": "plain", "readConcern": SNAPSHOT, "$db": "shop"})
        assert with_count["code"] == 72, "MongoDB's own answer"


def _while_replay_stands_still(client: Any, system: Thermocline) -> None:
    client.shop.orders.insert_one({"_id": "not replayed", "t": NOW})
    with client.start_session(snapshot=True) as session:
        client.shop.plain.find_one({}, session=session)
        assert client.shop.plain.find_one({"_id": 1}, session=session) is not None
        with pytest.raises(OperationFailure) as caught:
            client.shop.orders.find_one({"_id": "not replayed"}, session=session)
        assert caught.value.code == 72
        assert "begin a new one" in str(caught.value)
    with client.start_session(snapshot=True) as session:
        with pytest.raises(OperationFailure) as caught:
            client.shop.orders.find_one({"_id": "not replayed"}, session=session)
        assert caught.value.code == 262

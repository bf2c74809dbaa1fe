"""Three proxies as one service: behind a balancer, as a list, as SRV records, load-balanced; restarted in turn."""

import contextlib
import datetime as dt
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure

from support.balancer import Balancer
from support.fixtures import wipe
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import ServiceProcess, Thermocline
from support.wire import Closed, Wire, message

pytestmark = pytest.mark.integration

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
COLD = range(40)
HOT = range(100, 160)
WAYS = ("balancer", "list", "srv", "load-balanced")


class Trio:
    """Three proxies and their balancer, before a tiered collection with cold and hot documents."""

    def __init__(self, thermocline: Thermocline, balancer: Balancer) -> None:
        self.thermocline = thermocline
        self.balancer = balancer

    @property
    def proxies(self) -> list[ServiceProcess]:
        return [s for s in self.thermocline.services.values() if s.name == "proxy"]

    @property
    def ports(self) -> list[int]:
        return [int(proxy.listen or 0) for proxy in self.proxies]

    def client(self, way: str, **options: Any) -> MongoClient[dict[str, Any]]:
        """A client that finds the proxies this way; patient, because machines stall."""
        addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        uri = {
            "balancer": f"mongodb://127.0.0.1:{self.balancer.port}/",
            "list": f"mongodb://{addresses}/",
            "srv": "mongodb+srv://shop.example.test/?tls=false",
            "load-balanced": f"mongodb://127.0.0.1:{self.balancer.port}/?loadBalanced=true",
        }[way]
        return MongoClient(
            uri,
            serverSelectionTimeoutMS=120_000,
            heartbeatFrequencyMS=2_000,
            tz_aware=True,
            **options,
        )


@pytest.fixture(scope="module")
def trio(_plain_sets: tuple[ReplicaSet, ReplicaSet]) -> Iterator[Trio]:
    fast, archive = _plain_sets
    wipe(fast)
    wipe(archive)
    with archive.client() as direct:
        direct.shop.orders.create_index("at")
        documents = [{"_id": n, "at": NOW - dt.timedelta(days=90), "n": 0} for n in COLD]
        documents += [{"_id": n, "at": NOW - dt.timedelta(minutes=n), "n": 0} for n in HOT]
        direct.shop.orders.insert_many(documents)
        direct.shop.plain.insert_many([{"_id": n} for n in range(60)])
    policy = {"namespace": "shop.orders", "ageField": "at", "maxAge": "30d"}
    proxy = {"lease": "500ms", "drainTimeout": "6s"}
    thermocline = Thermocline(fast, archive, [policy], spec={"proxy": proxy})
    with thermocline, thermocline.logs_on_failure():
        others = [thermocline.add_service("proxy", f"proxy-{n}") for n in (2, 3)]
        for other in others:
            other.wait_ready()
        thermocline.wait_state("Active")
        wait_until("warm", lambda: (thermocline.coverage("shop.orders") or {}).get("floor"), 60)
        ports = [int(s.listen or 0) for s in thermocline.services.values() if s.name == "proxy"]
        with Balancer(ports) as balancer:
            yield Trio(thermocline, balancer)
    wipe(fast)
    wipe(archive)


@pytest.fixture
def resolved(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """``shop.example.test`` has an SRV record for each proxy."""

    class Record:
        def __init__(self, port: int) -> None:
            self.port, self.ttl = port, 600
            self.target = self

        def to_text(self, omit_final_dot: bool = True) -> str:
            return "localhost.example.test"

    class Answer(list[Any]):
        rrset = Record(0)

    def resolve(name: str, kind: str, *arguments: Any, **options: Any) -> Any:
        import dns.resolver

        if kind == "SRV":
            assert name == "_mongodb._tcp.shop.example.test"
            return Answer(Record(port) for port in trio.ports)
        raise dns.resolver.NoAnswer

    real = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        return real(
            "127.0.0.1" if host == "localhost.example.test" else host, *arguments, **options
        )

    monkeypatch.setattr("pymongo.synchronous.srv_resolver._resolve", resolve)
    monkeypatch.setattr("socket.getaddrinfo", look_up)


def everywhere(trio: Trio, work: Any, threads: int = 6) -> None:
    """Run ``work`` in several threads at once, so that a client opens connections to every proxy."""
    failed: list[Exception] = []

    def run(number: int) -> None:
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 (shown by the thread that waits)
            failed.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
    if failed:
        raise failed[0]


@pytest.mark.usefixtures("resolved")
@pytest.mark.parametrize("way", WAYS)
def test_whichever_proxy_a_connection_reaches(trio: Trio, way: str) -> None:
    recent = {"at": {"$gte": NOW - dt.timedelta(days=2)}, "_id": {"$lt": 1000}}
    with trio.client(way) as client:
        shop = client.shop

        def work(number: int) -> None:
            for query, ids in ((recent, HOT), ({"_id": {"$lt": 1000}}, (*COLD, *HOT))):
                found = [d["_id"] for d in shop.orders.find(query, sort=[("_id", 1)], batch_size=7)]
                assert found == list(ids)
            assert len(list(shop.plain.find({}, batch_size=9))) == 60
            with client.start_session() as session:
                for turn in range(3):

                    def transfer(session: Any, turn: int = turn) -> None:
                        one, two = 100 + number, 120 + (number + turn) % 10
                        shop.orders.update_one({"_id": one}, {"$inc": {"n": -1}}, session=session)
                        shop.orders.update_one({"_id": two}, {"$inc": {"n": 1}}, session=session)
                        listed = shop.orders.find(recent, session=session, batch_size=11)
                        assert len(list(listed)) == len(HOT)

                    session.with_transaction(transfer)

        everywhere(trio, work)
        total = sum(d["n"] for d in shop.orders.find({"_id": {"$in": list(HOT)}}))
        assert total == 0
        mark = f"{way}-{uuid.uuid4()}"
        with shop.orders.watch([], max_await_time_ms=200) as stream:
            everywhere(
                trio,
                lambda number: shop.orders.insert_one({"_id": f"{mark}-{number}", "at": NOW}),
            )
            seen = {next(stream)["documentKey"]["_id"] for _ in range(6)}
        assert seen == {f"{mark}-{number}" for number in range(6)}
        assert shop.orders.delete_many({"_id": {"$in": sorted(seen)}}).deleted_count == 6
        half = shop.orders.find(recent, batch_size=5)
        next(half)
        half.close()
    if way in ("balancer", "load-balanced"):
        assert all(trio.balancer.accepted.values()), "each proxy had its share"


def idle(replica_set: ReplicaSet, session: dict[str, Any]) -> list[str]:
    with replica_set.client() as direct:
        current = {"$currentOp": {"idleCursors": True, "idleSessions": True, "allUsers": True}}
        mine = {"lsid.id": session["id"], "type": {"$ne": "op"}}
        return sorted(o["type"] for o in direct.admin.aggregate([current, {"$match": mine}]))


def test_sessions_and_operations_are_killed_wherever_they_are(trio: Trio) -> None:
    one, other = (Wire(port, 60) for port in trio.ports[:2])
    fast, archive = trio.thermocline.fast, trio.thermocline.archive
    session = {"id": Binary.from_uuid(uuid.uuid4())}
    recent = {"at": {"$gte": NOW - dt.timedelta(days=2)}}
    with one, other, trio.client("list") as client:
        for query in (recent, {}):
            find = {"find": "orders", "filter": query, "batchSize": 2, "lsid": session}
            assert one.ask({**find, "$db": "shop"})["cursor"]["id"]
        insert = {"insert": "orders", "documents": [{"_id": "never", "at": NOW}], "lsid": session}
        begin = {"txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
        assert one.ask({**insert, **begin, "$db": "shop"})["ok"] == 1
        assert idle(fast, session) == ["idleCursor", "idleSession"]
        assert idle(archive, session) == ["idleCursor"]
        assert other.ask({"endSessions": [session], "$db": "admin"})["ok"] == 1
        assert other.ask({"killSessions": [session], "$db": "admin"})["ok"] == 1
        assert idle(fast, session) == idle(archive, session) == []

        for where in (fast, archive):
            mark = f"slow on {where.name}"
            filtered: dict[str, Any] = {"$where": "sleep(60000) || true"}
            if where is fast:
                filtered |= recent
            slow = {"find": "orders", "filter": filtered, "comment": mark, "$db": "shop"}
            one.send(message(slow))
            wanted = [{"$currentOp": {"allUsers": True}}, {"$match": {"command.comment": mark}}]

            def running(wanted: Any = wanted) -> list[Any]:
                return list(client.admin.aggregate(wanted))

            wait_until(f"{mark} runs", running, 30)
            tier = "fast" if where is fast else "archive"
            (operation,) = running()
            assert operation["shard"] == tier
            assert operation["opid"].startswith(f"{tier}/127.0.0.1:{where.members[0].port}:")
            shown = client.admin.command({"currentOp": 1, "command.comment": mark})["inprog"]
            assert [o["opid"] for o in shown] == [operation["opid"]]
            assert other.ask({"killOp": 1, "op": operation["opid"], "$db": "admin"})["ok"] == 1
            assert one.receive()[2]["code"] == 11601

            def over(running: Any = running) -> bool:
                return not running()

            wait_until(f"{mark} is over", over, 30)
        assert other.ask({"killOp": 1, "op": "nowhere", "$db": "admin"})["code"] == 2
        assert other.ask({"killOp": 1, "op": 12_345, "$db": "admin"})["ok"] == 1


def test_what_agents_and_shells_ask(trio: Trio) -> None:
    with trio.client("list") as client, trio.client("list", appname="agent") as agent:
        before = agent.admin.command("serverStatus")
        client.shop.plain.find_one({"_id": 1})
        names = {f"{socket.gethostname()}:{port}" for port in trio.ports}
        assert before["host"] in names
        assert (before["process"], before["version"]) == ("mongos", "6.0.5")
        assert before["connections"]["current"] >= 1
        assert "repl" not in before
        assert "wiredTiger" not in before
        assert before["thermocline"]["leaseAgeSeconds"] >= 0
        with Wire(trio.ports[0]) as wire:
            status = {"serverStatus": 1, "$db": "admin"}
            counted = [wire.ask(status)["opcounters"]["query"]]
            for _ in range(3):
                wire.ask({"find": "plain", "filter": {"_id": 1}, "limit": 1, "$db": "shop"})
                wire.ask({"find": "orders", "filter": {"_id": 101}, "limit": 1, "$db": "shop"})
                wire.ask({"find": "orders", "filter": {"_id": -1}, "limit": 1, "$db": "shop"})
            assert wire.ask(status)["opcounters"]["query"] - counted[0] == 9
            assert wire.ask(status)["network"]["bytesIn"] > 0
        commands = client.admin.command("listCommands")["commands"]
        assert {"find", "aggregate", "getMore", "killOp"} <= commands.keys()
        assert not commands.keys() & {"shutdown", "replSetInitiate", "applyOps"}
        assert client.server_info()["version"] == "6.0.5"
        assert client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"] == []
        for collection in ("plain", "orders"):
            plan = client.shop.command({"explain": {"find": collection, "filter": {"n": 5}}})
            assert plan["serverInfo"]["tier"] == "archive"


class Application:
    """Does what applications do, again and again; keeps every failure that a user would see."""

    def __init__(self, trio: Trio, way: str) -> None:
        self.way = way
        self.client = trio.client(way)
        self.failures: list[str] = []
        self.turns = 0
        self.increments = 0
        self.stop = threading.Event()
        works = (self.write, self.read, self.list, self.transact)
        self.threads = [threading.Thread(target=self.run, args=(work,)) for work in works]
        self.shop = self.client.get_database("shop", write_concern=WriteConcern("majority"))
        for thread in self.threads:
            thread.start()

    def run(self, work: Any) -> None:
        while not self.stop.is_set():
            try:
                work()
                self.turns += 1
            except Exception as error:  # noqa: BLE001 (what a user would see)
                self.failures.append(f"{self.way}, {work.__name__}: {error!r}")
            time.sleep(0.005)

    def write(self) -> None:
        self.shop.orders.insert_one({"_id": f"{self.way}-{uuid.uuid4()}", "at": NOW})
        one = {"_id": f"counter {self.way}"}
        done = {"$inc": {"n": 1}, "$setOnInsert": {"at": NOW}}
        self.shop.orders.update_one(one, done, upsert=True)
        self.increments += 1

    def read(self) -> None:
        assert self.shop.orders.find_one({"_id": 110})
        assert self.shop.orders.find_one({"_id": 5})
        assert self.shop.plain.find_one({"_id": 5})

    def list(self) -> None:
        found = self.shop.orders.find({"_id": {"$in": list(HOT)}}, batch_size=20)
        assert len(list(found)) == len(HOT)

    def transact(self) -> None:
        def increment(session: Any) -> None:
            for name in (1, 2):
                one = {"_id": f"pair {self.way} {name}"}
                done = {"$inc": {"n": 1}, "$setOnInsert": {"at": NOW}}
                self.shop.orders.update_one(one, done, upsert=True, session=session)

        with self.client.start_session() as session:
            session.with_transaction(increment)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(180)
        assert not any(thread.is_alive() for thread in self.threads)


@pytest.mark.usefixtures("resolved")
def test_restarted_one_after_the_other_no_operation_fails(trio: Trio) -> None:
    applications = [Application(trio, way) for way in ("balancer", "list", "load-balanced")]
    try:
        for proxy in trio.proxies:
            goals = [application.turns + 20 for application in applications]

            def all_work(goals: list[int] = goals) -> bool:
                return all(a.turns > goal for a, goal in zip(applications, goals, strict=True))

            wait_until("all work", all_work, 60)
            assert proxy.terminate(60) == 0
            proxy.start()
            proxy.wait_ready()
    finally:
        for application in applications:
            application.end()
    assert [failure for a in applications for failure in a.failures] == []
    for application in applications:
        orders, way = application.client.shop.orders, application.way
        counted = {d["_id"]: d["n"] for d in orders.find({"_id": {"$regex": way}, "n": {"$gt": 0}})}
        one, two = (counted[f"pair {way} {name}"] for name in (1, 2))
        assert one == two > 0
        assert counted[f"counter {way}"] == application.increments
        application.client.close()


def test_told_to_stop(trio: Trio) -> None:
    """Not ready, no new connections, hello says so, work goes on, and cursors to the end of the drain."""
    proxy = trio.proxies[-1]
    port = int(proxy.listen or 0)
    bound = {"hello": 1, "loadBalanced": True, "client": {"driver": {"name": "x"}}, "$db": "admin"}
    with Wire(port, 60) as monitor, Wire(port, 60) as worker, Wire(port, 60) as reader:
        assert monitor.ask({"hello": 1, "$db": "admin"})["ok"] == 1
        assert worker.ask({"ping": 1, "$db": "admin"})["ok"] == 1
        reader.ask(bound)
        find = {"find": "plain", "batchSize": 2, "$db": "shop"}
        cursor = reader.ask(find)["cursor"]["id"]
        ended: list[int] = []
        stopper = threading.Thread(target=lambda: ended.append(proxy.terminate(60)))
        stopper.start()
        wait_until("not ready", lambda: not proxy.ready(), 20)

        def leaves() -> bool:
            return bool(monitor.ask({"hello": 1, "$db": "admin"}).get("code") == 91)

        wait_until("hello says so", leaves, 20)
        with pytest.raises((ConnectionError, Closed)), Wire(port, 5) as late:
            late.ask({"hello": 1, "$db": "admin"})
        write = {"insert": "plain", "documents": [{"_id": "x"}], "$db": "shop"}
        retryable = {"lsid": {"id": Binary.from_uuid(uuid.uuid4())}, "txnNumber": Int64(1)}
        refused = worker.ask({**write, **retryable})
        assert (refused["code"], refused["errorLabels"]) == (91, ["RetryableWriteError"])
        assert worker.ask(write)["n"] == 1, "nobody would repeat it elsewhere"
        more = {"getMore": Int64(cursor), "collection": "plain", "batchSize": 2, "$db": "shop"}
        batches = 0
        with contextlib.suppress(Closed):
            while reader.ask(more)["ok"]:
                batches += 1
                time.sleep(0.3)
        assert batches > 3, "it went on"
        stopper.join()
        assert ended == [0]
    proxy.start()
    proxy.wait_ready()
    with trio.client("list") as client:
        client.shop.plain.delete_one({"_id": "x"})
        with pytest.raises(OperationFailure, match="not found"):
            client.shop.command({**more, "$db": "shop"})

"""Three proxies behind one address where logins are on: every user keeps what is theirs, whichever proxy."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient

from support.accounts import Login
from support.balancer import Balancer
from support.login_world import HOT, MANAGER, LoginWorld, code_of, login_world
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.scram import Scram, log_in
from support.wire import Wire

pytestmark = pytest.mark.integration

OTHER = Login("other", "other-secret")
UNAUTHORIZED = 13


@dataclass(frozen=True)
class Trio:
    world: LoginWorld
    ports: list[int]
    balancer: Balancer

    def client(self, login: Login, **options: Any) -> MongoClient[dict[str, Any]]:
        return MongoClient(
            "127.0.0.1",
            self.balancer.port,
            username=login.user,
            password=login.password,
            serverSelectionTimeoutMS=60_000,
            **options,
        )

    def wire(self, number: int, login: Login) -> Wire:
        wire = Wire(self.ports[number], 60)
        assert log_in(wire, Scram(login.user, login.password))[-1]["done"]
        return wire


@pytest.fixture(scope="module")
def trio(_secure_sets: tuple[ReplicaSet, ReplicaSet]) -> Iterator[Trio]:
    with login_world(_secure_sets) as world:
        others = [world.thermocline.add_service("proxy", f"proxy-{n}") for n in (2, 3)]
        for other in others:
            other.wait_ready()
        with world.connect(MANAGER) as manager:
            roles = ["readWriteAnyDatabase"]
            manager.admin.command("createUser", OTHER.user, pwd=OTHER.password, roles=roles)
        services = world.thermocline.services.values()
        ports = [int(s.listen or 0) for s in services if s.name == "proxy"]
        with Balancer(ports) as balancer:
            yield Trio(world, ports, balancer)


@pytest.mark.parametrize("balanced", [False, True], ids=["plain", "loadBalanced"])
def test_a_user_is_served_whichever_proxy_a_connection_reaches(trio: Trio, balanced: bool) -> None:
    options = {"loadBalanced": True} if balanced else {}
    mark = str(uuid.uuid4())
    with trio.client(OTHER, **options) as client:
        orders, before = client.shop.orders, dict(trio.balancer.accepted)
        cursors = [orders.find({"_id": {"$lt": 100}}, batch_size=3) for _ in range(6)]
        for _ in range(20):
            assert [next(cursor)["_id"] is not None for cursor in cursors] == [True] * 6
        with orders.watch(max_await_time_ms=200) as stream, client.start_session() as session:

            def both(session: Any) -> None:
                orders.insert_one({"_id": f"{mark} 1", "t": 1}, session=session)
                orders.update_one({"_id": 11}, {"$set": {"by": mark}}, session=session)

            session.with_transaction(both)
            seen = {next(stream)["documentKey"]["_id"] for _ in range(2)}
        assert seen == {f"{mark} 1", 11}
        found = orders.find_one({"_id": 11})
        assert found is not None
        assert found["by"] == mark
        assert orders.delete_one({"_id": f"{mark} 1"}).deleted_count == 1
        # Enough at once that more than one proxy has a part.
        assert trio.balancer.accepted != before


def test_what_is_one_users_is_closed_to_another_at_every_proxy(trio: Trio) -> None:
    session = {"id": Binary(uuid.uuid4().bytes, 4)}
    find = {"find": "orders", "filter": {}, "batchSize": 2, "$db": "shop"}
    with trio.wire(0, OTHER) as one:
        cursor = one.ask({**find, "lsid": session})["cursor"]["id"]
        transaction = {"lsid": session, "txnNumber": Int64(1), "autocommit": False}
        insert = {"insert": "orders", "documents": [{"_id": "theirs", "t": 1}], "$db": "shop"}
        assert one.ask({**insert, **transaction, "startTransaction": True})["ok"] == 1
        more = {"getMore": Int64(cursor), "collection": "orders", "batchSize": 2, "$db": "shop"}
        commit = {"commitTransaction": 1, **transaction, "$db": "admin"}
        for number in (0, 1, 2):
            with trio.wire(number, MANAGER) as foreign:
                # Sessions are told apart by user: the same id is another session.
                assert foreign.ask({**more, "lsid": session})["code"] == UNAUTHORIZED
                kill = {"killCursors": "orders", "cursors": [Int64(cursor)], "$db": "shop"}
                killed = foreign.ask(kill)
                assert not killed.get("cursorsKilled"), killed
                assert foreign.ask(commit)["ok"] == 0
        for number in (1, 2):
            with trio.wire(number, OTHER) as own:
                assert own.ask({**more, "lsid": session})["cursor"]["nextBatch"]
        with trio.wire(2, OTHER) as own:
            assert own.ask(commit)["ok"] == 1
            gone = {"delete": "orders", "deletes": [{"q": {"_id": "theirs"}, "limit": 1}]}
            assert own.ask({**gone, "$db": "shop"})["n"] == 1


def test_a_change_of_users_counts_at_every_proxy(trio: Trio) -> None:
    passing = Login("passing", "passing-secret")
    with trio.client(MANAGER) as manager:
        command = manager.admin.command
        command("createUser", passing.user, pwd=passing.password, roles=["readAnyDatabase"])
        for number in range(3):
            with trio.wire(number, passing) as wire:
                for query in ({"_id": HOT}, {"_id": 11}):
                    found = wire.ask({"find": "orders", "filter": query, "$db": "shop"})
                    assert len(found["cursor"]["firstBatch"]) == 1
        command("dropUser", passing.user)
        for number in range(3):
            with Wire(trio.ports[number], 60) as wire:
                # For up to two seconds another proxy may know the login; the tiers never do what it asks.
                if log_in(wire, Scram(passing.user, passing.password))[-1]["ok"]:
                    for query in ({"_id": HOT}, {"_id": 11}):
                        asked = {"find": "orders", "filter": query, "$db": "shop"}
                        assert wire.ask(asked)["ok"] == 0

            def refused(port: int = trio.ports[number]) -> bool:
                with Wire(port, 60) as late:
                    return not log_in(late, Scram(passing.user, passing.password))[-1]["ok"]

            wait_until("the login is refused", refused, 30)
    with trio.client(OTHER) as client:
        assert code_of(client.admin.command, "dropUser", MANAGER.user) == UNAUTHORIZED

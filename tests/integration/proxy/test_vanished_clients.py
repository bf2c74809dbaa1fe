"""Clients that vanish leave neither cursors nor transactions behind; those who stay keep theirs."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from support.wire import Wire, message

pytestmark = pytest.mark.integration

SECONDS = 3


@pytest.fixture
def passthrough(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    thermocline = Thermocline(
        fast,
        archive,
        [],
        mode="Passthrough",
        environment={"THERMOCLINE_TEST_VANISHED_SECONDS": str(SECONDS)},
    )
    thermocline.start(only=("proxy",))
    try:
        with thermocline.logs_on_failure():
            yield thermocline
    finally:
        thermocline.stop()


class Application:
    """One process: its connections say the same of themselves. It opens a cursor and a transaction."""

    def __init__(self, port: int, name: str, *, balanced: bool = False) -> None:
        client = {"driver": {"name": name, "version": "1"}, "os": {"type": "x"}, "platform": ""}
        self.hello: dict[str, Any] = {"hello": 1, "client": client, "$db": "admin"}
        if balanced:
            self.hello["loadBalanced"] = True
        self.port = port
        self.session = {"id": Binary.from_uuid(uuid.uuid4())}
        self.wire = self.connect()
        find = {"find": "c", "batchSize": 5, "lsid": self.session, "comment": "odd!", "$db": "t"}
        # MongoDB takes strings that aren't UTF-8, and shows them in $currentOp.
        self.wire.send(message(find).replace(b"odd!", b"\xff\xfe\xff!"))
        self.cursor = int(self.wire.receive()[2]["cursor"]["id"])
        assert self.cursor
        insert = {"insert": "c", "documents": [{"_id": name}], **self.transaction(), "$db": "t"}
        assert self.wire.ask({**insert, "startTransaction": True})["ok"] == 1

    def connect(self) -> Wire:
        wire = Wire(self.port, 30)
        assert ("serviceId" in wire.ask(self.hello)) is ("loadBalanced" in self.hello)
        return wire

    def transaction(self) -> dict[str, Any]:
        return {"lsid": self.session, "txnNumber": Int64(1), "autocommit": False}

    def goes_on(self, wire: Wire) -> None:
        more = {"getMore": Int64(self.cursor), "collection": "c", "batchSize": 5}
        assert wire.ask({**more, "lsid": self.session, "$db": "t"})["ok"] == 1
        assert wire.ask({"find": "c", "filter": {"_id": 1}, **self.transaction(), "$db": "t"})["ok"]


def opened(direct: MongoClient[dict[str, Any]], application: Application) -> set[str]:
    """What the application has open at the archive."""
    current = {"$currentOp": {"idleCursors": True, "idleSessions": True, "allUsers": True}}
    mine = {"lsid.id": application.session["id"], "type": {"$ne": "op"}}
    return {o["type"] for o in direct.admin.aggregate([current, {"$match": mine}])}


def test_what_is_left_is_ended(passthrough: Thermocline, archive: ReplicaSet) -> None:
    both = {"idleCursor", "idleSession"}
    lenient = archive.client(unicode_decode_error_handler="replace")
    with lenient as direct, contextlib.ExitStack() as stack:
        direct.t.c.insert_many([{"_id": n} for n in range(200)])
        gone, stays, balanced, staying = (
            Application(passthrough.port, name, balanced=name.startswith("balanced"))
            for name in ("gone", "stays", "balanced", "balanced, stays")
        )
        other = stack.enter_context(stays.connect())  # such as its monitor
        stack.enter_context(staying.wire)
        for application in (gone, stays, balanced, staying):
            assert opened(direct, application) == both
        for application in (balanced, gone, stays):
            application.wire.close()
        wait_until("the balanced one's ended", lambda: not opened(direct, balanced), 30, 0.1)
        wait_until("the vanished one's ended", lambda: not opened(direct, gone), 60, 0.1)
        assert opened(direct, stays) == both
        assert opened(direct, staying) == both
        stays.goes_on(other)
        staying.goes_on(staying.wire)
        ended = passthrough.services["proxy"].status()["proxy"]["endedForVanished"]
        assert ended == {"cursor": 2, "transaction": 2}
        # Another process that looks like the one that went.
        late = Application(passthrough.port, "late")
        late.wire.close()
        again = stack.enter_context(late.connect())
        slow = Application(passthrough.port, "slow")
        where = {"find": "c", "filter": {"$where": "sleep(50) || true"}, "batchSize": 3}
        slow.wire.send(message({**where, "lsid": slow.session, "$db": "t"}))
        slow.wire.close()
        wait_until("nothing of it", lambda: not opened(direct, slow), 60, 0.1)
        late.goes_on(again)


def test_a_write_that_waits_is_not_sent_once_its_client_has_gone(
    fast: ReplicaSet, archive: ReplicaSet
) -> None:
    """Its driver sends it again elsewhere. After an error of the statement there (a duplicate key, say) the
    fast tier remembers nothing of it, and would execute the one that waited, however late."""
    with archive.client() as direct:
        direct.shop.orders.create_index("t")
    policy = {"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"}
    thermocline = Thermocline(fast, archive, [policy], lease="30s")
    with contextlib.ExitStack() as stack:
        stack.callback(thermocline.stop)
        stack.enter_context(thermocline.logs_on_failure())
        thermocline.start(only=("feeder", "proxy"))
        thermocline.wait_state("Active")

        def insert(name: str) -> bytes:
            session = {"id": Binary.from_uuid(uuid.uuid4())}
            return message(
                {
                    "insert": "orders",
                    "documents": [{"_id": name, "t": 1}],
                    "lsid": session,
                    "txnNumber": Int64(1),
                    "$db": "shop",
                }
            )

        with Wire(thermocline.port, 60) as stays:
            stays.ask({"ping": 1, "$db": "admin"})
            goes = Wire(thermocline.port, 60)
            goes.ask({"ping": 1, "$db": "admin"})
            archive.members[0].pause()
            try:
                # Whether the archive has such an _id must be asked before.
                goes.send(insert("gone"))
                stays.send(insert("stays"))
                goes.close()
                connected = thermocline.services["proxy"]
                wait_until(
                    "the proxy knows", lambda: connected.status()["proxy"]["connections"] == 1, 30
                )
            finally:
                archive.members[0].resume()
            assert stays.receive()[2]["n"] == 1
            with fast.client() as direct:
                for number in range(20):
                    stays.send(insert(f"later {number}"))
                    assert stays.receive()[2]["n"] == 1
                assert direct.shop.orders.find_one({"_id": "stays"}) is not None
                assert direct.shop.orders.find_one({"_id": "gone"}) is None

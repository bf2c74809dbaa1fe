"""Transactions when replies are lost and primaries die: every acknowledged one counts once, none counts twice."""

import datetime as dt
import random
import threading
import time
from collections.abc import Callable

import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.raw_transactions import RawTransaction
from support.services import Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
POLICIES = (
    {"namespace": "bank.accounts", "ageField": "at", "maxAge": "30d"},
    {"namespace": "bank.ledger", "ageField": "at", "maxAge": "30d"},
)


def seed(archive: ReplicaSet) -> None:
    with archive.client() as client:
        for name in ("accounts", "ledger"):
            client["bank"][name].create_index("at")
        old = NOW - dt.timedelta(days=100)
        client["bank"]["accounts"].insert_many(
            [{"_id": i, "v": 100, "at": NOW if i % 2 else old} for i in range(40)]
        )


def wait_warm(thermocline: Thermocline) -> None:
    """Wait until the accounts with odd numbers are hot."""
    thermocline.wait_state("Active")
    wait_until("warm", lambda: "floor" in (thermocline.coverage("bank.accounts") or {}), 60)


def test_replies_that_get_lost(make_replica_set: Callable[..., ReplicaSet]) -> None:
    fast = make_replica_set("fast", test_commands=True)
    archive = make_replica_set("archive")
    seed(archive)
    thermocline = Thermocline(fast, archive, POLICIES, evictor="Paused", environment=HASTE)
    with thermocline.logs_on_failure(), thermocline, fast.client() as direct:
        wait_warm(thermocline)

        def lose(command: str, times: int = 1) -> None:
            direct.admin.command(
                "configureFailPoint",
                "failCommand",
                mode={"times": times},
                data={
                    "failCommands": [command],
                    "closeConnection": True,
                    "appName": "thermocline-proxy",
                },
            )

        with thermocline.client() as client:
            accounts = client["bank"]["accounts"]
            tries = 0

            def work(session: ClientSession) -> None:
                nonlocal tries
                tries += 1
                if tries == 1:
                    lose("commitTransaction")
                accounts.update_one({"_id": 1}, {"$inc": {"v": 1}}, session=session)

            with client.start_session() as session:
                session.with_transaction(work)
            assert tries == 1  # the driver repeats the commit, not the transaction
            assert accounts.find_one({"_id": 1})["v"] == 101  # type: ignore[index]

            def twice(session: ClientSession) -> None:
                nonlocal tries
                tries += 1
                if tries == 2:
                    lose("update")
                accounts.update_one({"_id": 1}, {"$inc": {"v": 1}}, session=session)

            with client.start_session() as session:
                session.with_transaction(twice)
            assert tries == 3  # a statement that got lost: all of it again
            assert accounts.find_one({"_id": 1})["v"] == 102  # type: ignore[index]

            # The proxy's own abort gets lost, too.
            raw = RawTransaction()
            assert raw.increment(client, "accounts", 3, start=True)["n"] == 1
            lose("abortTransaction")
            assert raw.increment(client, "accounts", 2)["code"] == 112
            assert raw.commit(client)["code"] == 251
            assert accounts.update_one({"_id": 3}, {"$set": {"free": 1}}).matched_count == 1
            assert accounts.find_one({"_id": 3})["v"] == 100  # type: ignore[index]


class Transfers:
    """Each transfer writes a ledger entry of its own name in the same transaction."""

    def __init__(self, thermocline: Thermocline) -> None:
        self.thermocline = thermocline
        self.done: list[str] = []
        self.unknown: list[str] = []
        self.stop = threading.Event()

    def work(self, number: int) -> None:
        draw = random.Random(number)
        with self.thermocline.client() as client:
            bank = client["bank"]
            count = 0
            while not self.stop.is_set():
                count += 1
                name = f"{number}-{count}"
                here, there = draw.sample(range(40), 2)

                def transfer(
                    session: ClientSession, name: str = name, here: int = here, there: int = there
                ) -> None:
                    bank["accounts"].update_one({"_id": here}, {"$inc": {"v": -1}}, session=session)
                    bank["accounts"].update_one({"_id": there}, {"$inc": {"v": 1}}, session=session)
                    bank["ledger"].insert_one({"_id": name, "at": NOW}, session=session)

                try:
                    with client.start_session() as session:
                        session.with_transaction(transfer)
                    self.done.append(name)
                except PyMongoError as error:
                    self.unknown.append(f"{name}: {type(error).__name__} {str(error)[:200]}")


def test_primaries_that_die(make_replica_set: Callable[..., ReplicaSet]) -> None:
    fast, archive = make_replica_set("fast", members=3), make_replica_set("archive")
    seed(archive)
    thermocline = Thermocline(fast, archive, POLICIES, environment=HASTE)
    with thermocline.logs_on_failure(), thermocline:
        thermocline.wait_state("Active")
        transfers = Transfers(thermocline)
        threads = [threading.Thread(target=transfers.work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            time.sleep(6)
            primary = fast.primary()
            assert primary is not None
            before = len(transfers.done)
            primary.kill()
            time.sleep(8)
            primary.start()
            time.sleep(4)
            assert len(transfers.done) > before, transfers.unknown[-5:]
        transfers.stop.set()
        for thread in threads:
            thread.join(150)
        print(f"{len(transfers.done)} done, {transfers.unknown}")
        thermocline.wait_applied()
        with thermocline.client() as client:
            self_told = {d["_id"] for d in client["bank"]["ledger"].find()}
            total = sum(d["v"] for d in client["bank"]["accounts"].find())
        with archive.client() as direct:
            held = {d["_id"] for d in direct["bank"]["ledger"].find()}
            assert sum(d["v"] for d in direct["bank"]["accounts"].find()) == 40 * 100
        assert total == 40 * 100
        assert set(transfers.done) <= self_told
        assert self_told - set(transfers.done) <= {u.split(":")[0] for u in transfers.unknown}
        assert held == self_told
        assert len(transfers.done) > 30


def test_m10_a_transaction_of_30_megabytes(make_replica_set: Callable[..., ReplicaSet]) -> None:
    """The archive has a small cache: there it may come in parts."""
    fast = make_replica_set("fast", cache_gb=1.0)
    archive = make_replica_set("archive", cache_gb=0.25)
    seed(archive)
    thermocline = Thermocline(fast, archive, POLICIES, evictor="Paused", environment=HASTE)
    with thermocline.logs_on_failure(), thermocline:
        wait_warm(thermocline)
        big = {"_id": {"$regex": "^big-"}, "at": NOW}
        with thermocline.client() as client, archive.client() as direct:
            accounts, held = client["bank"]["accounts"], direct["bank"]["accounts"]

            def fill(session: ClientSession) -> None:
                for part in range(10):
                    accounts.insert_many(
                        [{"_id": f"big-{part}-{i}", "at": NOW, "x": "x" * 10**6} for i in range(3)],
                        session=session,
                    )

            def clear(session: ClientSession) -> int:
                return accounts.delete_many(big, session=session).deleted_count

            with client.start_session() as session:
                session.with_transaction(fill)
            thermocline.wait_applied()
            assert held.count_documents(big) == 30
            with client.start_session() as session:
                assert session.with_transaction(clear) == 30
            thermocline.wait_applied()
            assert held.count_documents(big) == 0

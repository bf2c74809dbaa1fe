"""Transactions while their namespaces change tiers (M7, M30): counted once, on one tier."""

import datetime as dt
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.raw_transactions import RawTransaction
from support.services import Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
ACCOUNTS = {"namespace": "bank.accounts", "ageField": "at", "maxAge": "30d"}
RATES = {"namespace": "bank.rates", "keep": "All"}


@pytest.fixture
def bank(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> Iterator[Thermocline]:
    with secure_archive.client() as client:
        client["bank"]["accounts"].create_index("at")
        client["bank"]["accounts"].insert_many([{"_id": i, "v": 0, "at": NOW} for i in range(9)])
        client["bank"]["rates"].insert_many([{"_id": i, "v": 0} for i in range(9)])
    thermocline = Thermocline(
        secure_fast, secure_archive, [ACCOUNTS, RATES], evictor="Paused", environment=HASTE
    )
    with thermocline.logs_on_failure(), thermocline:
        thermocline.add_service("proxy", "proxy-2").wait_ready()
        thermocline.wait_state("Active")

        def warm() -> bool:
            found = [thermocline.coverage(ns) or {} for ns in thermocline.namespaces]
            return all("floor" in d or d.get("complete") for d in found)

        wait_until("everything warm", warm, 60)
        yield thermocline


def value(replica_set: ReplicaSet, collection: str, doc_id: Any) -> int | None:
    with replica_set.client() as client:
        found = client["bank"][collection].find_one({"_id": doc_id})
        return None if found is None else int(found["v"])


def test_m7_and_m30_transactions_across_switches(bank: Thermocline) -> None:
    other_port = bank.services["proxy-2"].listen
    with bank.client() as one, MongoClient[dict[str, Any]](bank.uri(other_port)) as other:
        older, late, unused = RawTransaction(), RawTransaction(), RawTransaction()
        assert older.increment(one, "accounts", 1, start=True)["n"] == 1
        assert late.increment(one, "rates", 1, start=True)["n"] == 1
        assert unused.increment(one, "accounts", 2, start=True)["n"] == 1

        bank.manifest.change(collections=[RATES])
        bank.wait_state("Pausing", "bank.accounts")
        time.sleep(1.0)  # until both proxies have heard of it: two leases
        # Begun before: let through, even to documents that weren't touched yet.
        assert older.increment(one, "accounts", 3)["n"] == 1
        # A first touch now: the driver repeats all of it.
        refused = late.increment(one, "accounts", 4)
        assert (refused["code"], refused["errorLabels"]) == (112, ["TransientTransactionError"])
        assert late.commit(one)["code"] == 251

        fresh: list[int] = []

        def transfer() -> None:
            def work(session: ClientSession) -> None:
                accounts = other["bank"]["accounts"]
                accounts.update_one({"_id": 5}, {"$inc": {"v": 1}}, session=session)
                fresh.append(1)

            with other.start_session() as session:
                session.with_transaction(work)

        thread = threading.Thread(target=transfer)
        thread.start()
        assert bank.coverage("bank.accounts")["state"] == "Pausing"  # type: ignore[index]
        assert older.commit(one)["ok"]
        assert unused.abort(other)["ok"]
        bank.wait_state("Passthrough", "bank.accounts", timeout=30)
        thread.join(30)
        assert fresh == [1]

        # The reply was lost: the tier that was left knows it.
        assert older.commit(one)["ok"]
        assert older.commit(other)["ok"]
        assert late.commit(other)["code"] == 251
        found = [value(bank.archive, "accounts", i) for i in (1, 2, 3, 4, 5)]
        assert found == [1, 0, 1, 0, 1]
        assert value(bank.archive, "rates", 1) == 0

        # And back: a transaction on the archive holds the pause up, then it is over.
        cold = RawTransaction()
        assert cold.increment(one, "accounts", 6, start=True)["n"] == 1
        bank.manifest.change(collections=[ACCOUNTS, RATES])
        bank.wait_state("Pausing", "bank.accounts")
        time.sleep(1.0)
        assert cold.increment(one, "accounts", 7)["n"] == 1
        # Not 263: soon both will be on one tier.
        crossing = cold.increment(one, "rates", 3)
        assert (crossing["code"], crossing["errorLabels"]) == (112, ["TransientTransactionError"])
        assert cold.commit(one)["code"] == 251
        bank.wait_state("Active", "bank.accounts", timeout=30)
        hot = RawTransaction()
        assert hot.increment(other, "accounts", 5, start=True)["code"] in (112, None)
        assert [value(bank.archive, "accounts", i) for i in (6, 7)] == [0, 0]
        assert one["bank"]["accounts"].count_documents({"v": 1}) == 3


def test_m30_an_open_transaction_holds_nothing_up_for_long(bank: Thermocline) -> None:
    with bank.fast.client() as direct:
        direct.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": 3})
    try:
        with bank.client() as client:
            forgotten = RawTransaction()
            assert forgotten.increment(client, "accounts", 1, start=True)["n"] == 1
            bank.manifest.change(collections=[RATES])
            bank.wait_state("Passthrough", "bank.accounts", timeout=60)
            assert forgotten.commit(client)["code"] == 251
            assert value(bank.archive, "accounts", 1) == 0
            assert (
                client["bank"]["accounts"].update_one({"_id": 1}, {"$inc": {"v": 1}}).matched_count
            )
    finally:
        with bank.fast.client() as direct:
            direct.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": 60})

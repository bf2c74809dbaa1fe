"""Money is conserved: transfers between accounts that the evictor keeps taking away, by unchanged ``with_transaction``."""

import datetime as dt
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import ConnectionFailure, OperationFailure

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ACCOUNTS = [f"a{i}" for i in range(200)]
DEPOSIT = 100
TOTAL = DEPOSIT * len(ACCOUNTS)
SECONDS = 40.0


class Bank:
    """Clients that transfer, close and reopen accounts; auditors that add everything up."""

    def __init__(self, thermocline: Thermocline, ports: list[int | None]) -> None:
        self.thermocline = thermocline
        self.ports = ports
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.stop = time.monotonic() + SECONDS

    def run(self) -> None:
        workers = [self.clerk, self.clerk, self.clerk, self.auditor, self.outsider]
        threads = [
            threading.Thread(target=self._guarded, args=(work, number), daemon=True)
            for number, work in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, work: Any, number: int) -> None:
        port = self.ports[number % len(self.ports)]
        try:
            with MongoClient[dict[str, Any]](self.thermocline.uri(port), tz_aware=True) as client:
                draw = random.Random(number)
                while time.monotonic() < self.stop and not self.wrong:
                    try:
                        work(client, draw)
                    except (OperationFailure, ConnectionFailure) as error:
                        code = getattr(error, "code", None)
                        transient = error.has_error_label("TransientTransactionError")
                        if not transient and code not in (262, 6, 91, 112):
                            raise
                        self.done[f"gave up: {code}"] += 1
        except BaseException as error:  # noqa: BLE001 - reported by the test
            self.wrong.append(f"{work.__name__}: {type(error).__name__} {error}")

    def clerk(self, client: MongoClient[dict[str, Any]], draw: random.Random) -> None:
        accounts = client["bank"]["accounts"]
        here, there = draw.sample(ACCOUNTS, 2)
        amount, what = draw.randrange(1, 10), draw.random()
        tries = 0

        def transfer(session: ClientSession) -> str:
            nonlocal tries
            tries += 1
            source = accounts.find_one({"_id": here}, session=session)
            if source is None:
                target = accounts.find_one_and_update(
                    {"_id": there, "v": {"$gte": amount}}, {"$inc": {"v": -amount}}, session=session
                )
                if target is None:
                    return "nothing to open with"
                opened = {"_id": here, "v": amount, "at": long_ago(), "serial": draw.random()}
                accounts.insert_one(opened, session=session)
                return "opened"
            if what < 0.15:
                found = accounts.update_one(
                    {"_id": there}, {"$inc": {"v": source["v"]}}, session=session
                )
                if not found.matched_count:
                    return "nobody to close for"
                assert accounts.delete_one({"_id": here}, session=session).deleted_count == 1
                return "closed"
            taken = accounts.update_one(
                {"_id": here, "v": {"$gte": amount}}, {"$inc": {"v": -amount}}, session=session
            )
            if not taken.modified_count:
                return "poor"
            accounts.update_one(
                {"_id": there},
                {"$inc": {"v": amount}, "$setOnInsert": {"at": long_ago()}},
                upsert=True,
                session=session,
            )
            return "transferred"

        with client.start_session() as session:
            self.done[session.with_transaction(transfer)] += 1
        self.done["tries"] += tries
        time.sleep(draw.choice([0, 0.05, 0.3]))

    def auditor(self, client: MongoClient[dict[str, Any]], draw: random.Random) -> None:
        """A snapshot of all accounts, hot and cold."""
        accounts = client["bank"]["accounts"]

        def total(session: ClientSession) -> int:
            found = accounts.find({"_id": {"$in": ACCOUNTS}}, session=session)
            return sum(d["v"] for d in found)

        with client.start_session() as session:
            found = session.with_transaction(total)
        self.done["audits"] += 1
        if found != TOTAL:
            self.wrong.append(f"an audit found {found}")
        time.sleep(draw.random() * 15)  # long enough for accounts to leave again

    def outsider(self, client: MongoClient[dict[str, Any]], draw: random.Random) -> None:
        """What the archive shows, in one batch: whole transactions only (M15)."""
        pipeline = [{"$group": {"_id": None, "v": {"$sum": "$v"}}}]
        found = next(iter(client["bank"]["accounts"].aggregate(pipeline)))["v"]
        self.done["sums"] += 1
        if found != TOTAL:
            self.wrong.append(f"the sum is {found}")
        with self.thermocline.archive.client() as archive:
            direct = next(iter(archive["bank"]["accounts"].aggregate(pipeline)))["v"]
        if direct != TOTAL:
            self.wrong.append(f"the archive's sum is {direct}")
        time.sleep(0.05)


def long_ago() -> dt.datetime:
    return dt.datetime.now(dt.UTC) - dt.timedelta(days=10)


def test_money_is_conserved_while_accounts_are_evicted(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    with secure_archive.client() as client:
        client["bank"]["accounts"].create_index("at")
        client["bank"]["accounts"].insert_many(
            [
                {"_id": name, "v": DEPOSIT, "at": long_ago() if n % 2 else dt.datetime.now(dt.UTC)}
                for n, name in enumerate(ACCOUNTS)
            ]
        )
    policy = {"namespace": "bank.accounts", "ageField": "at", "maxAge": "5s"}
    thermocline = Thermocline(
        secure_fast,
        secure_archive,
        [policy],
        environment={**HASTE, "THERMOCLINE_TEST_ANNOUNCE_SECONDS": "3"},
    )
    with thermocline.logs_on_failure(), thermocline:
        thermocline.wait_state("Active")
        second = thermocline.add_service("proxy", "proxy-2")
        second.wait_ready()
        bank = Bank(thermocline, [None, second.listen])
        bank.run()
        evicted = thermocline.evicted()
        print(f"{dict(bank.done)}; {evicted} evicted meanwhile")
        assert not bank.wrong, bank.wrong
        with thermocline.client() as client:
            assert sum(d["v"] for d in client["bank"]["accounts"].find()) == TOTAL
        thermocline.wait_applied()
        with secure_archive.client() as archive, secure_fast.client() as fast:
            held = {d["_id"]: d for d in archive["bank"]["accounts"].find()}
            assert sum(d["v"] for d in held.values()) == TOTAL
            assert all(held[d["_id"]] == d for d in fast["bank"]["accounts"].find())
    assert bank.done["transferred"] > 50, bank.done
    assert bank.done["closed"] > 0, bank.done
    assert bank.done["opened"] > 0, bank.done
    assert bank.done["audits"] > 1, bank.done
    assert evicted > 10

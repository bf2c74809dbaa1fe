"""Client transactions on tiered namespaces, through real services: section 4 of the architecture, cases F and M."""

import datetime as dt
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import MongoClient, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from support.fixtures import wipe
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.raw_transactions import RawTransaction
from support.services import ServiceProcess, Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
OLD = NOW - dt.timedelta(days=400)
COLLECTIONS = (
    {"namespace": "bank.accounts", "ageField": "at", "maxAge": "30d"},
    {"namespace": "bank.orders", "ageField": "at", "maxAge": "30d"},
    {"namespace": "bank.rates", "keep": "All"},
)
COLD = range(1_000)
HOT = range(1_000, 1_100)
PLACES = {95: 0, 96: 1, 97: 2, 1_020: 10, 1_021: 11}


def seed(archive: ReplicaSet) -> None:
    """Cold documents 0 to 999, hot ones from 1,000 on; ``k`` is unique in orders."""
    with archive.client() as client:
        bank = client["bank"]
        for name in ("accounts", "orders"):
            bank[name].create_index("at")
            bank[name].insert_many(
                [{"_id": i, "at": OLD, "v": 100, "k": i, "g": i // 10} for i in COLD]
                + [{"_id": i, "at": NOW, "v": 100, "k": i, "g": i // 10} for i in HOT]
            )
        for number, place in PLACES.items():
            bank["accounts"].update_one({"_id": number}, {"$set": {"p": [place, 0]}})
        bank["orders"].create_index("k", unique=True)
        bank["rates"].insert_many([{"_id": c, "rate": n} for n, c in enumerate("abc")])
        bank["log"].insert_one({"_id": 0})


@pytest.fixture(scope="module")
def bank(_secure_sets: tuple[ReplicaSet, ReplicaSet]) -> Iterator[Thermocline]:
    """Different keyfiles, the archive's clock ahead, logins; two proxies."""
    fast, archive = _secure_sets
    wipe(fast)
    wipe(archive)
    seed(archive)
    thermocline = Thermocline(fast, archive, COLLECTIONS, evictor="Paused", environment=HASTE)
    with thermocline:
        second = thermocline.add_service("proxy", "proxy-2")
        second.wait_ready()
        thermocline.wait_state("Active")

        def warm() -> bool:
            found = [thermocline.coverage(str(c["namespace"])) for c in COLLECTIONS]
            return all(d and ("floor" in d or d.get("complete")) for d in found)

        wait_until("everything warm", warm, 60)
        with thermocline.client() as client:
            # The first record makes its collection, which older snapshots can't see.
            client["bank"]["accounts"].delete_one({"_id": 1099})
        yield thermocline
    wipe(fast)
    wipe(archive)


@pytest.fixture
def client(bank: Thermocline) -> Iterator[MongoClient[dict[str, Any]]]:
    with bank.client() as made, bank.logs_on_failure():
        yield made


def in_fast(bank: Thermocline, name: str, doc_id: Any) -> dict[str, Any] | None:
    with bank.fast.client() as client:
        return client["bank"][name].find_one({"_id": doc_id})


def kind_of(bank: Thermocline, name: str, doc_id: Any) -> str | None:
    with bank.fast.client() as client:
        records = client["thermocline"]["removed"]
        found = records.find_one({"_id": {"ns": f"bank.{name}", "id": doc_id}})
        return None if found is None else str(found["kind"])


def open_transactions(replica_set: ReplicaSet) -> int:
    with replica_set.client() as client:
        found = client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleSessions": True}}])
        return sum(
            1
            for operation in found
            if operation.get("transaction", {}).get("parameters", {}).get("autocommit") is False
        )


def proxied(bank: Thermocline, port: int | None) -> MongoClient[dict[str, Any]]:
    """A client of another proxy."""
    return MongoClient(bank.uri(port), tz_aware=True)


class Tries:
    """Counts how often a callback ran."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, work: Callable[[ClientSession], Any]) -> Callable[[ClientSession], Any]:
        def run(session: ClientSession) -> Any:
            self.count += 1
            try:
                return work(session)
            except OperationFailure as error:
                print(f"try {self.count}: {error}")  # shown where a test fails
                raise

        return run


def transact(
    client: MongoClient[dict[str, Any]], work: Callable[[ClientSession], Any]
) -> tuple[Any, int]:
    """Unchanged ``with_transaction``: the result, and how often the callback ran."""
    tries = Tries()
    with client.start_session() as session:
        return session.with_transaction(tries(work)), tries.count


def test_hot_documents(client: MongoClient[dict[str, Any]], bank: Thermocline) -> None:
    accounts = client["bank"]["accounts"]

    def work(session: ClientSession) -> Any:
        accounts.update_one({"_id": 1000}, {"$inc": {"v": -10}}, session=session)
        accounts.update_one({"_id": 1001}, {"$inc": {"v": 10}}, session=session)
        return [d["v"] for d in accounts.find({"_id": {"$in": [1000, 1001]}}, session=session)]

    assert transact(client, work) == ([90, 110], 1)
    assert accounts.find_one({"_id": 1001})["v"] == 110  # type: ignore[index]
    bank.wait_applied()
    with bank.archive.client() as archive:
        assert archive["bank"]["accounts"].find_one({"_id": 1000})["v"] == 90  # type: ignore[index]


def test_f4_cold_documents_are_promoted_and_the_transaction_repeated(
    client: MongoClient[dict[str, Any]], bank: Thermocline
) -> None:
    accounts = client["bank"]["accounts"]

    def work(session: ClientSession) -> Any:
        first = accounts.update_one({"_id": 1}, {"$inc": {"v": -5}}, session=session)
        second = accounts.update_one({"_id": 1002}, {"$inc": {"v": 5}}, session=session)
        return first.matched_count, second.matched_count

    assert transact(client, work) == ((1, 1), 2)
    assert in_fast(bank, "accounts", 1)["v"] == 95  # type: ignore[index]


def test_f4_aborted_for_good_leaves_an_unchanged_copy(
    client: MongoClient[dict[str, Any]], bank: Thermocline
) -> None:
    accounts = client["bank"]["accounts"]
    with client.start_session() as session:
        session.start_transaction()
        with pytest.raises(OperationFailure) as failed:
            accounts.update_one({"_id": 2}, {"$inc": {"v": 1}}, session=session)
        assert failed.value.code == 112
        assert failed.value.has_error_label("TransientTransactionError")
        assert open_transactions(bank.fast) == 0  # the real one was aborted
        session.abort_transaction()
    copy = in_fast(bank, "accounts", 2)
    assert copy is not None
    assert copy["v"] == 100


def test_reads_of_cold_documents_by_id_and_key(client: MongoClient[dict[str, Any]]) -> None:
    orders = client["bank"]["orders"]
    assert transact(client, lambda s: orders.find_one({"_id": 10}, session=s)["v"]) == (100, 2)  # type: ignore[index]
    assert transact(client, lambda s: orders.find_one({"k": 11}, session=s)["_id"]) == (11, 2)  # type: ignore[index]
    assert transact(client, lambda s: orders.find_one({"_id": 5_000}, session=s)) == (None, 1)
    assert transact(client, lambda s: orders.find_one({"k": 5_000}, session=s)) == (None, 1)
    several = {"_id": {"$in": [12, 13, 1000, 5_000]}}
    found, tries = transact(client, lambda s: [d["_id"] for d in orders.find(several, session=s)])
    assert (sorted(found), tries) == ([12, 13, 1000], 2)
    pipeline = [{"$match": {"_id": 14}}, {"$project": {"v": 1}}]
    assert transact(client, lambda s: list(orders.aggregate(pipeline, session=s))) == (
        [{"_id": 14, "v": 100}],
        2,
    )


def test_covered_reads_and_joins(client: MongoClient[dict[str, Any]]) -> None:
    bank = client["bank"]
    recent = {"at": {"$gte": NOW - dt.timedelta(days=3)}}
    ids, tries = transact(client, lambda s: len(list(bank["accounts"].find(recent, session=s))))
    assert (ids, tries) == (99, 1)
    newest = transact(
        client,
        lambda s: len(list(bank["accounts"].find({}, session=s).sort("at", -1).limit(5))),
    )
    assert newest == (5, 1)
    pipeline: list[dict[str, Any]] = [
        {"$match": {**recent, "_id": {"$lt": 1003}}},
        {"$lookup": {"from": "rates", "pipeline": [{"$match": {"rate": 1}}], "as": "r"}},
    ]
    joined, _ = transact(client, lambda s: list(bank["accounts"].aggregate(pipeline, session=s)))
    assert [d["r"][0]["_id"] for d in joined] == ["b", "b", "b"]
    assert transact(client, lambda s: bank["rates"].count_documents({}, session=s)) == (3, 1)
    assert transact(client, lambda s: bank["rates"].distinct("rate", session=s)) == ([0, 1, 2], 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda c, s: list(c.find({"v": 100}, session=s)),
        lambda c, s: list(c.find({"at": {"$lt": NOW}}, session=s)),
        lambda c, s: c.count_documents({}, session=s),
        lambda c, s: c.distinct("v", session=s),
        lambda c, s: list(c.find({}, session=s).sort("at", -1).limit(500)),
    ],
    ids=["filter", "old", "count", "distinct", "newest"],
)
def test_f5_reads_that_need_the_archive_are_refused(
    client: MongoClient[dict[str, Any]], bank: Thermocline, read: Callable[[Any, Any], Any]
) -> None:
    accounts = client["bank"]["accounts"]
    with client.start_session() as session:
        session.start_transaction()
        accounts.update_one({"_id": 1003}, {"$set": {"lost": True}}, session=session)
        with pytest.raises(OperationFailure, match=r"read by _id or a unique key") as failed:
            read(accounts, session)
        assert failed.value.code == 263
        assert not failed.value.has_error_label("TransientTransactionError")
        with pytest.raises(OperationFailure) as gone:
            accounts.find_one({"_id": 1003}, session=session)
        assert gone.value.code == 251
        session.abort_transaction()
    assert open_transactions(bank.fast) == 0
    assert "lost" not in accounts.find_one({"_id": 1003})  # type: ignore[operator]


def test_f3_untiered_namespaces(client: MongoClient[dict[str, Any]], bank: Thermocline) -> None:
    log, accounts = client["bank"]["log"], client["bank"]["accounts"]
    for first, second in ((accounts, log), (log, accounts)):
        with client.start_session() as session:
            session.start_transaction()
            first.insert_one({"_id": "mixed", "at": NOW}, session=session)
            with pytest.raises(OperationFailure, match="keep: All") as failed:
                second.insert_one({"_id": "mixed", "at": NOW}, session=session)
            assert failed.value.code == 263
            session.abort_transaction()
        assert open_transactions(bank.fast) == open_transactions(bank.archive) == 0
        assert first.find_one({"_id": "mixed"}) is None
    log_only = transact(client, lambda s: log.insert_one({"_id": "alone"}, session=s).acknowledged)
    assert log_only == (True, 1)
    assert log.delete_one({"_id": "alone"}).deleted_count == 1


def test_m13_deletes_of_documents_inserted_in_the_same_transaction(
    client: MongoClient[dict[str, Any]], bank: Thermocline
) -> None:
    accounts = client["bank"]["accounts"]

    def work(session: ClientSession) -> Any:
        accounts.insert_many(
            [{"_id": f"m13-{i}", "k": "m13", "at": NOW} for i in range(3)], session=session
        )
        query = {"k": "m13", "at": {"$gte": NOW - dt.timedelta(days=1)}}
        many = accounts.delete_many(query, session=session).deleted_count
        accounts.insert_one({"_id": "m13-0", "k": "m13", "at": NOW}, session=session)
        one = accounts.delete_one({"_id": "m13-0"}, session=session).deleted_count
        return many, one, accounts.find_one({"_id": "m13-1"}, session=session)

    assert transact(client, work) == ((3, 1, None), 1)
    assert kind_of(bank, "accounts", "m13-0") is None
    assert accounts.find_one({"_id": "m13-0"}) is None


def test_deletes_cold_hot_by_filter_and_many(
    client: MongoClient[dict[str, Any]], bank: Thermocline
) -> None:
    accounts = client["bank"]["accounts"]

    def by_id(session: ClientSession) -> Any:
        hot = accounts.delete_one({"_id": 1010}, session=session).deleted_count
        cold = accounts.delete_one({"_id": 20}, session=session).deleted_count
        again = accounts.delete_one({"_id": 20}, session=session).deleted_count
        updated = accounts.update_one(
            {"_id": 20}, {"$set": {"v": 1}}, session=session
        ).matched_count
        none = accounts.delete_one({"_id": 6_000}, session=session).deleted_count
        return hot, cold, again, updated, none, accounts.find_one({"_id": 20}, session=session)

    assert transact(client, by_id) == ((1, 1, 0, 0, 0, None), 2)
    assert kind_of(bank, "accounts", 20) == "deleted"

    def many(session: ClientSession) -> Any:
        deleted = accounts.delete_many({"g": {"$in": [3, 102]}}, session=session).deleted_count
        left = accounts.find_one({"_id": 31}, session=session)
        one = accounts.delete_one({"g": 4}, session=session).deleted_count
        return deleted, left, one

    assert transact(client, many)[0] == (20, None, 1)
    bank.wait_applied()
    with bank.archive.client() as archive:
        held = archive["bank"]["accounts"]
        assert held.count_documents({"_id": {"$in": [20, 1010, *range(30, 40)]}}) == 0
        assert held.count_documents({"g": 4}) == 9
    assert accounts.find_one({"_id": 20}) is None


def test_an_aborted_delete_leaves_the_document(
    client: MongoClient[dict[str, Any]], bank: Thermocline
) -> None:
    accounts = client["bank"]["accounts"]
    with client.start_session() as session:
        session.start_transaction()
        assert accounts.delete_one({"_id": 1011}, session=session).deleted_count == 1
        session.abort_transaction()
    assert kind_of(bank, "accounts", 1011) == "deleted"  # void: F holds the document
    assert accounts.find_one({"_id": 1011}) is not None
    bank.wait_applied()
    with bank.archive.client() as archive:
        assert archive["bank"]["accounts"].find_one({"_id": 1011}) is not None
    wait_until("the record gone", lambda: kind_of(bank, "accounts", 1011) is None, 60, 0.5)


def test_updates_by_filter_upserts_and_find_and_modify(
    client: MongoClient[dict[str, Any]], bank: Thermocline
) -> None:
    accounts = client["bank"]["accounts"]

    def many(session: ClientSession) -> Any:
        update = accounts.update_many({"g": {"$in": [5, 103]}}, {"$inc": {"v": 1}}, session=session)
        return update.matched_count, update.modified_count

    assert transact(client, many) == ((20, 20), 2)
    assert [d["v"] for d in accounts.find({"g": {"$in": [5, 103]}})] == [101] * 20

    def one(session: ClientSession) -> Any:
        return accounts.update_one({"g": 6}, {"$set": {"one": 1}}, session=session).matched_count

    assert transact(client, one) == (1, 2)
    assert accounts.count_documents({"one": 1}) == 1

    def upserts(session: ClientSession) -> Any:
        results = [
            accounts.update_one(query, {"$set": {"up": 1}}, upsert=True, session=session)
            for query in ({"_id": 70}, {"_id": "new"}, {"_id": 1012}, {"g": 8}, {"g": "none"})
        ]
        return [(r.matched_count, r.upserted_id is not None) for r in results]

    found, tries = transact(client, upserts)
    assert found == [(1, False), (0, True), (1, False), (1, False), (0, True)]
    assert tries == 3
    assert accounts.count_documents({"up": 1}) == 5

    def modify(session: ClientSession) -> Any:
        cold = accounts.find_one_and_update({"_id": 90}, {"$inc": {"v": 1}}, session=session)
        none = accounts.find_one_and_update({"_id": 7_000}, {"$inc": {"v": 1}}, session=session)
        first = accounts.find_one_and_update(
            {"g": 10}, {"$inc": {"v": 1}}, sort=[("_id", -1)], session=session
        )
        gone = accounts.find_one_and_delete({"g": 10}, sort=[("_id", 1)], session=session)
        key = accounts.find_one_and_delete({"_id": 91}, session=session)
        return cold["v"], none, first["_id"], gone["_id"], key["_id"]  # type: ignore[index]

    assert transact(client, modify)[0] == (100, None, 109, 100, 91)
    assert accounts.find_one({"_id": 100}) is None
    assert accounts.find_one({"_id": 91}) is None


def test_the_nearest_document_may_be_a_cold_one(client: MongoClient[dict[str, Any]]) -> None:
    """A filter with an order of its own, where a hot document matches as well."""
    accounts = client["bank"]["accounts"]
    accounts.create_index([("p", "2d")])
    near = {"p": {"$near": [0, 0]}}

    def work(session: ClientSession) -> Any:
        one = accounts.find_one_and_update(near, {"$set": {"p": [20, 0]}}, session=session)
        two = accounts.find_one_and_delete(near, session=session)
        accounts.update_one(near, {"$set": {"near": 1}}, session=session)
        return one["_id"], two["_id"]  # type: ignore[index] # both were just found

    assert transact(client, work)[0] == (95, 96)
    assert [d["_id"] for d in accounts.find({"near": 1})] == [97]
    accounts.delete_one(near)
    assert accounts.find_one({"_id": 97}) is None
    accounts.drop_index([("p", "2d")])


def test_too_many_cold_documents_are_refused(
    client: MongoClient[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = client["bank"]["accounts"]
    found, tries = transact(
        client,
        lambda s: (
            accounts.update_many(
                {"_id": {"$lt": 600, "$gte": 200}}, {"$inc": {"v": 1}}, session=s
            ).matched_count
        ),
    )
    assert (found, tries) == (400, 2)


def test_inserts_of_ids_and_keys_that_the_archive_holds(
    client: MongoClient[dict[str, Any]], bank: Thermocline
) -> None:
    orders = client["bank"]["orders"]
    for document in (
        {"_id": 100, "k": "a"},
        {"_id": "n1", "k": 101},
        {"_id": Int64(1000), "k": "b"},
        {"_id": "n2", "k": 1001},
    ):
        tries = Tries()

        def work(session: ClientSession, document: dict[str, Any] = document) -> None:
            orders.insert_one({**document, "at": NOW}, session=session)

        with client.start_session() as session, pytest.raises(OperationFailure) as failed:
            session.with_transaction(tries(work))
        assert failed.value.code == 11000
        assert tries.count == (2 if document["_id"] in (100, "n1") else 1)

    def update(session: ClientSession) -> None:
        orders.update_one({"_id": 1002}, {"$set": {"k": 102}}, session=session)

    with client.start_session() as session, pytest.raises(OperationFailure) as failed:
        session.with_transaction(update)
    assert failed.value.code == 11000

    def pipeline(session: ClientSession) -> None:
        orders.update_many({"_id": 1002}, [{"$set": {"k": {"$add": [100, 3]}}}], session=session)

    with client.start_session() as session, pytest.raises(OperationFailure) as failed:
        session.with_transaction(pipeline)
    assert failed.value.code == 11000
    assert transact(
        client, lambda s: orders.insert_one({"k": "fresh", "at": NOW}, session=s).acknowledged
    ) == (True, 1)
    # Deleted in the same transaction: id and key are free again.

    def reuse(session: ClientSession) -> None:
        orders.delete_one({"_id": 110}, session=session)
        orders.insert_one({"_id": 110, "k": 110, "at": NOW}, session=session)
        orders.delete_one({"_id": 111}, session=session)
        orders.insert_one({"_id": "other", "k": 111, "at": NOW}, session=session)

    assert transact(client, reuse) == (None, 3)
    bank.wait_applied()
    with bank.archive.client() as archive:
        held = archive["bank"]["orders"]
        assert held.find_one({"k": 111})["_id"] == "other"  # type: ignore[index]
        assert held.find_one({"k": 110})["at"] == NOW  # type: ignore[index]


def test_m9_swap_of_unique_keys(client: MongoClient[dict[str, Any]], bank: Thermocline) -> None:
    orders = client["bank"]["orders"]

    def swap(session: ClientSession) -> None:
        for doc_id, key in ((120, "free"), (1020, 120), (120, 1020)):
            result = orders.update_one({"_id": doc_id}, {"$set": {"k": key}}, session=session)
            assert result.matched_count == 1

    assert transact(client, swap) == (None, 2)
    bank.wait_applied()
    with bank.archive.client() as archive:
        held = {
            d["_id"]: d["k"] for d in archive["bank"]["orders"].find({"_id": {"$in": [120, 1020]}})
        }
    assert held == {120: 1020, 1020: 120}


def test_snapshot_isolation(client: MongoClient[dict[str, Any]]) -> None:
    accounts = client["bank"]["accounts"]
    with client.start_session() as session:
        session.start_transaction(read_concern=ReadConcern("local"))
        assert accounts.find_one({"_id": 1050}, session=session)["v"] == 100  # type: ignore[index]
        accounts.update_one({"_id": 1050}, {"$inc": {"v": 1}})
        accounts.update_one({"_id": 1051}, {"$inc": {"v": 1}})
        assert accounts.find_one({"_id": 1050}, session=session)["v"] == 100  # type: ignore[index]
        assert accounts.find_one({"_id": 1051}, session=session)["v"] == 100  # type: ignore[index]
        # A cold document that is promoted and deleted meanwhile: the snapshot had it.
        assert accounts.delete_one({"_id": 130}).deleted_count == 1
        with pytest.raises(OperationFailure) as failed:
            accounts.find_one({"_id": 130}, session=session)
        assert failed.value.code == 112
        session.abort_transaction()
    assert transact(client, lambda s: accounts.find_one({"_id": 130}, session=s)) == (None, 1)


def test_reads_what_was_acknowledged_through_another_proxy(bank: Thermocline) -> None:
    port = bank.services["proxy-2"].listen
    with bank.client() as one, proxied(bank, port) as two:
        for turn in range(30):
            one["bank"].get_collection("accounts", write_concern=WriteConcern(1)).update_one(
                {"_id": 1032}, {"$set": {"turn": turn}}
            )
            found, tries = transact(
                two, lambda s: two["bank"]["accounts"].find_one({"_id": 1032}, session=s)
            )
            assert (found["turn"], tries) == (turn, 1)


@pytest.fixture
def two(
    bank: Thermocline,
) -> Iterator[tuple[MongoClient[dict[str, Any]], MongoClient[dict[str, Any]]]]:
    with (
        bank.client() as one,
        proxied(bank, bank.services["proxy-2"].listen) as other,
        bank.logs_on_failure(),
    ):
        yield one, other


Two = tuple[MongoClient[dict[str, Any]], MongoClient[dict[str, Any]]]


@pytest.mark.parametrize("collection", ["accounts", "log"])
def test_f1_statements_and_commit_through_another_proxy(
    two: Two, bank: Thermocline, collection: str
) -> None:
    one, other = two
    first = f"f1-{uuid.uuid4()}"
    txn = RawTransaction()
    insert: dict[str, Any] = {"insert": collection, "documents": [{"_id": first, "at": NOW}]}
    assert txn.run(one, insert, start=True)["ok"]
    found = txn.run(other, {"find": collection, "filter": {"_id": first}})
    assert [d["_id"] for d in found["cursor"]["firstBatch"]] == [first], found
    second = {"insert": collection, "documents": [{"_id": first + "2", "at": NOW}]}
    assert txn.run(other, second)["ok"]
    assert txn.run(other, {"commitTransaction": 1, "recoveryToken": {}}, database="admin")["ok"]
    # The reply was lost: the same again, here and there.
    assert txn.run(one, {"commitTransaction": 1}, database="admin")["ok"]
    assert txn.run(other, {"commitTransaction": 1}, database="admin")["ok"]
    late = txn.run(one, {"find": collection, "filter": {}})
    assert not late["ok"]
    assert one["bank"][collection].count_documents({"_id": {"$in": [first, first + "2"]}}) == 2
    one["bank"][collection].delete_many({"_id": {"$in": [first, first + "2"]}})


@pytest.mark.parametrize("collection", ["accounts", "log"])
def test_abort_through_another_proxy(two: Two, bank: Thermocline, collection: str) -> None:
    one, other = two
    txn = RawTransaction()
    insert: dict[str, Any] = {"insert": collection, "documents": [{"_id": "never", "at": NOW}]}
    assert txn.run(one, insert, start=True)["ok"]
    assert txn.run(other, {"abortTransaction": 1}, database="admin")["ok"]
    assert txn.run(one, {"commitTransaction": 1}, database="admin")["code"] == 251
    assert txn.run(other, {"commitTransaction": 1}, database="admin")["code"] == 251
    assert one["bank"][collection].find_one({"_id": "never"}) is None


def test_a_restarted_proxy_gives_the_real_outcome(bank: Thermocline) -> None:
    port = bank.services["proxy-2"].listen
    service: ServiceProcess = bank.services["proxy-2"]
    with bank.client() as steady:
        txn, lost = RawTransaction(), RawTransaction()
        with proxied(bank, port) as client:
            for each, name in ((txn, "kept"), (lost, "gone")):
                insert = {"insert": "accounts", "documents": [{"_id": name, "at": NOW}]}
                assert each.run(client, insert, start=True)["ok"]
            assert txn.run(client, {"commitTransaction": 1}, database="admin")["ok"]
        service.kill()
        service.start()
        service.wait_ready()
        with proxied(bank, port) as client:
            assert txn.run(client, {"commitTransaction": 1}, database="admin")["ok"]
            read = lost.run(client, {"find": "accounts", "filter": {"_id": "gone"}})
            assert len(read["cursor"]["firstBatch"]) == 1  # it is open still, and was found
            cold = lost.run(
                client,
                {"update": "accounts", "updates": [{"q": {"_id": 140}, "u": {"$inc": {"v": 1}}}]},
            )
            assert cold["code"] == 112
            assert lost.run(client, {"commitTransaction": 1}, database="admin")["code"] == 251
        assert steady["bank"]["accounts"].find_one({"_id": "gone"}) is None
        assert steady["bank"]["accounts"].find_one({"_id": "kept"}) is not None


def test_malformed_and_unknown_transactions(two: Two) -> None:
    one, _ = two
    txn, earlier = RawTransaction(5), RawTransaction(4)
    earlier.lsid = txn.lsid
    find: dict[str, Any] = {"find": "accounts", "filter": {"_id": 1000}}
    unknown = txn.run(one, find)
    assert unknown["code"] == 251
    assert unknown["errorLabels"] == ["TransientTransactionError"]
    assert txn.run(one, find, start=True)["ok"]
    assert not txn.run(one, find, start=True)["ok"]
    assert earlier.run(one, find, start=True)["code"] == 225
    assert txn.run(one, {"count": "accounts"})["code"] == 263
    assert txn.run(one, {"abortTransaction": 1}, database="admin")["ok"]
    wrong: list[dict[str, Any]] = [{"autocommit": False}, {"autocommit": True, "txnNumber": Int64(1)}, {"startTransaction": True},
             {"autocommit": False, "txnNumber": 1}, {"autocommit": False, "txnNumber": Int64(1), "startTransaction": False}]  # fmt: skip
    for fields in wrong:
        reply = one["bank"].command({**find, **fields}, check=False)
        assert reply["code"] in (14, 72), (fields, reply)


REFUSED = {"k": {"$gte": re.compile("^a")}}
REFUSED_WRITES: list[dict[str, Any]] = [
    {"delete": "orders", "deletes": [{"q": REFUSED, "limit": 0}]},
    {"delete": "orders", "deletes": [{"q": REFUSED, "limit": 1}]},
    {"delete": "orders", "deletes": [{"q": {"_id": "none"}, "limit": 1}, {"q": REFUSED, "limit": 1}]},
    {"update": "orders", "updates": [{"q": REFUSED, "u": {"$set": {"k": -1}}}]},
    {"update": "orders", "updates": [{"q": REFUSED, "u": {"$inc": {"k": 1}}, "multi": True}]},
    {"update": "orders", "updates": [{"q": REFUSED, "u": {"$set": {"v": 1}}, "upsert": True}]},
    {"findAndModify": "orders", "query": REFUSED, "remove": True},
    {"findAndModify": "orders", "query": REFUSED, "update": {"$set": {"k": -1}}},
    {"findAndModify": "orders", "query": REFUSED, "update": {"$set": {"v": 1}}, "upsert": True},
]  # fmt: skip


@pytest.mark.parametrize("command", REFUSED_WRITES, ids=lambda c: next(iter(c)))
def test_a_filter_that_the_server_refuses(
    client: MongoClient[dict[str, Any]], bank: Thermocline, command: dict[str, Any]
) -> None:
    """The answer has one MongoDB's form, though the documents are looked for before the write."""
    answers = []
    with bank.fast.client() as plain:
        for each in (client, plain):
            transaction = RawTransaction()
            answers.append(transaction.run(each, command, start=True))
            assert transaction.commit(each)["code"] == 251
    for answer in answers:
        for name in ("$clusterTime", "operationTime", "electionId", "opTime"):
            answer.pop(name, None)
    assert answers[0] == answers[1]
    assert 2 in (answers[1].get("code"), *(e["code"] for e in answers[1].get("writeErrors", ())))


def test_cursors_within_a_transaction(client: MongoClient[dict[str, Any]]) -> None:
    bank = client["bank"]
    recent = {"at": {"$gte": NOW - dt.timedelta(days=3)}, "_id": {"$gte": 1040, "$lt": 1090}}

    def work(session: ClientSession) -> Any:
        found = bank["accounts"].find(recent, session=session, batch_size=7)
        first = [next(found)["_id"] for _ in range(3)]
        bank["rates"].find_one({"_id": "a"}, session=session)
        return len(first) + len(list(found))

    assert transact(client, work) == (50, 1)
    log = client["bank"]["log"]

    def untiered(session: ClientSession) -> Any:
        log.insert_many([{"_id": f"c{i}"} for i in range(20)], session=session)
        return len(list(log.find({"_id": {"$gte": "c"}}, session=session, batch_size=6)))

    assert transact(client, untiered) == (20, 1)
    log.delete_many({"_id": {"$gte": "c"}})


def test_a_client_that_vanishes_leaves_nothing_open(bank: Thermocline) -> None:
    with bank.fast.client() as direct:
        direct.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": 2})
    try:
        client = bank.client()
        session = client.start_session()
        session.start_transaction()
        client["bank"]["accounts"].update_one({"_id": 1095}, {"$inc": {"v": 1}}, session=session)
        pool = client._topology._servers
        for server in pool.values():
            server.pool.reset()  # the connections end without a word
        with bank.client() as other:
            started = time.monotonic()
            assert (
                other["bank"]["accounts"]
                .update_one({"_id": 1095}, {"$set": {"w": 1}})
                .matched_count
                == 1
            )
            assert time.monotonic() - started < 20
        session._transaction.reset()
        session.end_session()
        client.close()
    finally:
        with bank.fast.client() as direct:
            direct.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": 60})

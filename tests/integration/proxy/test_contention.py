"""Several clients change, delete and insert the same few documents through two proxies, hot and cold, while they are evicted.

Every operation writes a token of its own and returns the token that it found (findAndModify), so the order
in which MongoDB would have run them is known afterwards: each document's operations must form one chain.
"""

import datetime as dt
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import DuplicateKeyError, OperationFailure

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

pytestmark = pytest.mark.integration
COLD, HOT = ["c0", "c1", "c2", "c3"], ["h0", "h1"]
LEAVING = COLD[:2]
"""Never deleted: a document with a ``deleted`` record isn't evicted until the feeder has removed that."""
THREADS, OPERATIONS = 3, 40
OLD = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Done:
    """One operation: ``found`` is the token that it replaced or removed (None: an insert), ``left`` the one that it
    wrote (None: a delete), ``n`` the count of changes since the document's insert."""

    id: str
    found: str | None
    left: str | None
    n: int


class Client:
    """One thread's work. ``unknown``: tokens of operations that ended in an error, executed or not."""

    def __init__(self, number: int, uris: list[str]) -> None:
        self.number = number
        self.uris = uris
        self.done: list[Done] = []
        self.unknown: set[str] = set()
        self.failure: BaseException | None = None
        self.tokens = 0

    def burst(self, seed: int) -> None:
        draw = random.Random(f"{seed}/{self.number}")
        clients = [MongoClient[dict[str, Any]](uri, tz_aware=True) for uri in self.uris]
        try:
            for _ in range(OPERATIONS):
                self.tokens += 1
                token = f"{self.number}/{self.tokens}"
                orders = draw.choice(clients).shop.orders
                try:
                    self.operate(orders, draw, draw.choice(COLD + HOT), token)
                except OperationFailure as error:
                    if error.code not in (6, 112, 262):
                        raise
                    self.unknown.add(token)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            self.failure = error
        finally:
            for client in clients:
                client.close()

    def operate(self, orders: Any, draw: random.Random, name: str, token: str) -> None:
        what = draw.random()
        if what < 0.5:
            change = {"$set": {"by": token}, "$inc": {"n": 1}}
            before = orders.find_one_and_update({"_id": name}, change)
            self.note(name, before, token)
        elif what < 0.7:
            # By a filter that only the archive's or the fast tier's copy may match by then.
            query = {"_id": name, "n": {"$gte": 0}}
            pipeline = [{"$set": {"by": token, "n": {"$add": ["$n", 1]}, "was": "$by"}}]
            after = orders.find_one_and_update(
                query, pipeline, return_document=ReturnDocument.AFTER
            )
            if after is not None:
                self.done.append(Done(name, after["was"], token, after["n"]))
        elif what < 0.85 and name not in LEAVING:
            before = orders.find_one_and_delete({"_id": name})
            if before is not None:
                self.done.append(Done(name, before["by"], None, before["n"] + 1))
        else:
            try:
                orders.insert_one({"_id": name, "t": age_of(name), "by": token, "n": 0})
            except DuplicateKeyError:
                return
            self.done.append(Done(name, None, token, 0))

    def note(self, name: str, before: dict[str, Any] | None, token: str) -> None:
        if before is not None:
            self.done.append(Done(name, before["by"], token, before["n"] + 1))


def age_of(name: str) -> dt.datetime:
    return OLD if name in COLD else dt.datetime.now(dt.UTC)


def chains(name: str, done: Iterable[Done], unknown: set[str]) -> list[list[Done]]:
    """The lives of one document: from an insert (the first began before) to a delete, or to what is there now.

    Raises ``AssertionError`` where operations don't fit into one order: two that found the same token,
    a token found that nobody wrote, a count that isn't its predecessor's plus one.
    """
    after: dict[str, Done] = {}
    writers: dict[str, Done] = {}
    starts: list[Done] = []
    for one in done:
        if one.found is None:
            starts.append(one)
        else:
            assert one.found not in after, f"{name}: {after[one.found]} and {one} found the same"
            after[one.found] = one
        if one.left is not None:
            writers[one.left] = one
    # What an operation of unknown outcome wrote begins a chain of its own: its predecessor isn't known.
    heads = [one.left for one in starts if one.left is not None]
    heads += ["first", *(token for token in unknown if token in after)]
    lives = []
    reached = set()
    for head in heads:
        life = [writers[head]] if head in writers else []
        token: str | None = head
        while token is not None and (following := after.get(token)) is not None:
            assert not life or following.n == life[-1].n + 1, (
                f"{name}: {life[-1]}, then {following}"
            )
            life.append(following)
            reached.add(following)
            token = following.left
        lives.append(life)
    left_out = set(after.values()) - reached
    assert not left_out, f"{name}: {left_out} found what nobody wrote"
    return [life for life in lives if life]


def check(name: str, done: list[Done], unknown: set[str], now: dict[str, Any] | None) -> None:
    """The final state is what the order of the operations leaves."""
    lives = chains(name, done, unknown)
    ends = [life[-1] for life in lives]
    open_ends = {end.left: end for end in ends if end.left is not None}
    if not any(one.found == "first" for one in done):
        open_ends["first"] = Done(name, None, "first", 0)  # nobody has touched it
    if now is not None:
        assert now["by"] in open_ends.keys() | unknown, f"{name}: {now} at the end of {lives}"
        last = open_ends.pop(now["by"], None)
        assert last is None or now["n"] == last.n, f"{name}: {now} after {last}"
    # Another open end was ended, or gone on with, by an operation whose answer nobody has.
    assert len(open_ends) <= len(unknown), f"{name}: {open_ends} are lost; there is {now}"


def run_burst(clients: list[Client], seed: int) -> None:
    threads = [threading.Thread(target=client.burst, args=(seed,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        if client.failure is not None:
            raise client.failure


def test_clients_that_contend_for_hot_and_cold_documents_find_one_order(
    fast: ReplicaSet, archive: ReplicaSet
) -> None:
    with archive.client() as client:
        client.shop.orders.create_index("t")
        client.shop.orders.insert_many(
            [{"_id": name, "t": age_of(name), "by": "first", "n": 0} for name in COLD + HOT]
        )
    policy = {"namespace": "shop.orders", "ageField": "t", "maxAge": "1d"}
    thermocline = Thermocline(fast, archive, [policy], environment=HASTE, lease="2s")
    with thermocline.logs_on_failure(), thermocline:
        thermocline.wait_state("Active")
        second = thermocline.add_service("proxy", "proxy-2")
        second.wait_ready()
        uris = [thermocline.uri(None), thermocline.uri(second.listen)]
        clients = [Client(number, uris) for number in range(THREADS)]
        run_burst(clients, 1)  # cold ones are promoted
        # What was evicted meanwhile and came back has a record, and stays until the feeder removes that.
        wait_until("some are evicted", lambda: thermocline.evicted() >= len(LEAVING), 90, 0.2)
        run_burst(clients, 2)  # again, now with records
        thermocline.wait_applied()
        with thermocline.client() as client, archive.client() as there:
            now = {d["_id"]: d for d in client.shop.orders.find()}
            assert {d["_id"]: d for d in there.shop.orders.find()}.keys() == now.keys()
            for name in COLD + HOT:
                assert client.shop.orders.find_one({"_id": name}) == now.get(name), "by id, too"
    by_id: dict[str, list[Done]] = defaultdict(list)
    for each in clients:
        for one in each.done:
            by_id[one.id].append(one)
    unknown = {token for each in clients for token in each.unknown}
    for name in COLD + HOT:
        check(name, by_id[name], unknown, now.get(name))
    kinds = Counter(
        "insert" if d.found is None else "delete" if d.left is None else "update"
        for found in by_id.values()
        for d in found
    )
    assert min(kinds[kind] for kind in ("insert", "delete", "update")) > 5, kinds
    assert len(unknown) < OPERATIONS, "most answers are known"


@pytest.mark.parametrize(
    ("done", "now"),
    [
        ([Done("x", "first", "a", 1), Done("x", "first", "b", 1)], {"by": "b", "n": 1}),
        ([Done("x", "first", "a", 1)], {"by": "first", "n": 0}),
        ([Done("x", "first", "a", 1)], None),
        ([Done("x", "first", None, 1)], {"by": "first", "n": 0}),
        ([Done("x", "ghost", "a", 1)], {"by": "a", "n": 1}),
        ([Done("x", "first", "a", 1), Done("x", "a", "b", 5)], {"by": "b", "n": 5}),
        ([Done("x", "first", "a", 1), Done("x", None, "b", 0)], {"by": "b", "n": 0}),
        ([Done("x", "first", "a", 1)], {"by": "a", "n": 7}),
    ],
    ids=[
        "lost update", "old version back", "lost document", "deleted one back", "from nowhere",
        "a count skipped", "inserted over one", "another count",
    ],
)  # fmt: skip
def test_the_check_finds_what_is_wrong(done: list[Done], now: dict[str, Any] | None) -> None:
    with pytest.raises(AssertionError):
        check("x", done, set(), now)


def test_the_check_takes_what_is_right() -> None:
    life = [Done("x", "first", "a", 1), Done("x", "a", None, 2), Done("x", None, "b", 0)]
    check("x", life, set(), {"by": "b", "n": 0})
    check("x", [*life, Done("x", "b", None, 1)], set(), None)
    check("x", [*life, Done("x", "c", "d", 2)], {"c"}, {"by": "d", "n": 2})
    check("x", life, {"c"}, None)
    check("x", [], set(), {"by": "first", "n": 0})

"""Who may not write learns nothing and moves nothing, over the whole proxy with logins."""

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from support import accounts
from support.mongod import ReplicaSet
from support.services import Thermocline
from thermocline_common import names

pytestmark = pytest.mark.integration
POLICY = {"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"}
PASSWORD = "not-a-secret"
USERS: dict[str, list[str]] = {
    "reader": ["find"],
    "inserter": ["insert"],
    "updater": ["update"],
    "remover": ["remove"],
}


@pytest.fixture
def thermocline(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> Iterator[Thermocline]:
    with secure_archive.client() as client:
        orders = client["shop"]["orders"]
        orders.create_index([("t", 1)])
        orders.create_index([("email", 1)], unique=True)
        orders.insert_many([{"_id": i, "email": f"e{i}", "n": 0} for i in range(6)])
    running = Thermocline(secure_fast, secure_archive, [POLICY])
    running.start(only=())
    for replica_set in (secure_archive, secure_fast):
        with replica_set.client() as client:
            for user, actions in USERS.items():
                resource = {"db": "shop", "collection": "orders"}
                role = [{"resource": resource, "actions": actions}]
                client["admin"].command("createRole", user, privileges=role, roles=[])
                if replica_set is secure_archive:
                    client["admin"].command("createUser", user, pwd=PASSWORD, roles=[user])
    accounts.copy_users(secure_fast, secure_archive)
    for name in ("feeder", "proxy"):
        running.services[name].start()
    try:
        for name in ("feeder", "proxy"):
            running.services[name].wait_ready()
        running.wait_state("Active")
        yield running
    finally:
        running.stop()


WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "insert": ("insert", {"insert": "orders", "documents": [{"_id": 1}]}),
    "insert of a key": ("insert", {"insert": "orders", "documents": [{"email": "e2"}]}),
    "update": ("update", {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 1}}}]}),
    "update of a key": (
        "update",
        {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"email": "e2"}}}]},
    ),
    "batch": (
        "update",
        {"update": "orders", "updates": [{"q": {"_id": i}, "u": {"$set": {"n": 1}}} for i in (1, 2)]},
    ),
    "by filter": ("update", {"update": "orders", "updates": [{"q": {"n": 0}, "u": {"$set": {"n": 1}}}]}),
    "many": (
        "update",
        {"update": "orders", "updates": [{"q": {"n": 0}, "u": {"$set": {"n": 1}}, "multi": True}]},
    ),
    "delete": ("remove", {"delete": "orders", "deletes": [{"q": {"_id": 1}, "limit": 1}]}),
    "delete many": ("remove", {"delete": "orders", "deletes": [{"q": {"n": 0}, "limit": 0}]}),
    "find and modify": ("", {"findAndModify": "orders", "query": {"_id": 1}, "update": {"$set": {"n": 1}}}),
    "find and remove": ("", {"findAndModify": "orders", "query": {"_id": 1}, "remove": True}),
}  # fmt: skip


def test_only_who_may_write_moves_documents(
    thermocline: Thermocline, secure_fast: ReplicaSet
) -> None:
    inside = secure_fast.client()
    orders = inside["shop"]["orders"]
    removed = inside[names.DATABASE][names.REMOVED]
    for user, actions in USERS.items():
        uri = f"mongodb://{user}:{PASSWORD}@127.0.0.1:{thermocline.port}/"
        client: MongoClient[dict[str, Any]]
        with MongoClient(uri, authSource="admin") as client:
            for name, (action, command) in WRITES.items():
                if action in actions:
                    continue
                with pytest.raises(OperationFailure) as failed:
                    client["shop"].command(command)
                assert failed.value.code == 13, (user, name)
    assert orders.count_documents({}) == 0, "something was promoted"
    assert removed.count_documents({}) == 0, "a removal record was written"
    for user, actions in USERS.items():
        uri = f"mongodb://{user}:{PASSWORD}@127.0.0.1:{thermocline.port}/"
        with MongoClient(uri, authSource="admin") as client:
            for name, (action, command) in WRITES.items():
                if action in actions:
                    assert client["shop"].command(command)["ok"] == 1.0, (user, name)
    inside.close()

"""What the services' role allows, on a real server: the list in docs/accounts.md is enough and not more."""

from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from support import accounts
from support.mongod import ReplicaSet
from thermocline_common.coverage import Tier

pytestmark = pytest.mark.integration


def as_services(replica_set: ReplicaSet, tier: Tier) -> MongoClient[dict[str, Any]]:
    login = accounts.SERVICES[tier]
    return MongoClient(replica_set.user_uri(login.user, login.password))


def test_services_can_do_their_work(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> None:
    accounts.create_service_users(secure_fast, secure_archive, ["shop"])
    for tier, replica_set in ((Tier.FAST, secure_fast), (Tier.ARCHIVE, secure_archive)):
        with as_services(replica_set, tier) as client:
            client.shop.create_collection("orders")
            client.shop.orders.create_index("at")
            client.shop.command(
                "insert", "orders", documents=[{"_id": 1}], bypassDocumentValidation=True
            )
            client.shop.command("listCollections")
            client.shop.orders.list_indexes().to_list()
            client.thermocline.markers.insert_one({"n": 1})
            list(client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleCursors": True}}]))
            client.config.transactions.find_one()
            client.local["oplog.rs"].find_one()
            client.admin.command("replSetGetConfig")
            client.admin.command("replSetGetStatus")
            client.admin.command("getParameter", transactionLifetimeLimitSeconds=1)
            list(client.admin["system.users"].find({}))
            with client.watch([{"$match": {}}], show_expanded_events=True) as stream:
                assert stream.try_next() is None


def test_services_can_shape_the_fast_tier(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    accounts.create_service_users(secure_fast, secure_archive, ["shop"])
    with as_services(secure_fast, Tier.FAST) as client:
        client.shop.create_collection("orders")
        client.shop.orders.create_index("at")
        client.shop.command("collMod", "orders", validationLevel="moderate")
        client.admin.command(
            "renameCollection", "shop.orders", to="thermocline_aside.shop.orders-1"
        )
        client.shop.create_collection("orders")
        client.shop.orders.create_index("at")
        client.shop.orders.drop_index("at_1")
        client.shop.orders.drop()
        client.admin["system.users"].delete_one({"user": "nobody"})
        list(client.local["oplog.rs"].aggregate([{"$collStats": {"storageStats": {}}}]))


def test_services_reach_no_more(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> None:
    accounts.create_service_users(secure_fast, secure_archive, ["shop"])
    with as_services(secure_archive, Tier.ARCHIVE) as client:
        client.shop.create_collection("orders")
        for refused in (
            lambda: client.other.orders.insert_one({}),
            lambda: client.shop.command("dropDatabase"),
            lambda: client.shop.orders.drop(),
            lambda: client.shop.command("collMod", "orders", validationLevel="off"),
            lambda: client.admin.command("shutdown"),
            lambda: client.admin.command("createUser", "x", pwd="x", roles=[]),
            lambda: client.admin["system.users"].delete_one({"user": "nobody"}),
        ):
            with pytest.raises(OperationFailure) as caught:
                refused()
            assert caught.value.code == 13


def test_an_application_user_is_the_same_on_both_tiers(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    accounts.create_application_user(secure_fast, secure_archive)
    login = accounts.APPLICATION
    for replica_set in (secure_fast, secure_archive):
        with MongoClient[dict[str, Any]](
            replica_set.user_uri(login.user, login.password)
        ) as client:
            client.shop.orders.insert_one({})

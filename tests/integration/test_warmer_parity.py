"""Users, roles, indexes and options of the archive in the fast tier, with the services' least privileges."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure

from support import accounts
from support.hand_feeder import activate, coverage
from support.mongod import ReplicaSet
from thermocline_common.accounts import Accounts
from thermocline_common.coverage import Tier
from thermocline_common.errors import Code
from thermocline_common.tiers import RAW, Tiers
from thermocline_warmer.parity import Collections

pytestmark = pytest.mark.integration
NS = "shop.orders"


def login(replica_set: ReplicaSet, user: str, password: str, database: str = "admin") -> bool:
    """Whether the user can log in and read ``shop.orders``."""
    uri = replica_set.user_uri(user, password, database)
    with MongoClient[dict[str, Any]](uri) as client:
        try:
            client.shop.orders.find_one()
        except OperationFailure as error:
            if error.code not in (Code.Unauthorized, Code.AuthenticationFailed):
                raise
            return False
    return True


@pytest.fixture
async def secure(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> AsyncIterator[Tiers]:
    accounts.create_service_users(secure_fast, secure_archive, ["shop"])
    clients: list[AsyncMongoClient[dict[str, Any]]] = []
    for tier, replica_set in ((Tier.FAST, secure_fast), (Tier.ARCHIVE, secure_archive)):
        own = accounts.SERVICES[tier]
        clients.append(
            AsyncMongoClient(
                replica_set.user_uri(own.user, own.password),
                tz_aware=True,
                uuidRepresentation="standard",
            )
        )
    yield Tiers(*clients)
    for client in clients:
        await client.close()


async def raw_user(replica_set: ReplicaSet, name: str) -> bytes | None:
    async with replica_set.async_client() as client:
        users: Any = client.admin.get_collection("system.users", codec_options=RAW)
        found: RawBSONDocument | None = await users.find_one({"_id": name})
    return bytes(found.raw) if found is not None else None


async def test_users_can_log_in_to_the_fast_tier(
    secure: Tiers, secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    with secure_archive.client() as archive:
        archive.shop.command(
            "createRole",
            "clerk",
            privileges=[{"resource": {"db": "shop", "collection": ""}, "actions": ["find"]}],
            roles=[],
        )
        archive.admin.command("createUser", "app", pwd="one", roles=["readWriteAnyDatabase"])
        archive.shop.command("createUser", "clerk", pwd="two", roles=["clerk"])
    work = Accounts(secure)
    await work.bring_over()
    assert login(secure_fast, "app", "one")
    assert login(secure_fast, "clerk", "two", "shop")
    assert not login(secure_fast, "app", "wrong")
    assert await raw_user(secure_fast, "admin.app") == await raw_user(secure_archive, "admin.app")
    assert (work.users.written, work.roles.written) == (2, 1)
    await work.bring_over()
    assert (work.users.written, work.roles.written) == (2, 1)

    with secure_archive.client() as archive:
        archive.admin.command("updateUser", "app", pwd="new", roles=[])
        archive.shop.command("dropUser", "clerk")
        archive.shop.command("dropRole", "clerk")
    await Accounts(secure).bring_over()
    assert not login(secure_fast, "app", "one")
    assert not login(secure_fast, "app", "new")  # no roles: may not read
    assert not login(secure_fast, "clerk", "two", "shop")
    assert await raw_user(secure_fast, "admin.app") == await raw_user(secure_archive, "admin.app")
    with secure_fast.client() as fast:
        assert not fast.shop.command("rolesInfo", "clerk")["roles"]


async def test_a_privilege_that_is_taken_away_is_gone_for_open_connections(
    secure: Tiers, secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    with secure_archive.client() as archive:
        archive.admin.command("createUser", "app", pwd="one", roles=["readWriteAnyDatabase"])
    await Accounts(secure).bring_over()
    with MongoClient[dict[str, Any]](secure_fast.user_uri("app", "one")) as app:
        app.shop.orders.find_one()
        with secure_archive.client() as archive:
            archive.admin.command("revokeRolesFromUser", "app", roles=["readWriteAnyDatabase"])
        await Accounts(secure).bring_over()
        with pytest.raises(OperationFailure, match="not authorized"):
            app.shop.orders.find_one()


async def test_users_that_the_fast_tier_has_of_its_own_stay(
    secure: Tiers, secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    with secure_fast.client() as fast, secure_archive.client() as archive:
        fast.admin.command("createUser", "keeper", pwd="here", roles=["root"])
        fast.admin.command("createUser", "both", pwd="here", roles=["root"])
        archive.admin.command("createUser", "both", pwd="there", roles=["root"])
    before = {
        name: await raw_user(secure_fast, name)
        for name in ("admin.admin", "admin.thermocline", "admin.keeper", "admin.both")
    }
    work = Accounts(secure)
    await work.bring_over()
    await work.bring_over()
    for name, document in before.items():
        assert await raw_user(secure_fast, name) == document
    # The root users of the tests differ too; the services' own are no matter of theirs.
    assert work.users.foreign == ("admin.admin", "admin.both")


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    fast_client: AsyncMongoClient[dict[str, Any]] = fast.async_client()
    archive_client: AsyncMongoClient[dict[str, Any]] = archive.async_client()
    yield Tiers(fast_client, archive_client)
    await fast_client.close()
    await archive_client.close()


async def indexes(client: Any) -> dict[str, Any]:
    return {i["name"]: i async for i in await client["shop"]["orders"].list_indexes()}


async def test_without_logins_there_is_nothing_to_bring_over(tiers: Tiers) -> None:
    work = Accounts(tiers)
    await work.bring_over()
    assert (work.users.count, work.users.written) == (0, 0)


async def test_indexes_and_options_follow_the_archive(tiers: Tiers) -> None:
    there, here = tiers.archive["shop"]["orders"], tiers.fast["shop"]["orders"]
    await activate(tiers, NS)
    now = await coverage(tiers, NS)
    work = Collections(tiers)
    await work.compare(now)
    assert work.reports[NS].indexes == ()

    await there.create_index([("k", 1)], unique=True)
    await there.create_index([("a", 1), ("b", -1)], partialFilterExpression={"a": {"$gt": 5}})
    await there.create_index("e", expireAfterSeconds=3600)
    await here.create_index("extra")
    validator = {"validator": {"k": {"$exists": True}}, "validationLevel": "moderate"}
    await tiers.archive["shop"].command({"collMod": "orders", **validator})

    await work.compare(now)
    found = work.reports[NS]
    assert set(found.indexes) == {"k_1", "a_1_b_-1", "e_1", "extra_1"}
    assert set(found.options) == {"validator", "validationLevel"}
    assert set(await indexes(tiers.fast)) == {"_id_", "t_1", "extra_1"}  # one look changes nothing

    await work.compare(now)
    mended = await indexes(tiers.fast)
    assert set(mended) == {"_id_", "t_1", "k_1", "a_1_b_-1", "e_1"}
    assert mended["k_1"]["unique"]
    assert "expireAfterSeconds" not in mended["e_1"]
    assert work.reports[NS].indexes == ()
    with pytest.raises(OperationFailure, match="validation"):
        await here.insert_one({"x": 1})
    await work.compare(now)
    assert (work.reports[NS].indexes, work.reports[NS].options) == ((), ())


async def test_what_the_fast_tier_refuses_is_told(tiers: Tiers) -> None:
    await activate(tiers, NS)
    now = await coverage(tiers, NS)
    await tiers.fast["shop"]["orders"].insert_many([{"k": 1}, {"k": 1}])
    await tiers.archive["shop"]["orders"].create_index("k", unique=True)
    work = Collections(tiers)
    await work.compare(now)
    await work.compare(now)
    assert "11000" in (work.reports[NS].error or "")
    assert work.reports[NS].indexes == ("k_1",)


async def test_another_collection_under_the_name_is_left_alone(tiers: Tiers) -> None:
    await activate(tiers, NS)
    now = await coverage(tiers, NS)
    await tiers.fast["shop"].drop_collection("orders")
    await tiers.fast["shop"].create_collection("orders")
    work = Collections(tiers)
    await work.compare(now)
    await work.compare(now)
    assert set(await indexes(tiers.fast)) == {"_id_"}

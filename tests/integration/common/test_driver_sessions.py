"""A connection that was made while its member recovered serves sessions afterwards."""

import pytest
from pymongo import MongoClient

from support.mongod import ReplicaSet
from support.processes import wait_until

pytestmark = pytest.mark.integration


async def test_made_while_the_member_recovered() -> None:
    with ReplicaSet("recovering") as found, found.member_client(found.members[0]) as root:
        root.admin.command("replSetStepDown", 600, force=True)
        root.admin.command("replSetMaintenance", 1)
        assert root.admin.command("hello")["secondary"] is False
        options = {"maxPoolSize": 1, "directConnection": True, "readPreference": "nearest"}
        async with found.async_client(**options) as client:
            await client.admin.command("ping")  # its only connection
            root.admin.command("replSetMaintenance", 0)
            root.admin.command("replSetFreeze", 0)
            wait_until("a primary", lambda: writable(root), 60)
            async with client.start_session() as session:
                assert await client.shop.orders.find_one(session=session) is None


def writable(client: MongoClient[dict[str, object]]) -> bool:
    return bool(client.admin.command("hello")["isWritablePrimary"])

"""A lease that ends while a write waits for a connection costs another try, not the write."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from support.direct import DirectWorld, close_world, open_world
from support.mongod import ReplicaSet
from thermocline_common.coverage import State, Tier
from thermocline_proxy.exchange import LeaseLapsed
from thermocline_proxy.writes import handle

pytestmark = pytest.mark.integration
COMMANDS: dict[str, dict[str, Any]] = {
    "insert": {"insert": "orders", "documents": [{"_id": 10}]},
    "update": {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 7}}}]},
    "by filter": {"update": "orders", "updates": [{"q": {"n": 2}, "u": {"$set": {"n": 7}}}]},
    "multi": {"update": "orders", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]},
    "delete": {"delete": "orders", "deletes": [{"q": {"_id": 2}, "limit": 1}]},
    "findAndModify": {"findAndModify": "orders", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}},
    "index": {"createIndexes": "orders", "indexes": [{"key": {"n": 1}, "name": "n_1"}]},
    "refused": {"insert": "orders", "documents": []},
}


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[DirectWorld]:
    made = await open_world(fast, archive)
    await made.place({"_id": 1, "n": 1}, "fast", "archive")
    await made.place({"_id": 2, "n": 2}, "archive")
    yield made
    await close_world(made)


@pytest.mark.parametrize("retryable", [False, True])
@pytest.mark.parametrize("state", [State.ACTIVE, State.PASSTHROUGH])
async def test_every_other_command_finds_its_lease_over(
    world: DirectWorld, state: State, retryable: bool
) -> None:
    """In either state, and while retried writes are looked up in the tier that was left."""
    turns = 0
    session = {"lsid": {"id": Binary.from_uuid(uuid.uuid4())}}

    async def before(tier: Tier, command: dict[str, Any]) -> None:
        nonlocal turns
        turns += 1
        if turns % 2:
            raise LeaseLapsed(())

    left = Tier.ARCHIVE if state is State.ACTIVE else Tier.FAST
    world.set_coverage(state=state, look_back=left)
    for number, (name, command) in enumerate(COMMANDS.items()):
        fields: dict[str, Any] = {}
        if retryable and name not in ("multi", "index", "refused"):
            fields = {**session, "txnNumber": Int64(number)}
        world.exchange.before = before
        reply = await world.run({**command, **fields}, handle)
        world.exchange.before = None
        assert reply.get("code") == (16 if name == "refused" else None), (name, reply)
        assert "writeErrors" not in reply, (name, reply)
    assert turns > len(COMMANDS)
    held = await (
        world.archive.find() if state is State.PASSTHROUGH else world.fast.find()
    ).to_list()
    assert {d["_id"]: d["n"] for d in held} == {1: 9, 10: 1}

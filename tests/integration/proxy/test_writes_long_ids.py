"""``_id``s of a megabyte, more of them than a command holds: no look-up, record or statement grows too large.

MongoDB limits a document to 16 MB and a message to 48 MB; 18 ids of 1 MB are 18 MB.
"""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.direct import DirectWorld, close_world, open_world
from support.mongod import ReplicaSet
from thermocline_common.copy_in import CannotCopy, keep
from thermocline_common.ids import STRING, DocId
from thermocline_common.portions import MOST_ID_BYTES
from thermocline_proxy.writes import handle

pytestmark = pytest.mark.integration
COLD = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
IDS = [f"{n:02}" + "i" * 1_000_000 for n in range(18)]
LONGER = "c" * (MOST_ID_BYTES - 4)


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[DirectWorld]:
    world = await open_world(fast, archive)
    for doc_id in IDS:
        await world.archive.insert_one({"_id": doc_id, "t": COLD, "n": 0})
    yield world
    await close_world(world)


async def run(
    world: DirectWorld, name: str, sequence: str, items: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """One write; its statements as a document sequence, as drivers send them."""
    return await world.run({name: "orders", **more}, handle, sequences={sequence: items})


async def test_many_long_ids(world: DirectWorld) -> None:
    # An insert under an id that the archive alone holds is a duplicate, wherever in the batch.
    documents = [{"_id": i, "t": COLD} for i in (*IDS, "free")]
    reply = await run(world, "insert", "documents", documents, ordered=False)
    assert reply["n"] == 1, "only the free one"
    assert [e["code"] for e in reply["writeErrors"]] == [11000] * len(IDS)

    # By a list that fills a statement, beside which no other list has room; by a filter; one by one.
    most = {"_id": {"$in": IDS[:15]}}
    statement = {"q": most, "u": {"$inc": {"n": 1}}, "multi": True}
    reply = await run(world, "update", "updates", [statement])
    assert (reply["n"], reply["nModified"]) == (15, 15)
    await world.evict(IDS[0])
    statement = {"q": {"t": COLD}, "u": {"$inc": {"n": 1}}, "multi": True}
    assert (await run(world, "update", "updates", [statement]))["n"] == len(IDS) + 1
    updates = [{"q": {"_id": i}, "u": {"$inc": {"n": 1}}} for i in IDS]
    assert (await run(world, "update", "updates", updates))["n"] == len(IDS)
    assert [d["n"] for d in await world.truth() if d["_id"] in IDS] == [3] * 15 + [2] * 3

    await world.evict(IDS[0])
    reply = await run(world, "delete", "deletes", [{"q": most, "limit": 0}])
    assert reply["n"] == 15
    reply = await run(world, "delete", "deletes", [{"q": {"t": COLD}, "limit": 0}])
    assert reply["n"] == 4
    assert await world.truth() == []
    await world.replay()
    assert await world.archive.find_one() is None


async def test_an_id_at_which_change_streams_end_is_refused_alone(world: DirectWorld) -> None:
    documents: list[dict[str, Any]] = [{"_id": 1}, {"_id": LONGER}, {"_id": 2}]
    reply = await run(world, "insert", "documents", documents, ordered=False)
    assert reply["n"] == 2
    assert [(e["index"], e["code"]) for e in reply["writeErrors"]] == [(1, 10334)]
    for query, update in (
        ({"_id": LONGER}, {"$set": {"n": 1}}),
        ({"x": 1}, {"_id": LONGER}),
        ({"x": 1}, [{"$set": {"_id": LONGER}}]),
    ):
        statement = {"q": query, "u": update, "upsert": True}
        reply = await run(world, "update", "updates", [statement])
        assert (reply["n"], [e["code"] for e in reply["writeErrors"]]) == (0, [10334])
        reply = await world.run(
            {"findAndModify": "orders", "query": query, "update": update, "upsert": True}, handle
        )
        assert reply["code"] == 10334
    # One that the archive has already stays there, and can't be written.
    await world.archive.insert_one({"_id": LONGER})
    reply = await run(world, "update", "updates", [{"q": {"_id": LONGER}, "u": {"$set": {"n": 1}}}])
    assert reply["code"] == 96
    doc_id = DocId.of_value(
        STRING, len(LONGER + "x").to_bytes(4, "little") + LONGER.encode() + b"\0"
    )
    with pytest.raises(CannotCopy, match="bytes"):
        await keep(world.tiers, world.coverage, [doc_id])
    assert await world.fast.count_documents({}) == 2

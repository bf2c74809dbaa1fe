"""Retryable writes (cases E, M18, M26) and the look-back after a switch: each statement executed once."""

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from bson import Int64
from bson.binary import Binary

from support.direct import DirectWorld, close_world, open_world
from support.mongod import ReplicaSet
from thermocline_common.coverage import State, Tier
from thermocline_proxy.writes import handle

pytestmark = pytest.mark.integration


@pytest.fixture
async def world(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[DirectWorld]:
    made = await open_world(fast, archive)
    await made.place({"_id": 1, "n": 0}, "fast", "archive")
    await made.place({"_id": 2, "n": 0}, "archive")
    await made.place({"_id": 3, "n": 0}, "archive")
    yield made
    await close_world(made)


@pytest.fixture
def numbered() -> Iterator[Any]:
    """Makes commands of one session; each gets the next ``txnNumber``."""
    session = {"id": Binary(uuid.uuid4().bytes, 4)}
    last = 0

    def command(fields: dict[str, Any]) -> dict[str, Any]:
        nonlocal last
        last += 1
        return {**fields, "lsid": session, "txnNumber": Int64(last)}

    return iter([command])


@pytest.fixture
def retryable(numbered: Iterator[Any]) -> Any:
    return next(numbered)


def increment(*ids: int) -> dict[str, Any]:
    return {
        "update": "orders",
        "updates": [{"q": {"_id": i}, "u": {"$inc": {"n": 1}}} for i in ids],
    }


async def counts(world: DirectWorld) -> dict[int, int]:
    return {d["_id"]: d["n"] for d in await world.truth()}


async def test_e1_a_cold_update_executes_once(world: DirectWorld, retryable: Any) -> None:
    command = retryable(increment(2))
    assert await world.run(command, handle) == {"n": 1, "nModified": 1, "ok": 1.0}
    again = await world.run(command, handle)
    assert again == {"n": 1, "nModified": 1, "retriedStmtIds": [0], "ok": 1.0}
    assert (await counts(world))[2] == 1


async def test_e2_a_batch_of_hot_and_cold_is_not_applied_twice(
    world: DirectWorld, retryable: Any
) -> None:
    command = retryable(increment(1, 2, 99, 3))
    assert await world.run(command, handle) == {"n": 3, "nModified": 3, "ok": 1.0}
    again = await world.run(command, handle)
    assert again == {"n": 3, "nModified": 3, "retriedStmtIds": [0, 1, 3], "ok": 1.0}
    assert await counts(world) == {1: 1, 2: 1, 3: 1}


async def test_e3_the_same_number_with_another_statement_gets_the_old_result(
    world: DirectWorld, retryable: Any
) -> None:
    command = retryable(increment(2))
    await world.run(command, handle)
    other = {**command, **increment(3)}
    assert (await world.run(other, handle))["retriedStmtIds"] == [0]
    assert (await counts(world))[3] == 0


async def test_e4_a_proxy_that_dies_between_promotion_and_resend(
    world: DirectWorld, retryable: Any
) -> None:
    command = retryable(increment(2))

    async def die_at_the_second_send(tier: Tier, sent: dict[str, Any]) -> None:
        if len(world.exchange.sent) == 1:
            raise RuntimeError("killed")

    world.exchange.before = die_at_the_second_send
    with pytest.raises(RuntimeError):
        await world.run(command, handle)
    assert await world.fast.find_one({"_id": 2}) == {"_id": 2, "n": 0}
    world.exchange.before = None
    assert (await world.run(command, handle))["n"] == 1
    assert (await world.run(command, handle))["retriedStmtIds"] == [0]
    assert (await counts(world))[2] == 1


async def test_e6_a_lost_reply_is_left_to_the_driver(world: DirectWorld, retryable: Any) -> None:
    command = retryable(increment(1))
    world.exchange.lose_reply = lambda tier, sent: True
    reply = await world.run(command, handle)
    assert reply["code"] == 6
    assert reply["errorLabels"] == ["RetryableWriteError"]
    assert len(world.exchange.sent) == 1
    world.exchange.lose_reply = None
    assert (await world.run(command, handle))["retriedStmtIds"] == [0]
    assert (await counts(world))[1] == 1


@pytest.mark.parametrize("doc_id", [1, 2])
async def test_m18_a_delete_retried_through_another_proxy(
    world: DirectWorld, retryable: Any, doc_id: int
) -> None:
    command = retryable({"delete": "orders", "deletes": [{"q": {"_id": doc_id}, "limit": 1}]})
    assert await world.run(command, handle) == {"n": 1, "ok": 1.0}
    assert await world.run(command, handle) == {"n": 1, "retriedStmtIds": [0], "ok": 1.0}
    await world.replay()
    assert await world.run(command, handle) == {"n": 1, "retriedStmtIds": [0], "ok": 1.0}
    assert doc_id not in await counts(world)


async def test_m18_a_delete_by_filter_retried_takes_no_second_document(
    world: DirectWorld, retryable: Any
) -> None:
    command = retryable({"delete": "orders", "deletes": [{"q": {"n": 0}, "limit": 1}]})
    for _ in range(3):
        assert (await world.run(command, handle))["n"] == 1
    assert len(await counts(world)) == 2


@pytest.mark.parametrize(
    "change",
    [{"update": {"$inc": {"n": 1}}, "new": True}, {"remove": True}],
    ids=["update", "remove"],
)
@pytest.mark.parametrize("sort", [{"_id": -1}, {"_id": 1}], ids=["cold", "hot"])
async def test_m26_find_and_modify_with_a_sort_retried_gives_the_first_reply(
    world: DirectWorld, retryable: Any, change: dict[str, Any], sort: dict[str, int]
) -> None:
    command = retryable({"findAndModify": "orders", "query": {}, "sort": sort, **change})
    first = await world.run(command, handle)
    again = await world.run(command, handle)
    assert again.pop("retriedStmtId") == 0
    assert again == first
    assert sum((await counts(world)).values()) + (3 - len(await counts(world))) == 1


@pytest.mark.parametrize("query", [{"_id": 70}, {"ref": "a"}], ids=["by _id", "by filter"])
@pytest.mark.parametrize("sort", [{}, {"sort": {"n": 1}}], ids=["no sort", "sort"])
async def test_a_find_and_modify_that_inserted_is_retried(
    world: DirectWorld, retryable: Any, query: dict[str, Any], sort: dict[str, Any]
) -> None:
    change = {"update": {"$inc": {"n": 1}}, "upsert": True, "new": True, **sort}
    command = retryable({"findAndModify": "orders", "query": query, **change})
    first = await world.run(command, handle)
    assert first["lastErrorObject"]["updatedExisting"] is False
    again = await world.run(command, handle)
    assert again.pop("retriedStmtId") == 0
    assert again == first


async def test_an_insert_retried_after_the_document_was_deleted(
    world: DirectWorld, retryable: Any
) -> None:
    command = retryable({"insert": "orders", "documents": [{"_id": 7, "n": 0}]})
    assert await world.run(command, handle) == {"n": 1, "ok": 1.0}
    await world.run({"delete": "orders", "deletes": [{"q": {"_id": 7}, "limit": 1}]}, handle)
    assert await world.run(command, handle) == {"n": 1, "retriedStmtIds": [0], "ok": 1.0}
    assert 7 not in await counts(world)


async def test_a_large_batch_keeps_its_statement_ids(world: DirectWorld, retryable: Any) -> None:
    documents = [{"_id": i, "n": 0} for i in range(100, 2_400)]
    command = retryable({"insert": "orders", "documents": documents})
    assert await world.run(command, handle) == {"n": 2_300, "ok": 1.0}
    again = await world.run(command, handle)
    assert again["retriedStmtIds"] == list(range(2_300))
    assert again["n"] == 2_300


async def test_multi_statements_are_not_retryable(world: DirectWorld, retryable: Any) -> None:
    statement = {"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}
    reply = await world.run(retryable({"update": "orders", "updates": [statement]}), handle)
    assert reply["writeErrors"][0]["code"] == 72
    reply = await world.run(
        retryable({"delete": "orders", "deletes": [{"q": {}, "limit": 0}]}), handle
    )
    assert reply["writeErrors"][0]["code"] == 72
    assert await counts(world) == {1: 0, 2: 0, 3: 0}


LOOKED_BACK: dict[str, dict[str, Any]] = {
    "update": increment(2),
    "batch": increment(1, 2, 99),
    "insert": {"insert": "orders", "documents": [{"_id": 8, "n": 0}, {"_id": 9, "n": 0}]},
    "insert by an API version": {
        "insert": "orders",
        "documents": [{"_id": 8, "n": 0}],
        "apiVersion": "1",
        "apiStrict": True,
    },
    "upsert": {
        "update": "orders",
        "updates": [
            {"q": {"_id": 1}, "u": {"$inc": {"n": 1}}},
            {"q": {"_id": 55}, "u": {"$inc": {"n": 1}}, "upsert": True},
        ],
    },
    "delete": {"delete": "orders", "deletes": [{"q": {"_id": 2}, "limit": 1}]},
    "delete by filter": {"delete": "orders", "deletes": [{"q": {"n": 0}, "limit": 1}]},
    "findAndModify": {
        "findAndModify": "orders",
        "query": {"_id": 3},
        "update": {"$inc": {"n": 1}},
        "new": True,
    },
    "findAndModify that inserts": {
        "findAndModify": "orders",
        "query": {"_id": 44},
        "update": {"$inc": {"n": 1}},
        "upsert": True,
    },
    "remove": {"findAndModify": "orders", "query": {}, "sort": {"_id": 1}, "remove": True},
}


async def switch(world: DirectWorld, state: State) -> None:
    """What the feeder does between two states, at once."""
    left = Tier.ARCHIVE if state is State.ACTIVE else Tier.FAST
    if state is State.PASSTHROUGH:
        await world.replay()
    await world.fast.delete_many({})
    await world.removed.delete_many({})
    world.set_coverage(state=state, look_back=left, epoch=uuid.uuid4())


@pytest.mark.parametrize("name", LOOKED_BACK)
@pytest.mark.parametrize("to", [State.ACTIVE, State.PASSTHROUGH])
async def test_m7_a_write_executed_before_the_switch_is_not_executed_again(
    world: DirectWorld, retryable: Any, name: str, to: State
) -> None:
    if to is State.ACTIVE:
        await switch(world, State.PASSTHROUGH)
        world.set_coverage(look_back=None)
    command = retryable(LOOKED_BACK[name])
    first = await world.run(command, handle)
    await switch(world, to)
    before = await world.truth()
    again = await world.run(command, handle)
    retried = again.pop("retriedStmtIds", None) or [again.pop("retriedStmtId", None)]
    assert retried != [None]
    assert again == first
    assert await world.truth() == before
    assert (await world.run(retryable(increment(3)), handle))["n"] == (
        1 if any(d["_id"] == 3 for d in before) else 0
    )


@pytest.mark.parametrize("kind", ["update", "insert", "delete"])
async def test_a_batch_executed_in_part_before_the_switch_is_finished_after_it(
    world: DirectWorld, retryable: Any, kind: str
) -> None:
    await switch(world, State.PASSTHROUGH)
    world.set_coverage(look_back=None)
    if kind == "update":
        whole = increment(1, 2, 3)
        field = "updates"
    elif kind == "insert":
        whole = {"insert": "orders", "documents": [{"_id": i, "n": 9} for i in (11, 12, 13)]}
        field = "documents"
    else:
        deletes = [{"q": {"_id": i}, "limit": 1} for i in (1, 2, 3)]
        whole = {"delete": "orders", "deletes": deletes}
        field = "deletes"
    command = retryable(whole)
    partly = {**command, field: [command[field][0], command[field][2]], "stmtIds": [0, 2]}
    assert (await world.run(partly, handle))["n"] == 2
    await switch(world, State.ACTIVE)
    reply = await world.run(command, handle)
    assert reply["n"] == 3
    assert reply["retriedStmtIds"] == [0, 2]
    assert "writeErrors" not in reply
    found = await counts(world)
    if kind == "update":
        assert found == {1: 1, 2: 1, 3: 1}
    elif kind == "insert":
        assert found == {1: 0, 2: 0, 3: 0, 11: 9, 12: 9, 13: 9}
    else:
        assert found == {}
    if kind == "insert":
        assert await world.archive.find_one({"_id": 12}) is None

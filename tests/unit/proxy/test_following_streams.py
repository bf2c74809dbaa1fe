"""Which batches of a change stream reach the client while its collection changes tiers."""

import uuid
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import bson
import pytest
from bson.int64 import Int64

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.commands.command import Command
from thermocline_proxy.open_streams import OpenStreams
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.reads import follow
from thermocline_proxy.routing.snapshot import Snapshot, Tiering

NS = "shop.orders"
MORE = Request(
    Command(bson.encode({"getMore": Int64(7), "collection": "orders", "$db": "shop"})),
    None,
    1,
    None,
)


def reply(tier: Tier) -> Reply:
    cursor = {
        "id": Int64(7), "ns": NS, "nextBatch": [{"operationType": "replace"}],
        "postBatchResumeToken": {"_data": "82" + "0" * 16},
    }  # fmt: skip
    return Reply(bson.encode({"cursor": cursor, "ok": 1.0}), tier, "localhost:1")


def gateway() -> Any:
    return SimpleNamespace(
        leases=SimpleNamespace(alive=lambda snapshot: True),
        streams=OpenStreams(),
        exchange=AsyncMock(),
    )


@pytest.mark.parametrize(
    ("state", "target", "tier", "goes_on"),
    [
        (None, None, Tier.ARCHIVE, True),
        (State.PASSTHROUGH, State.PASSTHROUGH, Tier.ARCHIVE, True),
        # Others may know already that it is active: then these are the feeder's events.
        (State.PAUSING, State.ACTIVE, Tier.ARCHIVE, False),
        (State.ACTIVE, State.ACTIVE, Tier.ARCHIVE, False),
        (State.PAUSING, State.PASSTHROUGH, Tier.ARCHIVE, False),
        (State.ACTIVE, State.ACTIVE, Tier.FAST, True),
        (State.PAUSING, State.PASSTHROUGH, Tier.FAST, True),
        (State.PAUSING, State.ACTIVE, Tier.FAST, False),
        (State.PASSTHROUGH, State.PASSTHROUGH, Tier.FAST, False),
        (None, None, Tier.FAST, False),
    ],
)
async def test_a_stream_goes_on_only_on_the_tier_that_has_the_say(
    state: State | None, target: State | None, tier: Tier, goes_on: bool
) -> None:
    tierings = {}
    if state is not None and target is not None:
        tierings[NS] = Tiering(Coverage(NS, state, target, fast_uuid=uuid.uuid4()))
    snapshot = Snapshot(1e9, 1e9, tierings, frozenset(tierings))
    made = gateway()
    if goes_on:
        answered = await follow(reply(tier), MORE, made, snapshot)
        assert bson.decode(answered.raw)["cursor"]["nextBatch"] == [{"operationType": "replace"}]
        return
    with pytest.raises(CommandError) as ended:
        await follow(reply(tier), MORE, made, snapshot)
    assert ended.value.code == Code.ChangeStreamHistoryLost
    assert made.exchange.run.await_count == 1, "the cursor is killed"

"""The time that a client gave its operation also ends what the proxy waits for."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import bson
import pytest
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy import exchange
from thermocline_proxy.choosing import Choice, Why
from thermocline_proxy.commands.command import Command
from thermocline_proxy.cursors import Cursors
from thermocline_proxy.exchange import TierExchange, Upstreams
from thermocline_proxy.pools import Pools
from thermocline_proxy.times import TierClock
from thermocline_proxy.upstream import Endpoint
from thermocline_proxy.wire.header import HEADER
from thermocline_proxy.wire.opmsg import encode

FIND = Command(bson.encode({"find": "c", "$db": "t"}))
WRITE = Command(bson.encode({"insert": "c", "txnNumber": Int64(1), "$db": "t"}))


class Members:
    """``address`` None: no primary is known."""

    address: str | None = None

    async def wait(self, preference: bytes | None, deadline: float) -> str:
        while self.address is None:
            if time.monotonic() >= deadline:
                raise CommandError(Code.HostUnreachable, "no primary")
            await asyncio.sleep(0.005)
        return self.address

    def choice(self, preference: bytes | None, address: str) -> Choice:
        return Choice(address, "primary", Why.PRIMARY)


class World:
    """One member that answers hello, and nothing else while it is ``silent``."""

    def __init__(self) -> None:
        self.silent = False
        self.members = {tier: Members() for tier in Tier}
        clocks = {tier: TierClock() for tier in Tier}
        self.pools = Pools({tier: Endpoint(tier, clocks[tier], 1) for tier in Tier})
        self.upstreams = Upstreams(cast("Any", self.members), self.pools, clocks)
        self.exchange = TierExchange(self.upstreams, Cursors())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length, request_id, _, _ = HEADER.unpack(await reader.readexactly(16))
                asked = await reader.readexactly(length - 16)
                if not self.silent or b"hello" in asked:
                    writer.write(encode(1, request_id, bson.encode({"ok": 1.0})))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(exchange, "SILENCE_SECONDS", 0.05)
    made = World()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.members[Tier.FAST].address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    made.pools.close()
    server.close()
    await asyncio.sleep(0.02)


async def failure(world: World, tier: Tier, command: Command, seconds: float) -> CommandError:
    with pytest.raises(CommandError) as caught:
        await world.exchange.run(tier, None, command, deadline=time.monotonic() + seconds)
    return caught.value


async def test_waiting_for_a_connection_ends_with_the_operations_time(world: World) -> None:
    held = await world.upstreams.acquire(Tier.FAST, None)
    for command in (FIND, WRITE):
        error = await failure(world, Tier.FAST, command, 0.05)
        assert (error.code, error.labels) == (50, ())
    held.pool.release(held)
    reply = await world.exchange.run(Tier.FAST, None, FIND, deadline=time.monotonic() + 10)
    assert reply.ok


async def test_waiting_for_a_primary_ends_with_the_operations_time(world: World) -> None:
    assert (await failure(world, Tier.ARCHIVE, FIND, 0.05)).code == 50


async def test_without_a_time_of_its_own_a_driver_may_repeat_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "SELECTION_SECONDS", 0.05)
    with pytest.raises(CommandError) as caught:
        await world.exchange.run(Tier.ARCHIVE, None, WRITE)
    assert caught.value.code == Code.HostUnreachable
    assert caught.value.labels == ("RetryableWriteError",)


async def test_a_member_that_says_nothing_is_not_waited_for(world: World) -> None:
    world.silent = True
    error = await failure(world, Tier.FAST, WRITE, 0.05)
    assert error.code == Code.NetworkTimeout
    assert error.labels == ("RetryableWriteError",), "nobody knows whether it was executed"
    assert not (await failure(world, Tier.FAST, FIND, 0.05)).labels
    world.silent = False
    assert (await world.exchange.run(Tier.FAST, None, FIND)).ok

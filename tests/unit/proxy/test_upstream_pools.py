"""Connections to a member: never more than allowed, of all users together, and everybody gets a turn."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import bson
import pytest

from thermocline_common.coverage import Tier
from thermocline_common.errors import CommandError
from thermocline_proxy.pools import LOST_SECONDS, Pools
from thermocline_proxy.ports import Identity
from thermocline_proxy.times import TierClock
from thermocline_proxy.upstream import Broken, Endpoint, Pool
from thermocline_proxy.wire.header import HEADER
from thermocline_proxy.wire.opmsg import encode

USERS = [Identity("admin", f"u{n}", "none", b"", b"") for n in range(3)]
COMMAND = bson.encode({"find": "c", "$db": "t"})


class Member:
    """Answers everything with ``ok: 1``; ``seconds`` later than it could."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.open = 0
        self.most = 0
        self.accepted = 0
        self.refuse = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.accepted += 1
        self.most = max(self.most, self.open)
        try:
            while not self.refuse:
                head = await reader.readexactly(16)
                length, request_id, _, _ = HEADER.unpack(head)
                await reader.readexactly(length - 16)
                await asyncio.sleep(self.seconds)
                writer.write(encode(1, request_id, bson.encode({"ok": 1.0})))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@pytest.fixture
def member() -> Member:
    return Member()


@contextlib.asynccontextmanager
async def listening(
    member: Member, most: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Pools, str]]:
    async def no_log_in(*arguments: object) -> None:
        """Who a connection is of matters here, not how it logs in."""

    monkeypatch.setattr("thermocline_proxy.upstream.log_in", no_log_in)
    server = await asyncio.start_server(member.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pools = Pools({tier: Endpoint(tier, TierClock(), most) for tier in Tier})
    try:
        yield pools, f"127.0.0.1:{port}"
    finally:
        pools.close()
        server.close()
        await asyncio.sleep(0.05)


async def use(pool: Pool, deadline: float) -> None:
    connection = await pool.acquire(deadline)
    await connection.run(COMMAND)
    pool.release(connection)


async def test_all_users_together_stay_below_the_maximum_and_all_get_on(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(member, 4, monkeypatch) as (pools, address):
        member.seconds = 0.002
        deadline = time.monotonic() + 60
        done = [0, 0, 0]

        async def work(number: int, turns: int) -> None:
            pool = pools.pool(Tier.FAST, address, USERS[number])
            for _ in range(turns):
                await use(pool, deadline)
                done[number] += 1

        # One user has by far the most to do; the others must not wait for its end.
        busy = [asyncio.create_task(work(0, 200)) for _ in range(20)]
        await asyncio.gather(*(work(number, 10) for number in (1, 2) for _ in range(3)))
        assert done[1:] == [30, 30]
        assert done[0] < 4_000, "they got their turns before the first was done"
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        slots = pools.slots[Tier.FAST, address]
        assert member.most <= 5, "one may be on its way out"
        await asyncio.sleep(0.05)
        assert slots.used == member.open == sum(len(pool.open) for pool in pools.pools.values())
        assert slots.used <= 4
        assert not slots.queued


async def test_a_waiter_comes_before_who_asks_later(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(member, 1, monkeypatch) as (pools, address):
        pool = pools.pool(Tier.FAST, address, USERS[0])
        first = await pool.acquire(time.monotonic() + 10)
        waiting = asyncio.create_task(pool.acquire(time.monotonic() + 10))
        await asyncio.sleep(0)
        pool.release(first)
        assert pool.take() is None, "the short path can't step in between"
        assert await waiting is first
        pool.release(first)
        assert pool.take() is first


async def test_an_idle_connection_of_another_user_makes_room(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(member, 2, monkeypatch) as (pools, address):
        for user in USERS:
            await use(pools.pool(Tier.FAST, address, user), time.monotonic() + 10)
        assert [len(pools.pool(Tier.FAST, address, user).open) for user in USERS] == [0, 1, 1]
        assert member.accepted == 3


async def test_those_who_give_up_leave_no_hole(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(member, 1, monkeypatch) as (pools, address):
        pool = pools.pool(Tier.FAST, address, USERS[0])
        other = pools.pool(Tier.FAST, address, USERS[1])
        held = await pool.acquire(time.monotonic() + 10)
        with pytest.raises(CommandError, match="became free in time"):
            await other.acquire(time.monotonic() + 0.02)
        for release_first in (False, True):
            gone = asyncio.create_task(pool.acquire(time.monotonic() + 10))
            await asyncio.sleep(0)
            if release_first:
                pool.release(held)  # it is handed over, and nobody is there any more
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
        assert pool.take() is held
        assert not pool.slots.queued
        held.abort()
        await use(other, time.monotonic() + 10)
        assert pool.slots.used == 1


async def test_connections_that_cannot_be_made_leave_no_hole(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(member, 2, monkeypatch) as (pools, address):
        pool = pools.pool(Tier.FAST, address, USERS[0])
        member.refuse = True
        for _ in range(5):
            with pytest.raises((Broken, OSError)):
                await pool.acquire(time.monotonic() + 10)
        nowhere = pools.pool(Tier.ARCHIVE, "127.0.0.1:1", None)
        results = await asyncio.gather(
            *(nowhere.acquire(time.monotonic() + 10) for _ in range(6)), return_exceptions=True
        )
        assert all(isinstance(result, OSError) for result in results), results
        assert nowhere.slots.used == 0
        member.refuse = False
        await asyncio.gather(*(use(pool, time.monotonic() + 10) for _ in range(6)))
        assert pool.slots.used == len(pool.open) <= 2


async def test_connections_to_a_lost_member_are_cut(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(member, 2, monkeypatch) as (pools, address):
        pool = pools.pool(Tier.FAST, address, USERS[0])
        connection = await pool.acquire(time.monotonic() + 10)
        member.seconds = 60
        running = asyncio.create_task(connection.run(COMMAND))
        there, gone = {tier: [address] for tier in Tier}, {tier: ["h:1"] for tier in Tier}
        pools.cut_lost(gone, 0.0)
        pools.cut_lost(there, 2.0)  # it was a moment only
        pools.cut_lost(gone, 4.0)
        pools.cut_lost(gone, 4.0 + LOST_SECONDS - 0.1)
        await asyncio.sleep(0.02)
        assert not running.done()
        pools.cut_lost(gone, 4.0 + LOST_SECONDS)
        with pytest.raises(Broken):
            await running
        assert pools.slots[Tier.FAST, address].used == 0
        assert not pools.lost

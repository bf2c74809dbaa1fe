"""Cursors that wait for news leave connections for everybody else, and all of them get their turns."""

import asyncio

import pytest

from thermocline_common.coverage import Tier
from thermocline_proxy.awaiting import Awaiting, patience
from thermocline_proxy.cursors import Home

HOME = Home(Tier.FAST, "h:1")


@pytest.mark.parametrize(
    ("asked", "most", "crowd", "expected"),
    [
        (1_000, 50, 1, 1_000),
        (60_000, 50, 50, 5_000),
        (60_000, 50, 100, 500),
        (100, 50, 100, 100),
        (1_000, 50, 10_000, 20),
        (5, 50, 10_000, 5),
        (1_000, 1, 2, 500),
    ],
)
def test_patience(asked: int, most: int, crowd: int, expected: int) -> None:
    assert patience(asked, most, crowd) == expected


async def test_only_half_of_the_connections_wait_and_all_get_their_turns() -> None:
    awaiting = Awaiting(lambda: 8)
    now, most, turns = 0, 0, [0] * 40

    async def stream(number: int) -> None:
        nonlocal now, most
        for _ in range(3):
            async with awaiting.turn(HOME, 300) as milliseconds:
                now += 1
                most = max(most, now)
                await asyncio.sleep(milliseconds / 1_000)
                turns[number] += 1
                now -= 1

    await asyncio.wait_for(asyncio.gather(*(stream(number) for number in range(40))), 60)
    assert most == 4
    assert turns == [3] * 40
    async with awaiting.turn(HOME, 3_000) as milliseconds:
        assert milliseconds == 3_000, "alone, it waits as long as it likes"


async def test_one_that_gives_up_leaves_its_place() -> None:
    awaiting = Awaiting(lambda: 2)

    async def wait() -> None:
        async with awaiting.turn(HOME, 10):
            await asyncio.sleep(60)

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(5), awaiting.turn(HOME, 10) as milliseconds:
        assert milliseconds == 10

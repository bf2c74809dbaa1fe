"""A time-out is a time-out, whatever a failed task group has left of its task's cancellations."""

import asyncio
import sys
from typing import Any

import pytest

from thermocline_common import asyncio_mend

Mended: Any = type(
    "Mended",
    (asyncio.Timeout,),
    {"__aenter__": asyncio_mend.begin, "__aexit__": asyncio_mend.end},
)
"""With the parts that older Pythons get, whichever Python this is."""


def soon(kind: Any) -> Any:
    return kind(asyncio.get_running_loop().time() + 0.01)


async def fail_in_a_group() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())


@pytest.mark.parametrize("kind", [Mended, asyncio.Timeout])
async def test_after_a_failed_group(kind: Any) -> None:
    asyncio_mend.mend()
    await fail_in_a_group()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with soon(kind):
                await asyncio.sleep(5)


@pytest.mark.parametrize("kind", [Mended, asyncio.Timeout])
async def test_a_cancellation_from_outside_is_none_of_its_own(kind: Any) -> None:
    asyncio_mend.mend()

    async def waits() -> None:
        async with soon(kind):
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                # Its own; before it is told, somebody else's comes.
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                raise

    task = asyncio.create_task(waits())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_in_time_and_errors_pass() -> None:
    async with soon(Mended) as timeout:
        pass
    assert not timeout.expired()
    with pytest.raises(KeyError):
        async with soon(Mended):
            raise KeyError


@pytest.mark.parametrize("turns", range(6))
async def test_waiting_loses_no_cancellation(turns: int) -> None:
    async def quick() -> int:
        await asyncio.sleep(0)
        return 1

    async def waits() -> int:
        found = await asyncio_mend.wait_for(quick(), 60)
        await asyncio.sleep(0)
        return int(found)

    task = asyncio.create_task(waits())
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.cancel():
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await task == 1


async def test_what_it_waits_for_ends_with_it() -> None:
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await asyncio_mend.wait_for(never, 0.01)
    assert never.cancelled()
    with pytest.raises(TimeoutError):
        await asyncio_mend.wait_for(asyncio.get_running_loop().create_future(), 0)
    done = asyncio.get_running_loop().create_future()
    done.set_result(2)
    assert await asyncio_mend.wait_for(done, 0) == 2
    assert await asyncio_mend.wait_for(asyncio.sleep(0, 3), None) == 3


def test_drivers_wait_so() -> None:
    asyncio_mend.mend()
    if sys.version_info < (3, 12):
        assert asyncio.wait_for is asyncio_mend.wait_for

"""A time-out is a time-out, whatever a failed task group has left of its task's cancellations."""

import asyncio
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

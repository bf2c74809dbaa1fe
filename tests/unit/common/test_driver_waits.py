"""A cancelled wait leaves the lock to who holds it."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pymongo import lock as pymongo_lock
from pymongo.asynchronous import pool, topology

from thermocline_common import driver_waits

Wait = Callable[[Any, float | None], Awaitable[bool]]


async def lock_survives(wait: Wait) -> bool:
    """One waits and is cancelled just after its time-out, while another holds the lock, which a third wants:
    whether that one has to wait for the second."""
    lock = pymongo_lock._async_create_lock()
    condition = pymongo_lock._async_create_condition(lock)
    entered = asyncio.Event()

    async def waiting() -> None:
        async with lock:
            await wait(condition, 0.05)

    async def wanting() -> None:
        async with lock:
            entered.set()

    first = asyncio.create_task(waiting())
    await asyncio.sleep(0.01)
    await lock.acquire()
    third = asyncio.create_task(wanting())
    await asyncio.sleep(0.1)  # the first one's time-out is over: it wants the lock back
    first.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    intruded = entered.is_set()
    with contextlib.suppress(RuntimeError):
        lock.release()
    await asyncio.gather(first, third, return_exceptions=True)
    return not intruded


async def test_the_lock_stays_with_its_holder() -> None:
    assert await lock_survives(driver_waits.wait)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="mended in Python 3.12")
async def test_pymongo_s_own_wait_gives_the_lock_away() -> None:
    """Once this fails, the module isn't needed any more."""
    assert not await lock_survives(pymongo_lock._async_cond_wait)


async def test_notified_or_not() -> None:
    lock = pymongo_lock._async_create_lock()
    condition = pymongo_lock._async_create_condition(lock)
    async with lock:
        assert not await driver_waits.wait(condition, 0.01)
        asyncio.get_running_loop().call_later(0.01, condition._notify, 1)
        assert await driver_waits.wait(condition, 5)
        assert lock.locked()


def test_clients_wait_so() -> None:
    driver_waits.mend()
    if sys.version_info < (3, 12):
        assert topology._async_cond_wait is driver_waits.wait  # type: ignore[attr-defined]
        assert pool._async_cond_wait is driver_waits.wait  # type: ignore[attr-defined]

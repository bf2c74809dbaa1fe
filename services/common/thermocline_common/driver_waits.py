"""PyMongo's waits for a member or a connection, mended for Python before 3.12.

PyMongo waits with ``asyncio.wait_for(condition.wait(), ...)``. Before Python 3.12 that runs in a task of
its own; if who waits is cancelled while that task takes the lock back after a time-out, it leaves
without the lock and releases another's. From then on nothing gets a member any more: the client
hangs for good. Waiting within one task keeps the lock where it belongs.
"""

import asyncio
import sys
from typing import Any

from pymongo.asynchronous import pool, topology


async def wait(condition: Any, seconds: float | None) -> bool:
    """Wait for the condition, whose lock is held, at most so many seconds; whether it was notified.

    The lock is held again at the end, however that comes.
    """
    try:
        async with asyncio.timeout(seconds):
            return bool(await condition.wait())
    except TimeoutError:
        return False


def mend() -> None:
    """Put it in PyMongo's place, where that is needed. Does nothing the second time."""
    if sys.version_info < (3, 12):
        for module in (topology, pool):
            if hasattr(module, "_async_cond_wait"):
                vars(module)["_async_cond_wait"] = wait

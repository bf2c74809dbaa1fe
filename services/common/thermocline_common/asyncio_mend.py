"""``asyncio.timeout`` of Python before 3.11.3 (Debian 12 has 3.11.2) and ``wait_for`` before 3.12, mended.

Before Python 3.12, ``asyncio.wait_for`` runs what it waits for in a task of its own, and returns that one's
result where a cancellation comes together with it: the cancellation is lost. PyMongo sends every command so; a
service that was told to end then didn't, now and then. Since 3.12 it waits within one task; so does this one.

A ``TaskGroup`` that fails while it waits for its tasks leaves its own task's count of cancellations at one
(so up to Python 3.12). The older ``asyncio.timeout`` takes that for a cancellation from outside: from then on a
time-out in that task ends it with ``CancelledError``, which no task group reports. The feeder's replay ended so,
without a word. Since 3.11.3 a time-out compares with the count at its begin; so does this one.
"""

# ruff: noqa: SLF001 (what is mended is asyncio's own)

import asyncio
import sys
from types import TracebackType
from typing import Any


async def begin(scope: Any) -> Any:
    """``__aenter__``: as it was, and the count is remembered."""
    entered = await _AS_IT_WAS(scope)
    scope._cancelling = scope._task.cancelling()
    return entered


async def end(
    scope: Any,
    kind: type[BaseException] | None,
    error: BaseException | None,
    _: TracebackType | None,
) -> bool | None:
    """``__aexit__`` as of 3.11.3. Raises ``TimeoutError`` where the time was over."""
    state = type(scope._state)
    if scope._timeout_handler is not None:
        scope._timeout_handler.cancel()
        scope._timeout_handler = None
    if scope._state is state.EXPIRING:
        scope._state = state.EXPIRED
        if (
            scope._task.uncancel() <= scope._cancelling
            and kind is asyncio.exceptions.CancelledError
        ):
            raise TimeoutError from error
    elif scope._state is state.ENTERED:
        scope._state = state.EXITED
    return None


async def wait_for(awaitable: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 # as asyncio's
    """As of 3.12. Raises ``TimeoutError`` where the time was over."""
    if timeout is not None and timeout <= 0:
        future = asyncio.ensure_future(awaitable)
        if future.done():
            return future.result()
        future.cancel()
        await asyncio.wait({future})
        try:
            return future.result()
        except asyncio.CancelledError as error:
            raise TimeoutError from error
    async with asyncio.timeout(timeout):
        return await awaitable


_AS_IT_WAS: Any = asyncio.Timeout.__aenter__


def mend() -> None:
    """Put them in asyncio's place, where that is needed. Does nothing the second time."""
    if sys.version_info < (3, 12):
        for module in (asyncio, asyncio.tasks):
            vars(module)["wait_for"] = wait_for
    if sys.version_info < (3, 11, 3):
        vars_of: Any = asyncio.Timeout
        vars_of.__aenter__ = begin
        vars_of.__aexit__ = end

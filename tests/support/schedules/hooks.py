"""Pause points in front of what the services' code sends: PyMongo's commands, and its own sleeps.

Left out are the points that no order can make a difference to: reads at a given cluster time or
inside a transaction's snapshot after its first, questions about indexes and operations, and what
lies between a transaction's first write and its commit (others who write the same documents wait
for that or fail, those who read see what was before).
"""

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from support.schedules.scheduler import Scheduler, current

WRITES: Final = frozenset({"insert", "update", "delete", "findAndModify"})
_INDIFFERENT: Final = frozenset(
    {"listIndexes", "explain", "ping", "aggregate", "getMore", "killCursors", "listCollections"}
)

_plain: contextvars.ContextVar[bool] = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def no_pause() -> Iterator[None]:
    """Commands inside belong to the step at hand."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


class Hooks:
    """Installs the pause points of one scheduler at a time. ``wrote``: called when something was written."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.scheduler: Scheduler | None = None
        self.wrote: Callable[[str, str], None] = lambda database, collection: None
        self._written: weakref.WeakSet[AsyncClientSession] = weakref.WeakSet()
        hooks = self
        command, find_one = AsyncDatabase.command, AsyncCollection.find_one
        commit, abort = AsyncClientSession.commit_transaction, AsyncClientSession.abort_transaction
        sleep = asyncio.sleep

        async def hooked_command(self: Any, command_: Any, *args: Any, **kwargs: Any) -> Any:
            scheduler = hooks.active()
            if scheduler is None:
                return await command(self, command_, *args, **kwargs)
            fields: Mapping[str, Any] = {command_: 1} if isinstance(command_, str) else command_
            name = next(iter(fields))
            tier = "F" if hooks.is_fast(self.client) else "A"
            if not _plain.get() and hooks._matters(name, fields, kwargs.get("session")):
                label = f"{tier} {name} {fields[name] if isinstance(fields[name], str) else ''}"
                session = kwargs.get("session")
                if session is not None and session.in_transaction:
                    label += " (transaction)"
                strict = session is not None and name in WRITES
                await scheduler.step(label.strip(), strict=strict)
            scheduler.enter()
            try:
                reply = await command(self, command_, *args, **kwargs)
            finally:
                scheduler.leave()
            if name in WRITES:
                hooks.wrote(tier, str(fields[name]))
            return reply

        async def counted(original: Any, *args: Any, **kwargs: Any) -> Any:
            scheduler = hooks.active()
            if scheduler is None:
                return await original(*args, **kwargs)
            scheduler.enter()
            try:
                return await original(*args, **kwargs)
            finally:
                scheduler.leave()

        async def hooked_find_one(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await counted(find_one, self, *args, **kwargs)

        async def hooked_commit(self: Any) -> None:
            await counted(commit, self)

        async def hooked_abort(self: Any) -> None:
            await counted(abort, self)

        async def hooked_sleep(delay: float, result: Any = None) -> Any:
            scheduler = hooks.active()
            if scheduler is None or delay <= 0 or _plain.get():
                return await sleep(delay, result)
            await scheduler.sleep(delay)
            return result

        patch.setattr(AsyncDatabase, "command", hooked_command)
        patch.setattr(AsyncCollection, "find_one", hooked_find_one)
        patch.setattr(AsyncClientSession, "commit_transaction", hooked_commit)
        patch.setattr(AsyncClientSession, "abort_transaction", hooked_abort)
        patch.setattr(asyncio, "sleep", hooked_sleep)
        self.is_fast: Callable[[Any], bool] = lambda client: True

    def active(self) -> Scheduler | None:
        """The scheduler, if the code that runs is an actor's."""
        return None if current.get() is None else self.scheduler

    def _matters(
        self, name: str, fields: Mapping[str, Any], session: AsyncClientSession | None
    ) -> bool:
        if session is not None and session.in_transaction:
            first = session._transaction.starting()
            if first:
                self._written.discard(session)
            if name in WRITES and session not in self._written:
                self._written.add(session)
                return True
            return first
        if name in _INDIFFERENT:
            return False
        if "hint" in fields and "sort" in fields:
            return False  # an estimate of where to begin or cut: nothing rests on it
        concern = fields.get("readConcern") or {}
        return "atClusterTime" not in concern

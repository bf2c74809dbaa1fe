"""Transactions under reserved session ids, whose change events are left out on the server.

PyMongo chooses session ids itself and offers no way to give one; the id is set on the server
session that it made, which is then marked dirty, so that PyMongo's own pool never hands it to
other work (a removal record written under a reserved id would stay unseen by the feeder).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bson.binary import Binary
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession

from thermocline_common.sessions import new_reserved_id


class ReservedSessions:
    """A pool of sessions with reserved ids of one client; each is used by one transaction at a time."""

    def __init__(self, client: AsyncMongoClient[dict[str, Any]]) -> None:
        self._client = client
        self._idle: list[AsyncClientSession] = []

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncClientSession]:
        """A session to start a transaction in. One that met an error isn't used again."""
        session = self._idle.pop() if self._idle else self._open()
        try:
            yield session
        except BaseException:
            await session.end_session()
            raise
        self._idle.append(session)

    def _open(self) -> AsyncClientSession:
        session = self._client.start_session(causal_consistency=False)
        session._materialize()  # noqa: SLF001
        server_session = session._server_session  # noqa: SLF001
        server_session.session_id = {"id": Binary(new_reserved_id().bytes, 4)}
        server_session.mark_dirty()
        return session


_pools: dict[int, ReservedSessions] = {}


def reserved_sessions(client: AsyncMongoClient[dict[str, Any]]) -> ReservedSessions:
    """The pool of ``client``."""
    pool = _pools.get(id(client))
    if pool is None or pool._client is not client:  # noqa: SLF001
        pool = _pools[id(client)] = ReservedSessions(client)
    return pool

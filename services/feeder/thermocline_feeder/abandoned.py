"""Ends transactions that a killed service left open: MongoDB keeps them, and what they lock, for a minute.

A server doesn't end a transaction with the connection that it came by. One of a feeder's holds the
checkpoint, which a successor has to write; those of the others hold documents that applications write.
All of them run under reserved session ids, and their statements follow each other at once.
"""

import asyncio
import logging
from typing import Any, Final

from bson.binary import Binary
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from thermocline_common.sessions import RANGE

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 3.0
"""A transaction whose next statement is so long in coming has nobody any more, or somebody who was frozen:
that one meets 251, and begins anew."""
_LIMIT_MS: Final = 5_000


async def end_abandoned(client: AsyncMongoClient[dict[str, Any]], idle_seconds: float) -> int:
    """End the reserved transactions on a tier's primary that were idle for so long; 0: all of them.

    Returns how many. Only those of the client's own user are ended, which needs no privilege. Raises
    PyMongo's errors.
    """
    low, high = (Binary(raw, 4) for raw in RANGE)
    wanted: dict[str, Any] = {
        "lsid.id": {"$gte": low, "$lte": high},
        "transaction.parameters.autocommit": False,
    }
    if idle_seconds:
        wanted |= {
            "type": "idleSession",
            "transaction.timeInactiveMicros": {"$gte": int(idle_seconds * 1_000_000)},
        }
    reply = await client.admin.command(
        {
            "aggregate": 1,
            "pipeline": [
                {"$currentOp": {"allUsers": True, "idleSessions": True}},
                {"$match": wanted},
                {"$project": {"id": "$lsid.id"}},
            ],
            "cursor": {},
            "maxTimeMS": _LIMIT_MS,
        }
    )
    found = [{"id": document["id"]} for document in reply["cursor"]["firstBatch"]]
    if found:
        await client.admin.command({"killSessions": found})
        log.warning("transactions that nobody goes on with were ended", extra={"count": len(found)})
    return len(found)


async def keep_ending(fast: AsyncMongoClient[dict[str, Any]]) -> None:
    """Look at the fast tier again and again, until cancelled.

    On the archive only feeders make transactions: who takes over ends theirs, and nobody else's are there.
    """
    while True:
        try:
            await end_abandoned(fast, IDLE_SECONDS)
        except PyMongoError as error:
            log.debug("can't look for transactions", extra={"error": str(error)})
        await asyncio.sleep(LOOK_SECONDS)

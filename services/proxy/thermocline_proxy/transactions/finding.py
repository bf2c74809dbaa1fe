"""Transactions that another proxy began (or this one before a restart): looked for on both tiers."""

import asyncio
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.errors import PyMongoError

from thermocline_common.coverage import Tier
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_proxy.owners import Key
from thermocline_proxy.transactions.pins import Pin

LOOKS = 3
"""One look at ``$currentOp`` can miss what is there."""
_LOOK_EVERY = 0.02
_HEADER = 5


async def find_open(tiers: Tiers, key: Key, number: int) -> Pin | None:
    """The open transaction of this session and number; None: neither tier shows one.

    Raises PyMongo's errors where a tier can't be asked.
    """
    failure: PyMongoError | None = None
    for look in range(LOOKS):
        if look:
            await asyncio.sleep(_LOOK_EVERY)
        failure = None
        for tier, client in ((Tier.FAST, tiers.fast), (Tier.ARCHIVE, tiers.archive)):
            try:
                found = await _look(client, key[1], number)
            except PyMongoError as error:
                failure = error
                continue
            if found is not None:
                return Pin(key, number, tier, at=found.get("readTimestamp"), started=True)
    if failure is not None:
        raise failure
    return None


async def _look(client: Any, session: bytes, number: int) -> dict[str, Any] | None:
    session_id = Binary(session[_HEADER:], session[4])
    reply = await client.get_database("admin", codec_options=PLAIN).command(
        {
            "aggregate": 1,
            "pipeline": [
                {"$currentOp": {"allUsers": True, "idleSessions": True}},
                {
                    "$match": {
                        "lsid.id": session_id,
                        "transaction.parameters.txnNumber": Int64(number),
                        "transaction.parameters.autocommit": False,
                    }
                },
                {"$project": {"transaction": 1}},
            ],
            "cursor": {},
        },
        read_preference=ReadPreference.PRIMARY,
        codec_options=PLAIN,
    )
    for operation in reply["cursor"]["firstBatch"]:
        found: dict[str, Any] = operation["transaction"]
        if isinstance(found.get("readTimestamp", Timestamp(0, 0)), Timestamp):
            return found
    return None

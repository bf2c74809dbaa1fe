"""Was a retryable write executed on F before its namespace went back to the archive?"""

from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference
from pymongo.errors import PyMongoError

from thermocline_common.errors import Code, CommandError
from thermocline_common.tiers import Tiers
from thermocline_proxy.ports import Request


async def executed_on_fast(tiers: Tiers, request: Request) -> bool:
    """Whether F's record of the session has this ``txnNumber`` (or a later one).

    Raises :class:`CommandError` 262 where F can't tell: executing it again would be worse.
    """
    command = request.command
    lsid = command.get("lsid")
    number = command.get("txnNumber")
    if not isinstance(lsid, RawBSONDocument):
        return False
    try:
        reply: dict[str, Any] = await tiers.fast.get_database("config").command(
            {
                "find": "transactions",
                "filter": {"_id.id": lsid.get("id"), "txnNum": number},
                "limit": 1,
                "singleBatch": True,
                "maxTimeMS": 5_000,
                "readConcern": {"level": "majority"},
            },
            read_preference=ReadPreference.PRIMARY,
        )
    except PyMongoError as error:
        raise CommandError(
            Code.ExceededTimeLimit,
            "the fast tier can't be asked whether it executed this write before; try again",
        ) from error
    return bool(reply["cursor"]["firstBatch"])

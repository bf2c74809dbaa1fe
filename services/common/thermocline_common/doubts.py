"""The mark on a namespace whose tiers were found to differ; in its coverage document, as ``archiveOnly``.

A proxy's self-check sets it, every proxy reads it with its lease, a person takes it away. The feeder,
warmer and evictor leave it alone, so that it outlives restarts and switches of the namespace.
"""

import datetime as dt
from typing import Any

from pymongo import AsyncMongoClient

from thermocline_common import names
from thermocline_common.coverage import Coverage, Doubt, State, parse_coverage
from thermocline_common.coverage_store import MAJORITY
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written

FIELD = "archiveOnly"


async def mark(tiers: Tiers, seen: Coverage, doubt: Doubt) -> bool:
    """Send reads of a namespace to the archive, on a majority of F. Raises PyMongo's errors; safe to repeat.

    False: nothing was changed, because it is marked already, or was switched since ``seen``: then F was
    emptied, and what was found there is no more.
    """
    query: dict[str, Any] = {
        "_id": seen.namespace,
        "state": State.ACTIVE.value,
        "activatedAt": seen.activated_at if seen.activated_at else {"$exists": False},
        FIELD: {"$exists": False},
    }
    fields = {
        "since": doubt.since or dt.datetime.now(dt.UTC),
        "command": doubt.command,
        "documents": list(doubt.documents),
        "count": doubt.count,
    }
    reply = await tiers.fast[names.DATABASE].command(
        {
            "update": names.COVERAGE,
            "updates": [{"q": query, "u": {"$set": {FIELD: fields}}}],
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)
    return bool(reply["n"] == 1)


async def release(fast: AsyncMongoClient[dict[str, Any]], namespace: str) -> Doubt | None:
    """Take the mark away, on a majority; what it said, or None where there is none. Raises PyMongo's errors."""
    reply = await fast.get_database(names.DATABASE, codec_options=PLAIN).command(
        {
            "findAndModify": names.COVERAGE,
            "query": {"_id": namespace, FIELD: {"$exists": True}},
            "update": {"$unset": {FIELD: ""}},
            "writeConcern": MAJORITY,
        },
        codec_options=PLAIN,
    )
    require_written(reply)
    return None if reply["value"] is None else parse_coverage(reply["value"]).doubt

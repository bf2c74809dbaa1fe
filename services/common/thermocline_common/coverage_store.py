"""Reading and changing coverage documents: linearizable reads, compare-and-set writes at majority."""

import asyncio
import datetime as dt
from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import ReadPreference

from thermocline_common import leases, names
from thermocline_common.coverage import Coverage, parse_coverage
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written

MAX_TIME_MS = 5_000
"""A linearizable read waits forever for a majority unless it is told not to."""
MAJORITY = {"w": "majority", "wtimeout": 10_000}


async def read_linearizable(
    client: Any, collection: str, query: Mapping[str, Any], *, max_time_ms: int = MAX_TIME_MS
) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    """Documents of a coordination collection, from a primary that is surely still one; and the reply."""
    reply = await client.get_database(names.DATABASE, codec_options=PLAIN).command(
        {
            "find": collection,
            "filter": query,
            "batchSize": 10_000,
            "singleBatch": True,
            "readConcern": {"level": "linearizable"},
            "maxTimeMS": max_time_ms,
        },
        read_preference=ReadPreference.PRIMARY,
        codec_options=PLAIN,
    )
    return list(reply["cursor"]["firstBatch"]), reply


async def read_all(tiers: Tiers) -> dict[str, Coverage]:
    """Every coverage document, by namespace. Raises PyMongo's errors."""
    documents, _ = await read_linearizable(tiers.fast, names.COVERAGE, {})
    return {d["_id"]: parse_coverage(d) for d in documents}


async def read_one(tiers: Tiers, namespace: str) -> Coverage | None:
    """One namespace's coverage document; None where there is none."""
    documents, _ = await read_linearizable(tiers.fast, names.COVERAGE, {"_id": namespace})
    return parse_coverage(documents[0]) if documents else None


async def read_lease(archive: Any, *, max_time_ms: int = MAX_TIME_MS) -> leases.Lease:
    """The lease as the archive's checkpoint publishes it now. Raises PyMongo's errors."""
    documents, _ = await read_linearizable(
        archive, names.CHECKPOINT, {"_id": names.CHECKPOINT_ID}, max_time_ms=max_time_ms
    )
    return leases.published(documents[0] if documents else None)


async def outlive_leases(archive: Any) -> None:
    """Wait until no proxy rests any more on what was changed before this call. Raises PyMongo's errors."""
    lease = await read_lease(archive)
    await asyncio.sleep(lease.wait_seconds * leases.LEASE_MARGIN)


async def compare_and_set(
    tiers: Tiers,
    seen: Coverage,
    *,
    set_fields: Mapping[str, Any] | None = None,
    unset: tuple[str, ...] = (),
    raise_by: int = 0,
) -> bool:
    """Change a coverage document if ``raised``, ``claim``, ``floor``, state and policy are as in ``seen``.

    ``raise_by=1`` also raises ``raised``. Commits with ``w: majority``. False: somebody was first.
    """
    query: dict[str, Any] = {
        "_id": seen.namespace,
        "raised": Int64(seen.raised),
        "state": seen.state.value,
        "claim": seen.claim if seen.claim is not None else {"$exists": False},
        "floor": seen.floor if seen.floor is not None else {"$exists": False},
        "ageField": seen.age_field if seen.age_field is not None else {"$exists": False},
    }
    update: dict[str, Any] = {}
    if set_fields:
        update["$set"] = dict(set_fields)
    if unset:
        update["$unset"] = dict.fromkeys(unset, "")
    if raise_by:
        update["$inc"] = {"raised": Int64(raise_by)}
    reply = await tiers.fast[names.DATABASE].command(
        {
            "update": names.COVERAGE,
            "updates": [{"q": query, "u": update}],
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)
    return bool(reply["n"] == 1)


async def claim(tiers: Tiers, seen: Coverage, bound: dt.datetime) -> bool:
    """The warmer's claim on everything at or above ``bound``."""
    return await compare_and_set(tiers, seen, set_fields={"claim": bound})


async def lower_floor(
    tiers: Tiers, seen: Coverage, floor: dt.datetime, published_at: Timestamp
) -> bool:
    """Publish that F holds everything that isn't a scalar date below ``floor``."""
    return await compare_and_set(
        tiers, seen, set_fields={"floor": floor, "publishedAt": published_at}, unset=("claim",)
    )


async def raise_floor(tiers: Tiers, seen: Coverage, floor: dt.datetime | None) -> bool:
    """Raise the floor (None: nothing is covered any more); voids a claim and counts in ``raised``."""
    if floor is None:
        return await compare_and_set(
            tiers, seen, unset=("floor", "claim", "publishedAt"), raise_by=1
        )
    return await compare_and_set(
        tiers, seen, set_fields={"floor": floor}, unset=("claim",), raise_by=1
    )


async def raise_archive_time(
    tiers: Tiers, namespaces: list[str], time: Timestamp, cluster_time: Mapping[str, Any]
) -> None:
    """``$max`` the archive time of coverage documents, with A's signed ``$clusterTime``."""
    reply = await tiers.fast[names.DATABASE].command(
        {
            "update": names.COVERAGE,
            "updates": [
                {
                    "q": {
                        "_id": {"$in": namespaces},
                        "$or": [
                            {"archiveTime": {"$lt": time}},
                            {"archiveTime": {"$exists": False}},
                        ],
                    },
                    "u": {"$set": {"archiveTime": time, "archiveClusterTime": dict(cluster_time)}},
                    "multi": True,
                }
            ],
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)

"""The barrier: wait until the archive holds every write that the fast tier acknowledged before.

A marker is written to F; once the feeder's checkpoint in A is past that write, so is everything
acknowledged before it. Waiting for a marker takes milliseconds, where waiting for other writes to
be journaled took 57 ms.
"""

import asyncio
import datetime as dt
from collections.abc import Callable

from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import ReadPreference

from thermocline_common import names
from thermocline_common.errors import ThermoclineError
from thermocline_common.tiers import Tiers
from thermocline_common.write_replies import require_written

FIRST_POLL_SECONDS = 0.001
LONGEST_POLL_SECONDS = 0.02


class BarrierTimeout(ThermoclineError):
    """The archive hadn't caught up in time: the feeder is behind or down, or a tier can't be reached."""


async def write_marker(tiers: Tiers, marker_id: str) -> Timestamp:
    """Upsert this process's marker in F with ``w: majority``; the cluster time of that write."""
    reply = await tiers.fast[names.DATABASE].command(
        {
            "update": names.MARKERS,
            "updates": [
                {
                    "q": {"_id": marker_id},
                    "u": {"$inc": {"n": Int64(1)}, "$set": {"at": dt.datetime.now(dt.UTC)}},
                    "upsert": True,
                }
            ],
            "writeConcern": {"w": "majority", "wtimeout": 10_000},
        }
    )
    require_written(reply)
    time: Timestamp = reply["operationTime"]
    return time


async def checkpoint_time(tiers: Tiers) -> tuple[Timestamp | None, Timestamp]:
    """The feeder's checkpoint (a time of F; None: there is none), and the time of A of that read.

    Read at ``majority`` from A's primary: reads of A after the second time see what the first counts.
    """
    reply = await tiers.archive[names.DATABASE].command(
        {
            "find": names.CHECKPOINT,
            "filter": {"_id": names.CHECKPOINT_ID},
            "projection": {"time": 1},
            "limit": 1,
            "singleBatch": True,
            "readConcern": {"level": "majority"},
        },
        read_preference=ReadPreference.PRIMARY,
    )
    found = reply["cursor"]["firstBatch"]
    return (found[0].get("time") if found else None), reply["operationTime"]


async def pass_barrier(
    tiers: Tiers, marker_id: str, *, seconds: float, clock: Callable[[], float]
) -> Timestamp:
    """Write a marker and wait for the checkpoint to pass it.

    Returns a cluster time of A: a read there with it as ``afterClusterTime`` at level ``majority``
    sees every write that F had acknowledged when this was called. ``seconds``: how long to wait. Raises
    :class:`BarrierTimeout`, or PyMongo's errors where a tier can't be reached.
    """
    deadline = clock() + seconds
    try:
        async with asyncio.timeout(seconds):
            return await wait_for_checkpoint(
                tiers, await write_marker(tiers, marker_id), deadline=deadline, clock=clock
            )
    except TimeoutError as error:
        raise BarrierTimeout(f"the archive didn't catch up within {seconds:.1f} s") from error


async def wait_for_checkpoint(
    tiers: Tiers, target: Timestamp, *, deadline: float, clock: Callable[[], float]
) -> Timestamp:
    """Wait until the checkpoint is at or past ``target`` (a time of F); the time of A to read at."""
    poll = FIRST_POLL_SECONDS
    while True:
        time, archive_time = await checkpoint_time(tiers)
        if time is not None and time >= target:
            return archive_time
        if clock() + poll > deadline:
            raise BarrierTimeout(f"the feeder's checkpoint is at {time}, not yet at {target}")
        await asyncio.sleep(poll)
        poll = min(poll * 1.5, LONGEST_POLL_SECONDS)

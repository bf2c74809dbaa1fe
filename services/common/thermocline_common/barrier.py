"""The barrier: wait until the archive holds every write that the fast tier acknowledged before.

A marker is written to F; once the feeder's checkpoint in A is past that write, so is everything
acknowledged before it. Waiting for a marker takes milliseconds, where waiting for other writes to
be journaled took 57 ms.
"""

import asyncio
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Reached:
    """What the archive holds. ``time``: the feeder's checkpoint, a time of F; None: there is none.

    ``archive_time``: the time of A of this look; reads of A after it see what ``time`` counts.
    ``lacking``: the namespaces of which A couldn't take some documents (quarantine).
    """

    time: Timestamp | None
    archive_time: Timestamp
    lacking: frozenset[str]


async def checkpoint_reached(tiers: Tiers) -> Reached:
    """The feeder's checkpoint, read at ``majority`` from A's primary."""
    reply = await tiers.archive[names.DATABASE].command(
        {
            "find": names.CHECKPOINT,
            "filter": {"_id": names.CHECKPOINT_ID},
            "projection": {"time": 1, "quarantine.ns": 1},
            "limit": 1,
            "singleBatch": True,
            "readConcern": {"level": "majority"},
        },
        read_preference=ReadPreference.PRIMARY,
    )
    batch = reply["cursor"]["firstBatch"]
    found = batch[0] if batch else {}
    lacking = frozenset(str(entry["ns"]) for entry in found.get("quarantine") or ())
    return Reached(found.get("time"), reply["operationTime"], lacking)


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
        reached = await checkpoint_reached(tiers)
        if reached.time is not None and reached.time >= target:
            return reached.archive_time
        if clock() + poll > deadline:
            raise BarrierTimeout(
                f"the feeder's checkpoint is at {reached.time}, not yet at {target}"
            )
        await asyncio.sleep(poll)
        poll = min(poll * 1.5, LONGEST_POLL_SECONDS)

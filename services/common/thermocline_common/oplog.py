"""A look at the fast tier's oplog, and at how far replay is in it."""

import os
from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, ReadPreference

from thermocline_common.oplog_window import Look, Track, Window
from thermocline_common.tiers import PLAIN

TEST_VARIABLE: Final = "THERMOCLINE_TEST_OPLOG_BYTES"
"""For tests only: the oplog counts as so small, because MongoDB makes none below 990 MB."""
OPLOG: Final = "oplog.rs"
_WRITTEN: Final = "insert key and value bytes"


def pretended_bytes(environment: Mapping[str, str] = os.environ) -> int | None:
    """The override, or None. Raises ``ValueError`` on a bad one."""
    given = environment.get(TEST_VARIABLE)
    return None if given is None else int(given)


PRETENDED_BYTES: Final = pretended_bytes()


async def look(fast: AsyncMongoClient[dict[str, Any]], pretended: int | None = None) -> Look:
    """F's primary's oplog now. Needs ``find`` and ``collStats`` on it. Raises PyMongo's errors."""
    local = fast.get_database("local", codec_options=PLAIN)
    statistics = await local.command(
        {
            "aggregate": OPLOG,
            "pipeline": [
                {"$collStats": {"storageStats": {}}},
                {
                    "$project": {
                        "size": "$storageStats.size",
                        "most": "$storageStats.maxSize",
                        "written": f"$storageStats.wiredTiger.cursor.{_WRITTEN}",
                    }
                },
            ],
            "cursor": {},
        },
        read_preference=ReadPreference.PRIMARY,
        codec_options=PLAIN,
    )
    # The time comes after the count: what is counted was written by then.
    hello = await fast.admin.command("hello", read_preference=ReadPreference.PRIMARY)
    find = {"find": OPLOG, "limit": 1, "singleBatch": True, "projection": {"ts": 1}}
    first = await local.command(
        {**find, "sort": {"$natural": 1}},
        read_preference=ReadPreference.PRIMARY,
        codec_options=PLAIN,
    )
    found = statistics["cursor"]["firstBatch"][0]
    size, most = int(found["size"]), int(found["most"])
    if pretended is not None:
        size, most = min(size, pretended), pretended
    return Look(
        process=hello["topologyVersion"]["processId"],
        time=hello["lastWrite"]["opTime"]["ts"],
        written=int(found["written"]),
        size=size,
        most=most,
        oldest=first["cursor"]["firstBatch"][0]["ts"],
    )


class OplogMeter:
    """Follows F's oplog by looks of its own, so that nothing depends on a process that may be frozen."""

    def __init__(
        self, fast: AsyncMongoClient[dict[str, Any]], pretended: int | None = PRETENDED_BYTES
    ) -> None:
        self._fast = fast
        self._pretended = pretended
        self._track = Track()

    async def look(self) -> Look:
        """See :func:`look`."""
        return await look(self._fast, self._pretended)

    def window(self, seen: Look, checkpoint: Timestamp) -> Window:
        """The window behind ``checkpoint``, which was read after ``seen``."""
        self._track = self._track.saw(seen, checkpoint)
        return self._track.window(seen, checkpoint)

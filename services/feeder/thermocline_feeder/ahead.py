"""Has the archive read what replay is about to write, side by side."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from thermocline_common.clock import Clock
from thermocline_common.ids import DocId, in_filter
from thermocline_common.portions import portions
from thermocline_common.raw_reads import Client, run_raw
from thermocline_feeder.plan.ahead import Cost, lanes
from thermocline_feeder.plan.verdicts import Verdict

IDS_A_COMMAND = 50
"""The server reads them one after the other: a longer command would end later, and bring nothing."""
MOST_SECONDS = 15.0
"""What isn't read by then, the write reads itself."""
NO_FIELD = {"_id": 0, "\u0001": 1}
"""Nothing of each document; but to know that, the server fetches it. Of ``_id`` alone the index would do."""


@dataclass(slots=True)
class ReadAhead:
    """Reads of the archive before replay writes there. Without any, a transaction that writes documents on the
    disk reads them one by one, each behind all that the archive's readers wait for."""

    archive: Client
    clock: Clock
    cost: Cost = field(default_factory=Cost)

    async def read(self, verdicts: Sequence[Verdict]) -> float:
        """Have these documents in the archive's memory, if it is worth it; the seconds that took."""
        wanted = lanes(verdicts, self.cost)
        if not wanted:
            return 0.0
        began = self.clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOST_SECONDS):
                await asyncio.gather(*(_lane(self.archive, lane) for lane in wanted))
        return self.clock() - began

    def saw(self, documents: int, reading: float, writing: float) -> None:
        """A batch was written."""
        self.cost = self.cost.saw(documents, reading, writing)


async def _lane(archive: Client, lane: Mapping[str, list[DocId]]) -> None:
    for namespace, ids in lane.items():
        database, collection = namespace.split(".", 1)
        for portion in portions(ids, IDS_A_COMMAND):
            command = {
                "find": collection,
                "filter": RawBSONDocument(in_filter(portion)),
                "projection": NO_FIELD,
                "batchSize": len(portion) + 1,
                "singleBatch": True,
            }
            try:
                await run_raw(archive, database, command)
            except PyMongoError:
                return  # the write meets the same, and says what is wrong

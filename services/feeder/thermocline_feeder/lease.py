"""Publishes in A's checkpoint how long proxies may rest on what they read, as the manifest wants it."""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary

from thermocline_common import names
from thermocline_common.coverage_store import MAJORITY, outlive_leases, read_lease
from thermocline_common.leases import Lease
from thermocline_common.raw_reads import Client
from thermocline_common.write_replies import require_written
from thermocline_feeder.checkpoint import Fenced

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeasePublisher:
    """For the owner of replay; what another owner publishes meanwhile is never overwritten."""

    archive: Client
    me: uuid.UUID

    async def publish(self, wanted_seconds: float) -> None:
        """Until ``wanted_seconds`` is what proxies may use and waiters wait for.

        Returns after a wait where a longer lease was published before. Repeating it after a crash at
        any point is safe. Raises :class:`Fenced`, ``ValueError``, PyMongo's errors.
        """
        wanted = round(wanted_seconds * 1_000)
        seen = await read_lease(self.archive)
        if seen.longest != wanted or seen.wait < wanted:
            seen = await self._write(seen, seen.towards(wanted))
        if seen.wait > seen.longest:
            await outlive_leases(self.archive)
            seen = await self._write(seen, seen.settled())
            log.info("the proxies' lease is shorter now", extra={"milliseconds": wanted})
        else:
            # Where nothing was published so far, the value that holds without is made explicit.
            await self._write(seen, seen)

    async def _write(self, seen: Lease, lease: Lease) -> Lease:
        query: dict[str, Any] = {
            "_id": names.CHECKPOINT_ID,
            "feeder": Binary.from_uuid(self.me),
            "$or": [{"lease": seen.document()}, {"lease": {"$exists": False}}],
        }
        update = {"q": query, "u": {"$set": {"lease": lease.document()}}}
        reply: Mapping[str, Any] = await self.archive[names.DATABASE].command(
            {"update": names.CHECKPOINT, "updates": [update], "writeConcern": MAJORITY}
        )
        require_written(reply)
        if reply["n"] != 1:
            raise Fenced("another feeder publishes the lease now")
        return lease

"""Looks at the types of the archive's ages, now and then, for the status and the metrics."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bson.raw_bson import RawBSONDocument

from thermocline_common.clock import Clock, monotonic
from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId, wrap
from thermocline_common.random_ids import RandomIds
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_warmer.plan.ages import SAMPLE, AgeTypes, add_groups, group_by_type

LOOK_SECONDS = 600.0
APART_SECONDS = 0.2
"""Between two documents of a large collection: all at once would hold up its readers."""
_LIMIT_MS = 20_000


class AgeLooks:
    """``reports``: by namespace, of the last look. ``sleep``: its result is true where a look is to end."""

    def __init__(
        self,
        tiers: Tiers,
        clock: Clock = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._tiers = tiers
        self._clock = clock
        self._sleep = sleep
        self._ids = RandomIds(tiers.archive, clock)
        self._due: dict[tuple[str, str], float] = {}
        self.reports: dict[str, AgeTypes] = {}

    async def look(self, active: Mapping[str, Coverage]) -> None:
        """Look at those that are due; forget those that aren't active any more. Raises PyMongo's errors.

        A look that fails is tried again when the next one is due: it only informs.
        """
        wanted = {(n, c.age_field): c for n, c in active.items() if c.age_field is not None}
        self._due = {key: due for key, due in self._due.items() if key in wanted}
        self.reports = {n: r for n, r in self.reports.items() if (n, _field(active, n)) in wanted}
        for (namespace, path), coverage in wanted.items():
            assert path is not None
            now = self._clock()
            if self._due.get((namespace, path), now) <= now:
                self._due[namespace, path] = now + LOOK_SECONDS
                self.reports[namespace] = await self._sample(coverage, path)

    async def _sample(self, coverage: Coverage, path: str) -> AgeTypes:
        """All documents of a small collection; of a large one some, evenly spread over its ids."""
        if await self._estimated(coverage.namespace) <= SAMPLE:
            return add_groups(AgeTypes(), await self._aggregate(coverage, group_by_type(path)))
        types = AgeTypes()
        for _ in range(SAMPLE):
            chosen = await self._ids.choose(coverage.namespace)
            if chosen:
                pipeline = [*_next_from(random.choice(chosen)), *group_by_type(path)]  # noqa: S311
                types = add_groups(types, await self._aggregate(coverage, pipeline))
            if await self._sleep(APART_SECONDS):
                break
        return types

    async def _estimated(self, namespace: str) -> int:
        database, collection = namespace.split(".", 1)
        return await self._tiers.archive[database][collection].estimated_document_count()

    async def _aggregate(
        self, coverage: Coverage, pipeline: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        database, collection = coverage.namespace.split(".", 1)
        command = {
            "aggregate": collection,
            "pipeline": pipeline,
            "cursor": {},
            "maxTimeMS": _LIMIT_MS,
        }
        found = await self._tiers.archive.get_database(database, codec_options=PLAIN).command(
            command, codec_options=PLAIN
        )
        groups: list[dict[str, Any]] = found["cursor"]["firstBatch"]
        return groups


def _next_from(chosen: DocId) -> list[dict[str, Any]]:
    """The document with this ``_id``, or the next one of its kind."""
    match = {"_id": RawBSONDocument(wrap(chosen.element(b"$gte")))}
    return [{"$match": match}, {"$sort": {"_id": 1}}, {"$limit": 1}]


def _field(active: Mapping[str, Coverage], namespace: str) -> str | None:
    found = active.get(namespace)
    return None if found is None else found.age_field

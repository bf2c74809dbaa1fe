"""Looks at the types of the archive's ages, now and then, for the status and the metrics."""

from collections.abc import Mapping

from thermocline_common.clock import Clock, monotonic
from thermocline_common.coverage import Coverage
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_warmer.plan.ages import AgeTypes, parse_sample, sample_pipeline

LOOK_SECONDS = 600.0
_LIMIT_MS = 20_000


class AgeLooks:
    """``reports``: by namespace, of the last look."""

    def __init__(self, tiers: Tiers, clock: Clock = monotonic) -> None:
        self._tiers = tiers
        self._clock = clock
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
        database, collection = coverage.namespace.split(".", 1)
        command = {
            "aggregate": collection,
            "pipeline": sample_pipeline(path),
            "cursor": {},
            "maxTimeMS": _LIMIT_MS,
        }
        found = await self._tiers.archive.get_database(database, codec_options=PLAIN).command(
            command, codec_options=PLAIN
        )
        return parse_sample(found["cursor"]["firstBatch"])


def _field(active: Mapping[str, Coverage], namespace: str) -> str | None:
    found = active.get(namespace)
    return None if found is None else found.age_field

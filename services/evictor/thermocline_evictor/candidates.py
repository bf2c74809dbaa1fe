"""Walks over F's documents by age, oldest first: candidates for eviction."""

from typing import Any

from bson.datetime_ms import DatetimeMS

from thermocline_common.ages import LOWEST_DATE, age_index, scalar_date
from thermocline_common.coverage import Coverage
from thermocline_common.errors import ThermoclineError
from thermocline_common.ids import DocId
from thermocline_common.indexes import list_indexes
from thermocline_common.raw_reads import run_raw
from thermocline_common.tiers import Tiers

LARGEST_PAGE = 100_000


class NoAgeIndex(ThermoclineError):
    """F has no full index that starts with the age field."""


async def age_index_name(tiers: Tiers, coverage: Coverage) -> str:
    """The index to walk along. Raises :class:`NoAgeIndex`."""
    found = age_index(await list_indexes(tiers.fast, coverage.namespace), coverage.age_field or "")
    if found is None:
        raise NoAgeIndex(
            f"{coverage.namespace}: the fast tier has no full index that starts with "
            f"{coverage.age_field!r}; the warmer makes its indexes as the archive's are"
        )
    return str(found["name"])


class Walk:
    """One pass. Each call of :meth:`page` gives the next ids, until there are none.

    A page is a query of its own: an open cursor would look to other evictors like a reader who
    still trusts an old floor. What is read here only proposes; the age is judged again on the
    bytes that are to be deleted.
    """

    def __init__(self, tiers: Tiers, coverage: Coverage, index: str) -> None:
        self._tiers = tiers
        self._coverage = coverage
        self._index = index
        self._from: Any = LOWEST_DATE
        self._met: set[DocId] = set()
        self.done = False

    async def page(self, bound: int, size: int) -> list[DocId]:
        """Up to ``size`` or so ids of documents with a scalar age below ``bound`` (ms)."""
        database, collection = self._coverage.namespace.split(".", 1)
        path = self._coverage.age_field or ""
        limit = size + len(self._met)
        while not self.done:
            command = {
                "find": collection,
                "filter": {path: {"$gte": self._from, "$lt": DatetimeMS(bound)}},
                "projection": {"_id": 1, path: 1},
                "sort": {path: 1},
                "hint": self._index,
                "limit": limit,
                "batchSize": limit,
                "singleBatch": True,
            }
            reply = await run_raw(self._tiers.fast, database, command)
            batch = [bytes(document.raw) for document in reply["cursor"]["firstBatch"]]
            fresh = self._take(batch, path)
            if len(batch) < limit and not _full(batch):
                self.done = True
            elif not fresh:
                # Only documents of one age, or arrays: a wider page gets past them.
                limit = min(LARGEST_PAGE, limit * 2)
                if len(batch) >= LARGEST_PAGE or _full(batch):
                    # No page gets past them. When these have left, another pass finds the others.
                    self.done = True
            if fresh:
                return fresh
        return []

    def _take(self, batch: list[bytes], path: str) -> list[DocId]:
        """The ids of a page that weren't met before; moves the position on."""
        fresh = []
        ages = [(DocId.of_document(raw), scalar_date(raw, path)) for raw in batch]
        scalar = [age for _, age in ages if age is not None]
        for doc_id, age in ages:
            if age is not None and doc_id not in self._met:
                fresh.append(doc_id)
        if scalar:
            last = max(scalar)
            if DatetimeMS(last) != self._from:
                self._from = DatetimeMS(last)
                self._met = set()
            self._met |= {doc_id for doc_id, age in ages if age == last}
        return fresh


def _full(batch: list[bytes]) -> bool:
    """Whether a page was cut off by the size of a reply, not by its limit."""
    return sum(map(len, batch)) > 15 * 1024 * 1024


async def oldest_resident(tiers: Tiers, coverage: Coverage, index: str) -> int | None:
    """The least scalar age (ms) in F, or None."""
    database, collection = coverage.namespace.split(".", 1)
    path = coverage.age_field or ""
    command = {
        "find": collection,
        "filter": {path: {"$gte": LOWEST_DATE}},
        "projection": {"_id": 0, path: 1},
        "sort": {path: 1},
        "hint": index,
        "limit": 20,
        "singleBatch": True,
    }
    reply = await run_raw(tiers.fast, database, command)
    for document in reply["cursor"]["firstBatch"]:
        age = scalar_date(bytes(document.raw), path)
        if age is not None:
            return age
    return None

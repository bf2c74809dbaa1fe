"""Reads of the archive for warming: which ids belong to a slice."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from thermocline_common.ages import (
    age_index,
    is_multikey,
    odd_ages_filter,
    scalar_date,
    to_milliseconds,
)
from thermocline_common.copy_in import CollectionChanged
from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, ThermoclineError
from thermocline_common.ids import DocId
from thermocline_common.indexes import list_indexes
from thermocline_common.raw_reads import find_raw, run_raw
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_warmer.plan.windows import WarmSlice


class NoAgeIndex(ThermoclineError):
    """The archive has no full index that starts with the age field: warming would read everything."""


@dataclass(frozen=True, slots=True)
class AgeIndex:
    """The index that orders the archive's documents by age."""

    name: str
    path: str
    multikey: bool


async def find_age_index(tiers: Tiers, coverage: Coverage) -> AgeIndex:
    """Raises :class:`NoAgeIndex`.

    To be called after the barrier: an array that is written to the archive later is in F already.
    """
    path = coverage.age_field or ""
    found = age_index(await list_indexes(tiers.archive, coverage.namespace), path)
    if found is None:
        raise NoAgeIndex(
            f"{coverage.namespace}: the archive has no full index that starts with {path!r}; "
            f"create one: db.getSiblingDB({coverage.namespace.split('.', 1)[0]!r})"
            f".getCollection({coverage.namespace.split('.', 1)[1]!r}).createIndex({{{path!r}: 1}})"
        )
    database, collection = coverage.namespace.split(".", 1)
    find = {"find": collection, "filter": {path: {"$gte": DatetimeMS(0)}}, "hint": found["name"]}
    explanation = await tiers.archive.get_database(database).command(
        {"explain": find, "verbosity": "queryPlanner"}, codec_options=PLAIN
    )
    return AgeIndex(found["name"], path, is_multikey(explanation, path))


async def find_nth_newest(
    tiers: Tiers, coverage: Coverage, index: AgeIndex, work: WarmSlice, number: int
) -> int | None:
    """The age (ms) of document ``number`` below ``work.upper``, newest first; None: there are fewer.

    Only an estimate of where to cut: nothing rests on it.
    """
    database, collection = coverage.namespace.split(".", 1)
    bounds: dict[str, Any] = {"$gte": work.horizon}
    if work.upper is not None:
        bounds["$lt"] = work.upper
    command = {
        "find": collection,
        "filter": {index.path: bounds},
        "projection": {index.path: 1},
        "sort": {index.path: -1},
        "hint": index.name,
        "skip": number - 1,
        "limit": 1,
        "singleBatch": True,
    }
    reply = await run_raw(tiers.archive, database, command)
    for document in reply["cursor"]["firstBatch"]:
        return scalar_date(bytes(document.raw), index.path)
    return None


def slice_filter(path: str, lower: Any, upper: Any) -> dict[str, Any]:
    """Every scalar Date in ``[lower, upper)``, and some arrays; ``upper`` None: no upper end."""
    bounds: dict[str, Any] = {"$gte": DatetimeMS(to_milliseconds(lower))}
    if upper is not None:
        bounds["$lt"] = DatetimeMS(to_milliseconds(upper))
    return {path: bounds}


def odd_filter(index: AgeIndex) -> dict[str, Any]:
    """Every document whose age isn't a scalar Date."""
    return odd_ages_filter(index.path, index.multikey)


async def scan_ids(
    tiers: Tiers,
    coverage: Coverage,
    after: Timestamp,
    size: Callable[[], int],
    query: Mapping[str, Any] | None = None,
    hint: str = "_id_",
) -> AsyncGenerator[list[DocId], None]:
    """Ids of the archive's documents that match, in the hinted index's order, ``size()`` at a time.

    What changes in the archive while the scan runs was written to F after the barrier, and needs
    no copy. Raises :class:`CollectionChanged`.
    """
    database, collection = coverage.namespace.split(".", 1)
    command: dict[str, Any] = {
        "find": collection,
        "filter": dict(query or {}),
        "projection": {"_id": 1},
        "hint": hint,
        "batchSize": size(),
        "readConcern": {"level": "majority", "afterClusterTime": after},
    }
    if coverage.archive_uuid is not None:
        command["collectionUUID"] = Binary.from_uuid(coverage.archive_uuid)
    ids: list[DocId] = []
    try:
        found = find_raw(tiers.archive, database, command, more_size=size)
        async with contextlib.aclosing(found) as documents:
            async for document in documents:
                ids.append(DocId.of_document(bytes(document.raw)))
                if len(ids) >= size():
                    yield ids
                    ids = []
    except OperationFailure as error:
        if error.code == Code.CollectionUUIDMismatch:
            raise CollectionChanged(f"{coverage.namespace}: {error}") from error
        raise
    if ids:
        yield ids


async def estimate_count(tiers: Tiers, namespace: str) -> int:
    """About how many documents the archive's collection has."""
    database, collection = namespace.split(".", 1)
    return int(await tiers.archive[database][collection].estimated_document_count())

"""Unique keys across the tiers: who holds them in A.

F alone refuses a key only to documents that it holds. So whoever holds one of the keys in A is
kept in F first; then F answers as one MongoDB would.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Coverage, UniqueIndex
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_raw
from thermocline_proxy.writes import keys
from thermocline_proxy.writes.keys import NotDecidable, UniqueSpec
from thermocline_proxy.writes.refusal import Refused
from thermocline_proxy.writes.run import Run

_FILTERS_A_QUERY = 200


_specs: dict[tuple[str, object, tuple[UniqueIndex, ...]], tuple[UniqueSpec, ...]] = {}
"""By namespace, activation and indexes: unique indexes are built in ``Passthrough`` only."""


async def unique_specs(run: Run, coverage: Coverage) -> tuple[UniqueSpec, ...]:
    """The namespace's unique indexes; those that need it are looked at in F. Raises ``Refused``."""
    if all(index.plain and not any("." in p for p in index.paths) for index in coverage.unique):
        return tuple(
            UniqueSpec(i.name, tuple(p.encode() for p in i.paths)) for i in coverage.unique
        )
    key = (run.namespace, coverage.epoch, coverage.unique)
    if key not in _specs:
        _specs[key] = await _read_specs(run)
    return _specs[key]


async def _read_specs(run: Run) -> tuple[UniqueSpec, ...]:
    specs = []
    command = {"listIndexes": run.collection, "cursor": {}}
    async with run.bounded():
        async for document in find_raw(run.gateway.tiers.fast, run.database, command):
            try:
                spec = keys.parse_spec(bytes(document.raw))
            except NotDecidable as error:
                raise Refused(f"{run.namespace}: {error}") from error
            if spec is not None:
                specs.append(spec)
    return tuple(specs)


async def holders(
    run: Run, coverage: Coverage, documents: Iterable[bytes], specs: Sequence[UniqueSpec]
) -> frozenset[DocId]:
    """The documents in A that could hold a unique key of one of these. Raises ``Refused``."""
    try:
        lookups = [each for d in documents for spec in specs for each in keys.holders(d, spec)]
    except NotDecidable as error:
        raise Refused(f"{run.namespace}: {error}") from error
    found: set[DocId] = set()
    for lookup in keys.grouped(lookups, _FILTERS_A_QUERY):
        fields: dict[str, Any] = {}
        if lookup.collation is not None:
            fields["collation"] = RawBSONDocument(lookup.collation)
        if lookup.bounds is not None:
            low, high = lookup.bounds
            fields |= {
                "hint": lookup.hint,
                "min": RawBSONDocument(low),
                "max": RawBSONDocument(high),
            }
        found |= set(await run.archive_matches(coverage, lookup.query, fields))
    return frozenset(found)


async def keep_holders(
    run: Run, coverage: Coverage, documents: Iterable[bytes], specs: Sequence[UniqueSpec]
) -> None:
    """Have in F whoever may hold a unique key of one of these documents."""
    await run.keep(coverage, await holders(run, coverage, documents, specs))

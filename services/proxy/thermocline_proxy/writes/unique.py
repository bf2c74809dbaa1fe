"""Unique keys across the tiers: who holds them in A.

F alone refuses a key only to documents that it holds. So whoever holds one of the keys in A is
kept in F first; then F answers as one MongoDB would.
"""

from collections.abc import Iterable

from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_raw
from thermocline_proxy.writes import changes, keys
from thermocline_proxy.writes.keys import NotDecidable, UniqueSpec
from thermocline_proxy.writes.refusal import Refused
from thermocline_proxy.writes.run import Run
from thermocline_proxy.writes.targets import Target

_FILTERS_A_QUERY = 200


def index_paths(coverage: Coverage) -> tuple[str, ...]:
    """Every path that a unique index of the namespace holds."""
    return tuple(path for index in coverage.unique for path in index.paths)


def touches_unique(coverage: Coverage, target: Target) -> bool:
    """Whether the target's update can change a unique key."""
    update = target.update
    if update is None or not coverage.unique:
        return False
    return changes.touch(update, index_paths(coverage)) is not changes.Touch.NO


async def unique_specs(run: Run, coverage: Coverage) -> tuple[UniqueSpec, ...]:
    """The namespace's unique indexes; those that aren't plain are looked at in F. Raises ``Refused``."""
    if all(index.plain for index in coverage.unique):
        return tuple(
            UniqueSpec(i.name, tuple(p.encode() for p in i.paths)) for i in coverage.unique
        )
    specs = []
    command = {"listIndexes": run.collection, "cursor": {}}
    async for document in find_raw(run.gateway.tiers.fast, run.database, command):
        try:
            spec = keys.parse_spec(bytes(document.raw))
        except NotDecidable as error:
            raise Refused(f"{run.namespace}: {error}") from error
        if spec is not None:
            specs.append(spec)
    return tuple(specs)


async def holders(
    run: Run, coverage: Coverage, documents: Iterable[bytes], specs: Iterable[UniqueSpec]
) -> frozenset[DocId]:
    """The documents in A that could hold a unique key of one of these."""
    found: set[DocId] = set()
    for collation, wanted in keys.by_collation(documents, specs).items():
        fields = {} if collation is None else {"collation": RawBSONDocument(collation)}
        for start in range(0, len(wanted), _FILTERS_A_QUERY):
            query = keys.any_of(wanted[start : start + _FILTERS_A_QUERY])
            found |= set(await run.archive_matches(coverage, query, fields))
    return frozenset(found)


async def keep_holders(
    run: Run, coverage: Coverage, documents: Iterable[bytes], specs: Iterable[UniqueSpec]
) -> None:
    """Have in F whoever may hold a unique key of one of these documents."""
    await run.keep(coverage, await holders(run, coverage, documents, specs))

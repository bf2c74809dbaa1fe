"""Keeps F's indexes and collection options equal to the archive's."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from pymongo.errors import OperationFailure

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code
from thermocline_common.indexes import list_indexes
from thermocline_common.raw_reads import run_raw
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written
from thermocline_warmer.plan.parity import IndexPlan, OptionsPlan, plan_indexes, plan_options

MAJORITY = {"w": "majority", "wtimeout": 10_000}


@dataclass(slots=True)
class CollectionReport:
    """What differs of one namespace, by name; empty where the tiers are equal."""

    indexes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class Collections:
    """Indexes and options of active namespaces.

    A difference is mended when two looks in a row found the same one: the proxy changes the archive
    first and F a moment later, and must not be overtaken.
    """

    tiers: Tiers
    reports: dict[str, CollectionReport] = field(default_factory=dict)
    _seen: dict[str, tuple[IndexPlan, OptionsPlan]] = field(default_factory=dict)

    async def compare(self, coverage: Coverage) -> None:
        """Look at an active namespace, and mend what was already different last time.

        Raises PyMongo's errors where a tier can't be reached; what F refuses is in the report.
        """
        namespace = coverage.namespace
        indexes = plan_indexes(
            await list_indexes(self.tiers.archive, namespace),
            await list_indexes(self.tiers.fast, namespace),
        )
        there = await _read_options(self.tiers.archive, namespace)
        here = await _read_options(self.tiers.fast, namespace)
        if there is None or here is None:
            # Made or dropped just now: the feeder's business.
            self._seen.pop(namespace, None)
            return
        options = plan_options(there, here)
        report = CollectionReport(indexes.names, options.names)
        if self._seen.get(namespace) == (indexes, options):
            try:
                await self._mend(coverage, indexes, options)
            except OperationFailure as error:
                report.error = f"{error.code}: {(error.details or {}).get('errmsg', error)}"
            else:
                report = CollectionReport(options=options.differ)
        self._seen[namespace] = (indexes, options)
        self.reports[namespace] = report

    def forget(self, namespaces: Iterable[str]) -> None:
        """Drop what is known of every namespace but these."""
        kept = set(namespaces)
        for known in (self.reports, self._seen):
            for namespace in set(known) - kept:
                del known[namespace]

    async def _mend(self, coverage: Coverage, indexes: IndexPlan, options: OptionsPlan) -> None:
        database, collection = coverage.namespace.split(".", 1)
        if coverage.fast_uuid is None:
            return
        extra = {
            "collectionUUID": Binary.from_uuid(coverage.fast_uuid),
            "writeConcern": MAJORITY,
        }
        commands: list[dict[str, Any]] = []
        if options.coll_mod:
            commands.append({"collMod": collection, **options.coll_mod})
        if indexes.drop:
            commands.append({"dropIndexes": collection, "index": list(indexes.drop)})
        if indexes.create:
            commands.append({"createIndexes": collection, "indexes": list(indexes.create)})
        for command in commands:
            try:
                require_written(await run_raw(self.tiers.fast, database, {**command, **extra}))
            except OperationFailure as error:
                if error.code not in (Code.IndexNotFound, Code.CollectionUUIDMismatch):
                    raise


async def _read_options(client: Any, namespace: str) -> dict[str, Any] | None:
    database, collection = namespace.split(".", 1)
    command = {"listCollections": 1, "filter": {"name": collection, "type": "collection"}}
    reply = await client.get_database(database).command(command, codec_options=PLAIN)
    for found in reply["cursor"]["firstBatch"]:
        return dict(found.get("options", {}))
    return None

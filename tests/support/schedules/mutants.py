"""The model's rules, each taken out of the real code: a test shows that the protocol breaks without it.

The names are those of ``tests/model/mutants.py``.
"""

import dataclasses
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.read_concern import ReadConcern

from thermocline_common import copy_in, coverage_store, names, raw_reads
from thermocline_common.coverage import Coverage, Tier
from thermocline_common.ids import DocId, record_id
from thermocline_common.raw_reads import run_raw
from thermocline_common.removals import Kind, Record, hides
from thermocline_common.tiers import Tiers
from thermocline_evictor import announcing, deleter, eviction, records
from thermocline_evictor.plan import cutoff, steps, verdicts as verdicts_plan
from thermocline_feeder import fetch, stream
from thermocline_proxy.barrier import SharedBarrier
from thermocline_proxy.commands.command import Command
from thermocline_proxy.ports import Reply
from thermocline_proxy.reads import by_key
from thermocline_proxy.reads.lookups import Lookups
from thermocline_proxy.writes import removal
from thermocline_proxy.writes.run import Run
from thermocline_warmer import warming

Patch = pytest.MonkeyPatch


def no_removal_lookup(patch: Patch) -> None:
    """A read that misses in F goes to A without asking for a record."""

    async def records(*_: Any) -> dict[DocId, Record]:
        return {}

    patch.setattr(Lookups, "records", records)


def trust_record_alone(patch: Patch) -> None:
    """A read takes a ``deleted`` record for the answer, without another look at F."""
    after_absence = by_key.KeyReads._after_absence

    async def trusting(
        self: by_key.KeyReads, doc_id: DocId, command: Command | None = None
    ) -> Reply:
        found = await self.lookups.records(self.coverage.namespace, (doc_id,), None)
        if not hides(found.get(doc_id)):
            return await after_absence(self, doc_id, command)
        cursor = {"firstBatch": [], "id": 0, "ns": self.coverage.namespace}
        return Reply(bson.encode({"cursor": cursor, "ok": 1.0}), Tier.FAST, "")

    patch.setattr(by_key.KeyReads, "_after_absence", trusting)


def no_token_check(patch: Patch) -> None:
    """A copy doesn't mind that the record changed since A was read."""
    plan_copy = copy_in.plan_copy

    def plan(
        ids: Iterable[DocId],
        existing: Iterable[DocId],
        found: Mapping[DocId, Record],
        before: Mapping[DocId, Record],
        documents: Mapping[DocId, RawBSONDocument],
    ) -> copy_in.CopyPlan:
        return plan_copy(ids, existing, found, found, documents)

    patch.setattr(copy_in, "plan_copy", plan)


def ignore_deleted(patch: Patch) -> None:
    """A copy doesn't mind a ``deleted`` record."""
    read_records = raw_reads.read_records

    async def read(*arguments: Any, **options: Any) -> dict[DocId, Record]:
        found = await read_records(*arguments, **options)
        return {i: dataclasses.replace(r, kind=Kind.EVICTED) for i, r in found.items()}

    patch.setattr(copy_in, "read_records", read)


def no_conflict(patch: Patch) -> None:
    """A copy is written outside of the transaction that looked."""
    write: Any = copy_in._write

    async def write_outside(work: Any, session: Any, plan: copy_in.CopyPlan) -> None:
        await session.abort_transaction()
        await write(work, None, plan)
        await session.start_transaction()

    patch.setattr(copy_in, "_write", write_outside)


def no_cancel(patch: Patch) -> None:
    """Who asks for a copy doesn't cancel the document's departure."""
    plan_copy = copy_in.plan_copy

    def plan(*arguments: Any) -> copy_in.CopyPlan:
        return dataclasses.replace(plan_copy(*arguments), stay=())

    patch.setattr(copy_in, "plan_copy", plan)


def record_without_doc_check(patch: Patch) -> None:
    """A ``deleted`` record is written whether F has the document or not."""

    async def found(
        _: Any, namespace: str, ids: Iterable[DocId], **options: Any
    ) -> dict[DocId, RawBSONDocument]:
        return {i: RawBSONDocument(i.document()) for i in ids}

    patch.setattr(removal, "find_by_ids", found)


def evict_ignores_d(patch: Patch) -> None:
    """An announcement is written over whatever record there is."""
    announce = records.announce

    async def unrecorded(*_: Any) -> dict[DocId, Record]:
        return {}

    async def over(tiers: Tiers, namespace: str, ids: Iterable[DocId]) -> dict[DocId, uuid.UUID]:
        wanted = list(ids)
        keys = [RawBSONDocument(record_id(namespace, i)) for i in wanted]
        deletes = [{"q": {"_id": key}, "limit": 1} for key in keys]
        command = {"delete": names.REMOVED, "deletes": deletes, "writeConcern": {"w": "majority"}}
        await run_raw(tiers.fast, names.DATABASE, command)
        return await announce(tiers, namespace, wanted)

    patch.setattr(records, "announce", over)
    patch.setattr(announcing, "read_records", unrecorded)


def ignore_cancel(patch: Patch) -> None:
    """The evictor deletes whatever became of its announcement."""
    final = verdicts_plan.final

    def ignoring(
        verdicts: Mapping[DocId, Any],
        fast: Mapping[DocId, bytes],
        _: Mapping[DocId, Record],
        announced: Mapping[DocId, tuple[uuid.UUID, bytes]],
    ) -> dict[DocId, Any]:
        ours = {i: Record("", i, Kind.LEAVING, token) for i, (token, _) in announced.items()}
        return final(verdicts, fast, ours, announced)

    async def upserting(
        tiers: Tiers, session: Any, namespace: str, tokens: Mapping[DocId, uuid.UUID]
    ) -> None:
        updates = [
            {
                "q": records.record_query(namespace, i),
                "u": {"$set": {"kind": Kind.EVICTED.value, "token": token}},
                "upsert": True,
            }
            for i, token in tokens.items()
        ]
        command = {"update": names.REMOVED, "updates": updates}
        await run_raw(tiers.fast, names.DATABASE, command, session=session)

    patch.setattr(deleter, "final", ignoring)
    patch.setattr(deleter, "_record", upserting)


def no_position_check(patch: Patch) -> None:
    """The evictor's transaction sees F as it is now, not as it was at the feeder's checkpoint."""
    patch.setattr(deleter, "SnapshotAt", lambda time: ReadConcern("snapshot"))


def evict_at_once(patch: Patch) -> None:
    """An eviction doesn't wait for those who looked before it was announced."""
    settings = eviction.Eviction.__init__

    def hasty(self: eviction.Eviction, tools: Any) -> None:
        tools.settings = dataclasses.replace(tools.settings, announce_seconds=0.0)
        settings(self, tools)

    patch.setattr(eviction.Eviction, "__init__", hasty)


def split_fetch(patch: Patch) -> None:
    """The feeder reads records at another time than documents."""
    batches = fetch._batches

    def at_two_times(client: Any, database: str, command: dict[str, Any]) -> AsyncIterator[Any]:
        if command["find"] == names.REMOVED:
            command = {**command, "readConcern": {"level": "majority"}}
        return batches(client, database, command)

    patch.setattr(fetch, "_batches", at_two_times)


def whole_stream(patch: Patch) -> None:
    """The feeder also sees events of reserved sessions. No rule: leaving them out only saves work."""
    pipeline = stream.pipeline

    def whole(*arguments: Any) -> list[dict[str, Any]]:
        stages = pipeline(*arguments)
        for stage in stages:
            stage.get("$match", {}).pop("$nor", None)
        return stages

    patch.setattr(stream, "pipeline", whole)


def no_barrier(patch: Patch) -> None:
    """A read of A doesn't wait for the feeder."""

    async def passed(self: SharedBarrier, deadline: float | None, **_: Any) -> Timestamp:
        reply = await self._tiers.archive.admin.command("ping")
        time: Timestamp = reply["operationTime"]
        return time

    patch.setattr(SharedBarrier, "passed", passed)


def publish_without_cas(patch: Patch) -> None:
    """The warmer publishes a floor whatever happened to its claim."""

    async def always(
        tiers: Tiers,
        seen: Coverage,
        *,
        set_fields: Mapping[str, Any],
        unset: Sequence[str] = (),
    ) -> bool:
        change = {"$set": dict(set_fields), "$unset": dict.fromkeys((*unset, "none"), "")}
        await tiers.fast[names.DATABASE].command(
            {
                "update": names.COVERAGE,
                "updates": [{"q": {"_id": seen.namespace}, "u": change}],
                "writeConcern": {"w": "majority"},
            }
        )
        return True

    replaced = SimpleNamespace(**{**vars(coverage_store), "compare_and_set": always})
    patch.setattr(warming, "coverage_store", replaced)


def no_lease_wait(patch: Patch) -> None:
    """The evictor doesn't wait for the leases under a floor that it raised."""
    patch.setattr(steps, "LEASE_MARGIN", 0.0)


def second_evictor_no_wait(patch: Patch) -> None:
    """An evictor doesn't wait for the leases under a floor that another one raised."""
    readers_gone = eviction.Eviction._readers_gone

    async def gone(self: eviction.Eviction, coverage: Coverage, *rest: Any) -> bool:
        if self.report.ledger.raised:
            return await readers_gone(self, coverage, *rest)
        self._waited = coverage
        return True

    patch.setattr(eviction.Eviction, "_readers_gone", gone)


def no_generation_check(patch: Patch) -> None:
    """An evictor that has waited doesn't mind that the floor was raised again since."""
    same_footing = deleter.same_footing

    def similar(now: Coverage, waited: Coverage) -> bool:
        return same_footing(dataclasses.replace(now, raised=waited.raised), waited)

    patch.setattr(deleter, "same_footing", similar)
    patch.setattr(eviction, "same_footing", similar)


def ignore_claim(patch: Patch) -> None:
    """An evictor looks at its own horizon alone."""

    def horizon_alone(coverage: Coverage, horizon: Any) -> int:
        return cutoff.bound_of(dataclasses.replace(coverage, floor=None, claim=None), horizon)

    patch.setattr(announcing, "bound_of", horizon_alone)


def no_coverage_write(patch: Patch) -> None:
    """The evictor's transaction doesn't touch the coverage document."""

    async def untouched(*_: Any) -> None:
        return None

    patch.setattr(deleter, "_touch", untouched)


def no_kept_limit(patch: Patch) -> None:
    """A write relies on what it looked up however long ago that was. In the model: ``evict_at_once``."""
    send = Run.send

    async def late(self: Run, *arguments: Any, **options: Any) -> Reply:
        options.pop("since", None)
        return await send(self, *arguments, **options)

    patch.setattr(Run, "send", late)


BEYOND: Mapping[str, Callable[[Patch], None]] = {"no_kept_limit": no_kept_limit}
"""Rules that the model has no name for."""
WIDENED: Mapping[str, Callable[[Patch], None]] = {"whole_stream": whole_stream}
"""Not rules of the protocol, but what a rule is tested under."""
MUTANTS: Mapping[str, Callable[[Patch], None]] = {
    mutant.__name__: mutant
    for mutant in (
        no_removal_lookup,
        no_token_check,
        record_without_doc_check,
        ignore_deleted,
        no_conflict,
        no_position_check,
        evict_at_once,
        no_cancel,
        ignore_cancel,
        trust_record_alone,
        evict_ignores_d,
        split_fetch,
        no_barrier,
        publish_without_cas,
        no_lease_wait,
        ignore_claim,
        no_coverage_write,
        second_evictor_no_wait,
        no_generation_check,
    )
}

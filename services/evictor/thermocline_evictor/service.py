"""The evictor as a service: gives each namespace its turns, and carries out TTL rules."""

import argparse
import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Mapping
from typing import Any

from bson.json_util import dumps
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from thermocline_common import clients, coverage_store
from thermocline_common.ages import from_milliseconds
from thermocline_common.archive_probe import ArchiveProbe
from thermocline_common.barrier import BarrierTimeout
from thermocline_common.clock import monotonic
from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.errors import Code, ThermoclineError
from thermocline_common.ids import DocId
from thermocline_common.leases import UNPUBLISHED
from thermocline_common.logs import redact
from thermocline_common.runtime import Context
from thermocline_common.spec.models import EvictorMode, Spec
from thermocline_evictor.candidates import NoAgeIndex
from thermocline_evictor.confirm import NoCheckpoint
from thermocline_evictor.eviction import Eviction, Next, Orders
from thermocline_evictor.expiry import archive_clock, expire, read_rules
from thermocline_evictor.members import FastMembers, Membership
from thermocline_evictor.metrics import EvictorMetrics
from thermocline_evictor.plan.cutoff import Policy
from thermocline_evictor.settings import Settings
from thermocline_evictor.tools import Report, Tools

log = logging.getLogger(__name__)

SHOWN_IDS = 20
"""Ids of mismatches in the status, at most."""


class EvictorService:
    """See the package's docstring."""

    name = "evictor"

    def __init__(self, arguments: argparse.Namespace, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._evictions: dict[str, Eviction] = {}
        self._policies: dict[str, Policy] = {}
        self._metrics: EvictorMetrics | None = None
        self._mode = EvictorMode.DRY_RUN
        self._lease = UNPUBLISHED.wait_seconds
        self._ready = False

    async def run(self, context: Context) -> None:
        """Work until told to stop; the transaction in hand is finished, announcements are withdrawn."""
        self._metrics = EvictorMetrics(context.registry)
        members = FastMembers(context.tiers.fast, _member_opener(context))
        tools = Tools(
            context.tiers,
            members,
            self._settings,
            stopping=context.stop.is_set,
            beat=context.heartbeat.beat,
            sleep=context.stopping,
            probe=ArchiveProbe(context.tiers.archive),
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._evict(context, tools))
                group.create_task(self._expire(context))
            for namespace, eviction in self._evictions.items():
                await eviction.stop(namespace)
        finally:
            await members.close()

    def ready(self) -> bool:
        """Whether the coverage documents could be read."""
        return self._ready

    def status(self) -> Mapping[str, Any]:
        """By namespace."""
        return {
            "mode": self._mode.value,
            "namespaces": {
                name: {"mode": self._mode.value, **namespace_status(eviction.report)}
                for name, eviction in self._evictions.items()
            },
        }

    async def _evict(self, context: Context, tools: Tools) -> None:
        while not context.stop.is_set():
            context.heartbeat.beat()
            spec = context.manifest.current.spec
            self._follow(context, tools, spec)
            try:
                # Read one after the other: a namespace's wait begins after its document was read.
                coverages = await coverage_store.read_all(context.tiers)
                membership = await tools.members.membership()
                await self._look_at_lease(context)
            except (PyMongoError, KeyError, ValueError) as error:
                context.problems.set("coverage", f"the tiers can't be asked: {_text(error)}")
                await context.stopping(self._settings.retry_seconds)
                continue
            context.problems.clear("coverage")
            self._ready = True
            turns = {Next.LATER}
            for namespace, policy in self._policies.items():
                orders = Orders(policy, self._mode, spec.evictor.pace, self._lease)
                coverage = coverages.get(namespace)
                turns.add(await self._turn(context, coverage, orders, membership))
                if context.stop.is_set():
                    return
            if Next.AT_ONCE not in turns:
                soon = Next.SOON in turns
                await context.stopping(
                    self._settings.busy_seconds if soon else self._settings.idle_seconds
                )

    def _follow(self, context: Context, tools: Tools, spec: Spec) -> None:
        """Take over mode and policies of the manifest."""
        self._mode = EvictorMode.PAUSED if spec.paused else spec.evictor.mode
        self._policies = {
            c.namespace: Policy(c.namespace, c.age_field, c.max_age) for c in spec.collections
        }
        for gone in set(self._evictions) - set(self._policies):
            del self._evictions[gone]
            context.problems.clear(f"evicting {gone}")
            context.problems.clear(f"mismatch {gone}")
        for namespace in self._policies:
            self._evictions.setdefault(namespace, Eviction(tools))

    async def _look_at_lease(self, context: Context) -> None:
        """What is published now, where a namespace waits: asked after the coverage that it waits for was read."""
        if any(eviction.waits_for_leases for eviction in self._evictions.values()):
            self._lease = (await coverage_store.read_lease(context.tiers.archive)).wait_seconds

    async def _turn(
        self, context: Context, coverage: Coverage | None, orders: Orders, members: Membership
    ) -> Next:
        namespace = orders.policy.namespace
        eviction = self._evictions[namespace]
        key = f"evicting {namespace}"
        try:
            following = await eviction.turn(coverage, orders, members)
        except OperationFailure as error:
            if error.code == Code.CollectionUUIDMismatch:
                return Next.LATER  # made anew: the feeder will publish the new pair
            context.problems.set(key, f"{namespace}: eviction failed: {_text(error)}")
            return Next.LATER
        except (BarrierTimeout, NoAgeIndex, NoCheckpoint, PyMongoError) as error:
            context.problems.set(key, f"{namespace}: eviction waits: {_text(error)}")
            return Next.LATER
        finally:
            if self._metrics is not None:
                self._metrics.show(namespace, eviction.report)
        context.problems.clear(key)
        context.problems.put(f"mismatch {namespace}", mismatch_text(namespace, eviction.report))
        return following

    async def _expire(self, context: Context) -> None:
        """TTL rules, whatever the mode."""
        while not context.stop.is_set():
            started = monotonic()
            try:
                await self._expire_all(context)
            except (PyMongoError, KeyError, ValueError) as error:
                # A tier that wasn't up yet is soon: the problem mustn't stand for a whole pause.
                context.problems.set("expiry", f"TTL rules can't be carried out: {_text(error)}")
                pause = self._settings.retry_seconds
            else:
                context.problems.clear("expiry")
                pause = self._settings.expiry_seconds - (monotonic() - started)
            await context.stopping(max(self._settings.busy_seconds, pause))

    async def _expire_all(self, context: Context) -> None:
        coverages = await coverage_store.read_all(context.tiers)
        for namespace, coverage in coverages.items():
            if coverage.state is not State.ACTIVE or coverage.target is not State.ACTIVE:
                continue
            rules = await read_rules(context.tiers, namespace)
            eviction = self._evictions.get(namespace)
            if eviction is not None:
                eviction.announcing.rules = rules
            if rules and not context.stop.is_set():
                now = await archive_clock(context.tiers)
                try:
                    done = await expire(context.tiers, coverage, rules, now)
                except OperationFailure as error:
                    # Written or made anew meanwhile: the next pass takes what is left.
                    if error.code not in (Code.WriteConflict, Code.CollectionUUIDMismatch):
                        raise
                    continue
                if eviction is not None:
                    eviction.report.ledger.expired += done


def _member_opener(context: Context) -> Callable[[str], AsyncMongoClient[dict[str, Any]]]:
    """Clients of single members, with the credentials and options of the fast tier's."""
    opened = clients.member_opener(context.manifest.current, context.access, "thermocline-evictor")

    def open_member(member: str) -> AsyncMongoClient[dict[str, Any]]:
        return opened(Tier.FAST, member)

    return open_member


def _text(error: Exception) -> str:
    if isinstance(error, ThermoclineError):
        return redact(str(error))
    return f"{type(error).__name__}: {redact(str(error).split(', Timeout:')[0])[:300]}"


def mismatch_text(namespace: str, report: Report) -> str | None:
    """What is wrong where the tiers differ; None where they don't."""
    if not report.mismatches:
        return None
    ids = ", ".join(shown_id(i) for i in report.mismatches[:SHOWN_IDS])
    return (
        f"{namespace}: eviction is stopped, because {len(report.mismatches)} documents in the fast "
        f"tier differ from the archive although the feeder has passed them: {ids}; compare them on "
        "both tiers: somebody else may write to one of them"
    )


def shown_id(doc_id: DocId) -> str:
    """An id for people: as extended JSON, or as hexadecimal BSON where Python can't decode it."""
    document = doc_id.document()
    try:
        return dumps(RawBSONDocument(document)["_id"])
    except Exception:  # noqa: BLE001 (bytes of any kind)
        return document.hex()


def _iso(moment: dt.datetime | None) -> str | None:
    return moment.isoformat().replace("+00:00", "Z") if moment else None


def _iso_of(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    try:
        return _iso(from_milliseconds(milliseconds))
    except OverflowError:
        return f"{milliseconds} ms"


def namespace_status(report: Report) -> dict[str, Any]:
    """One namespace's part of the status."""
    ledger = report.ledger
    return {
        "state": report.state,
        "floor": _iso(report.floor),
        "claim": _iso(report.claim),
        "horizon": _iso(report.horizon),
        "oldestResident": _iso_of(report.oldest_resident),
        "pending": report.pending,
        "announced": ledger.announced,
        "confirmed": ledger.confirmed,
        "evicted": ledger.deleted,
        "expired": ledger.expired,
        "wouldEvict": report.would_evict,
        "skipped": dict(ledger.skipped),
        "floorRaised": ledger.raised,
        "killedCursors": ledger.killed_cursors,
        "feederLagSeconds": report.lag,
        "mismatches": len(report.mismatches),
        "mismatchIds": [shown_id(i) for i in report.mismatches[:SHOWN_IDS]],
    }

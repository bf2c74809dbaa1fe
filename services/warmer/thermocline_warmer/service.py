"""The warmer as a service: warms the namespaces in turn, and keeps the tiers' set-up equal."""

import argparse
import asyncio
import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

from pymongo.errors import PyMongoError

from thermocline_common import coverage_store
from thermocline_common.accounts import Accounts
from thermocline_common.archive_probe import ArchiveProbe
from thermocline_common.barrier import BarrierTimeout
from thermocline_common.copy_in import CannotCopy, CollectionChanged
from thermocline_common.coverage import Coverage, State
from thermocline_common.errors import ThermoclineError
from thermocline_common.logs import redact
from thermocline_common.runtime import Context
from thermocline_common.spec.models import CollectionPolicy, WorkMode
from thermocline_common.tiers import Tiers
from thermocline_warmer.age_types import AgeLooks
from thermocline_warmer.copier import NotHeld
from thermocline_warmer.metrics import WarmerMetrics
from thermocline_warmer.parity import CollectionReport, Collections
from thermocline_warmer.plan.ages import AgeTypes
from thermocline_warmer.plan.windows import Policy
from thermocline_warmer.reader import NoAgeIndex
from thermocline_warmer.settings import Settings
from thermocline_warmer.warming import Report, Stopped, Tools, Warming

log = logging.getLogger(__name__)


def policy_of(collection: CollectionPolicy) -> Policy:
    """The plan's view of a policy in the manifest."""
    return Policy(collection.namespace, collection.age_field, collection.max_age)


class WarmerService:
    """See the package's docstring."""

    name = "warmer"

    def __init__(self, arguments: argparse.Namespace, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._warmings: dict[str, Warming] = {}
        self._accounts: Accounts | None = None
        self._collections: Collections | None = None
        self._ages: AgeLooks | None = None
        self._metrics: WarmerMetrics | None = None
        self._counted: dict[str, tuple[int, int, int]] = {}
        self._mode = WorkMode.RUNNING
        self._ready = False

    async def run(self, context: Context) -> None:
        """Work until told to stop; the batch in hand is finished."""
        self._metrics = WarmerMetrics(context.registry)
        self._accounts = Accounts(context.tiers)
        self._collections = Collections(context.tiers)
        self._ages = AgeLooks(context.tiers, sleep=context.stopping)
        tools = Tools(
            context.tiers,
            self._settings,
            # A pause ends a slice after the batch in hand: one may take minutes where it gives way.
            stopping=lambda: context.stop.is_set() or _mode(context) is WorkMode.PAUSED,
            beat=context.heartbeat.beat,
            sleep=context.stopping,
            probe=ArchiveProbe(context.tiers.archive),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._warm(context, tools))
            group.create_task(self._compare(context))
            group.create_task(self._follow_ages(context))

    def ready(self) -> bool:
        """Whether the coverage documents could be read."""
        return self._ready

    def status(self) -> Mapping[str, Any]:
        """By namespace; and the state of users and roles."""
        collections = self._collections.reports if self._collections else {}
        ages = self._ages.reports if self._ages else {}
        namespaces = {
            name: _namespace_status(warming.report, collections.get(name), ages.get(name))
            for name, warming in self._warmings.items()
        }
        accounts = self._accounts
        return {
            "mode": self._mode.value,
            "namespaces": namespaces,
            "users": _account_status(accounts.users) if accounts else {},
            "roles": _account_status(accounts.roles) if accounts else {},
        }

    async def _warm(self, context: Context, tools: Tools) -> None:
        while not context.stop.is_set():
            context.heartbeat.beat()
            spec = context.manifest.current.spec
            self._mode = _mode(context)
            policies = {c.namespace: policy_of(c) for c in spec.collections}
            for gone in set(self._warmings) - set(policies):
                del self._warmings[gone]
                context.problems.clear(f"warming {gone}")
            try:
                coverages = await coverage_store.read_all(context.tiers)
            except (PyMongoError, KeyError, ValueError) as error:
                context.problems.set(
                    "coverage", f"coverage documents can't be read: {_text(error)}"
                )
                await context.stopping(self._settings.retry_seconds)
                continue
            context.problems.clear("coverage")
            self._ready = True
            busy = False
            # Whole collections first: they are small, and joins wait for them.
            for policy in sorted(policies.values(), key=lambda p: (not p.keep_all, p.namespace)):
                warming = self._warmings.setdefault(policy.namespace, Warming(tools))
                coverage = coverages.get(policy.namespace)
                busy |= await self._turn(context, warming, policy, coverage, spec.warmer.pace)
                self._count(policy.namespace, warming.report)
                if context.stop.is_set():
                    return
            if not busy:
                await context.stopping(self._settings.idle_seconds)

    async def _turn(
        self,
        context: Context,
        warming: Warming,
        policy: Policy,
        coverage: Coverage | None,
        pace: str | int,
    ) -> bool:
        """One slice of one namespace; whether there may be more to do at once."""
        if self._mode is WorkMode.PAUSED:
            warming.show_paused(coverage, policy)
            return False
        key = f"warming {policy.namespace}"
        try:
            busy = await warming.step(coverage, policy, pace)
        except Stopped:
            return False
        except CollectionChanged:
            # Dropped or made anew: the feeder will publish the new pair.
            return False
        except (BarrierTimeout, CannotCopy, NoAgeIndex, NotHeld, PyMongoError) as error:
            context.problems.set(key, f"{policy.namespace} isn't warmed: {_text(error)}")
            return False
        context.problems.clear(key)
        return busy

    def _count(self, namespace: str, report: Report) -> None:
        metrics = self._metrics
        if metrics is None:
            return
        before = self._counted.get(namespace, (0, 0, 0))
        now = (report.copied, report.checked, report.lost)
        for counter, old, new in zip(
            (metrics.copied, metrics.checked, metrics.lost), before, now, strict=True
        ):
            counter.labels(namespace).inc(max(0, new - old))
        self._counted[namespace] = now
        metrics.warm.labels(namespace).set(report.progress.percent / 100)
        metrics.floor.labels(namespace).set(report.floor.timestamp() if report.floor else 0)

    async def _compare(self, context: Context) -> None:
        """Users at once and then every few seconds, whatever the mode: without them nobody can log in."""
        while not context.stop.is_set():
            await self._compare_accounts(context)
            await self._compare_collections(context)
            await context.stopping(self._settings.parity_seconds)

    async def _compare_accounts(self, context: Context) -> None:
        accounts = self._accounts
        if accounts is None:
            return
        before = (accounts.users.written, accounts.users.removed)
        try:
            await accounts.bring_over()
        except PyMongoError as error:
            context.problems.set(
                "users", f"users can't be brought to the fast tier: {_text(error)}"
            )
            return
        context.problems.clear("users")
        if self._metrics is not None:
            self._metrics.accounts.labels("written").inc(accounts.users.written - before[0])
            self._metrics.accounts.labels("removed").inc(accounts.users.removed - before[1])
        foreign = (*accounts.users.foreign, *accounts.roles.foreign)
        context.problems.put(
            "foreign users",
            "the fast tier has users or roles of its own that differ from the archive's, and keeps "
            f"them: {', '.join(foreign)}; drop them there to have the archive's"
            if foreign
            else None,
        )

    async def _compare_collections(self, context: Context) -> None:
        collections = self._collections
        if collections is None or self._mode is WorkMode.PAUSED:
            return
        try:
            active = await _active(context.tiers)
            collections.forget(active)
            for namespace in active.values():
                await collections.compare(namespace)
        except (PyMongoError, KeyError, ValueError) as error:
            context.problems.set("parity", f"indexes can't be compared: {_text(error)}")
            return
        refused = [f"{n}: {r.error}" for n, r in collections.reports.items() if r.error]
        context.problems.put(
            "parity",
            f"the fast tier refused an index or option of the archive: {'; '.join(refused)}"
            if refused
            else None,
        )
        if self._metrics is not None:
            for name, report in collections.reports.items():
                count = len(report.indexes) + len(report.options)
                self._metrics.parity.labels(name).set(count)

    async def _follow_ages(self, context: Context) -> None:
        while not context.stop.is_set():
            if self._mode is not WorkMode.PAUSED:
                await self._look_at_ages(context)
            await context.stopping(self._settings.parity_seconds)

    async def _look_at_ages(self, context: Context) -> None:
        ages = self._ages
        if ages is None:
            return
        try:
            await ages.look(await _active(context.tiers))
        except (PyMongoError, KeyError, ValueError) as error:
            log.info("the types of ages can't be looked at", extra={"error": _text(error)})
        if self._metrics is not None:
            for name, types in ages.reports.items():
                if types.not_dates is not None:
                    self._metrics.not_dates.labels(name).set(types.not_dates)


async def _active(tiers: Tiers) -> dict[str, Coverage]:
    found = await coverage_store.read_all(tiers)
    return {n: c for n, c in found.items() if c.state is State.ACTIVE and c.target is State.ACTIVE}


def _mode(context: Context) -> WorkMode:
    spec = context.manifest.current.spec
    return WorkMode.PAUSED if spec.paused else spec.warmer.mode


def _text(error: Exception) -> str:
    if isinstance(error, ThermoclineError):
        return redact(str(error))
    return f"{type(error).__name__}: {redact(str(error).split(', Timeout:')[0])[:300]}"


def _iso(moment: dt.datetime | None) -> str | None:
    return moment.isoformat().replace("+00:00", "Z") if moment else None


def _namespace_status(
    report: Report, parity: CollectionReport | None, ages: AgeTypes | None
) -> dict[str, Any]:
    return {
        "state": report.state,
        "floor": _iso(report.floor),
        "claim": _iso(report.claim),
        "complete": report.complete,
        "warmPercent": report.progress.percent,
        "secondsLeft": report.progress.seconds_left,
        "copied": report.copied,
        "checked": report.checked,
        "claimsLost": report.lost,
        "ages": None if ages is None else ages.status(),
        "parity": {
            "indexes": list(parity.indexes) if parity else [],
            "options": list(parity.options) if parity else [],
            "error": parity.error if parity else None,
        },
    }


def _account_status(report: Any) -> dict[str, Any]:
    return {
        "count": report.count,
        "written": report.written,
        "removed": report.removed,
        "foreign": list(report.foreign),
    }

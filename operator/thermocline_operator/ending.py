"""Carries out the deletion of a resource: asks, drains, and says when it may go."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from thermocline_common.clock import monotonic
from thermocline_operator.api import PODS, Api
from thermocline_operator.drain import Drain
from thermocline_operator.memory import Body, Memory
from thermocline_operator.plan import deletion, labels
from thermocline_operator.plan.deletion import Deletion, Hold, Outcome, Release
from thermocline_operator.plan.effective import Intent, render
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.source import Resource
from thermocline_operator.proof import prove
from thermocline_operator.reports import Reporter
from thermocline_operator.status.objects import component_of

log = logging.getLogger(__name__)

PROVE_SECONDS: Final = 10.0
"""The tiers themselves are asked so often while no feeder says that all is well."""
FRESH_SECONDS: Final = 10.0
"""An older report counts as none."""
RETRY_SECONDS: Final = 15.0
"""So long after a drain has failed the next one begins."""


class Endings:
    """Runs drains, at most ``at_once`` of them: each is a process of its own."""

    def __init__(self, api: Api, reporter: Reporter, at_once: int = 4) -> None:
        self._api = api
        self._reporter = reporter
        self._at_once = at_once
        self._running = 0
        self._proved_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}

    async def step(self, memory: Memory, body: Body, resource: Resource) -> Release | Hold:
        """One look at a resource that is being deleted, or whose namespace is."""
        now = monotonic()
        await self._listen(memory, resource, now)
        found = await self._known(memory, body, resource, now)
        decision = deletion.decide(found)
        if isinstance(decision, Hold) and decision.alone and found.outcome is not Outcome.REFUSED:
            await self._start(memory, resource)
        if isinstance(decision, Release):
            await self.stop(memory)
        return decision

    async def stop(self, memory: Memory) -> None:
        """End the resource's own drain, if there is one."""
        drain, memory.drain = memory.drain, None
        memory.outside = None
        if drain is not None:
            self._running -= 1
            await drain.close()

    async def _start(self, memory: Memory, resource: Resource) -> None:
        failed = self._failed_at.get(resource.uid, float("-inf"))
        if memory.drain is not None or self._running >= self._at_once:
            return
        if monotonic() - failed < RETRY_SECONDS:
            return
        drain = Drain(render(resource, Intent.DRAIN), memory.credentials)
        self._running += 1
        memory.drain = drain
        try:
            await drain.start()
        except OSError as error:
            log.warning("a drain can't be started: %s", error)
            self._failed_at[resource.uid] = monotonic()
            await self.stop(memory)

    async def _listen(self, memory: Memory, resource: Resource, now: float) -> None:
        """Ask feeders in pods, and the drain of our own."""
        feeders = [pod for pod in memory.pods if component_of(pod) is Component.FEEDER]
        await self._reporter.ask(feeders, resource.uid)
        report = self._feeder(memory)
        if memory.feeder_at is None:
            memory.feeder_at = now
        if report is not None and memory.drain is None:
            memory.feeder_at = now
        if memory.drain is not None:
            memory.outside = await memory.drain.report() or memory.outside
        heard = memory.outside or report or {}
        own: Mapping[str, Any] = heard.get("feeder") or {}
        progress = (own.get("checkpoint"), own.get("appliedTotal"), _states(own))
        if memory.moved_at is None or (own and progress != memory.progress and not _waits(heard)):
            memory.progress, memory.moved_at = progress, now

    def _feeder(self, memory: Memory) -> Mapping[str, Any] | None:
        """The fresh report of the feeder that does the work."""
        found = None
        for pod in memory.pods:
            report, age = self._reporter.last(pod)
            if component_of(pod) is Component.FEEDER and report is not None and age < FRESH_SECONDS:
                own = report.get("feeder") or {}
                if found is None or own.get("role") == "owner":
                    found = report
        return found

    async def _known(self, memory: Memory, body: Body, resource: Resource, now: float) -> Deletion:
        report = self._feeder(memory)
        generation = int(body["metadata"].get("generation", 0))
        outcome = None if memory.drain is None else memory.drain.outcome
        waits = _waits(memory.outside or report or {})
        silent = now - (now if memory.feeder_at is None else memory.feeder_at)
        # While the namespace alone ends, nothing says of a feeder that it has begun to drain.
        leaving = body["metadata"].get("deletionTimestamp") is not None
        if leaving and not memory.proven:
            memory.proven = deletion.drained_by(report, generation)
        if leaving and not memory.proven and self._nobody_begins_anew(memory, generation):
            memory.proven = outcome is Outcome.DRAINED
            quiet = report is not None and not waits and not memory.terminating
            asked = self._proved_at.get(resource.uid, float("-inf"))
            if not memory.proven and not quiet and now - asked >= PROVE_SECONDS:
                self._proved_at[resource.uid] = now
                manifest = render(resource, Intent.DRAIN)
                found = await prove(manifest, memory.credentials, resource.uid)
                memory.proven = found is not None
        if outcome is Outcome.FAILED and memory.drain is not None:
            waits = (*waits, f"the drain ended: {memory.drain.last_words}")
            self._failed_at[resource.uid] = now
            await self.stop(memory)
        heard: Mapping[str, Any] = (memory.outside or report or {}).get("feeder") or {}
        backlog = heard.get("backlog")
        return Deletion(
            name=resource.name,
            namespace=resource.namespace,
            uid=resource.uid,
            policy=resource.spec.deletion_policy,
            forced=deletion.forced(body),
            proven=memory.proven,
            unsent=backlog if isinstance(backlog, int) else None,
            lost_tier=await self._lost_tier(memory, resource),
            silent=silent,
            stuck=now - (now if memory.moved_at is None else memory.moved_at),
            waits=waits,
            outcome=outcome,
            terminating=memory.terminating,
        )

    def _nobody_begins_anew(self, memory: Memory, generation: int) -> bool:
        """Whether no feeder in a pod may still work by an older manifest, and tier something again."""
        for pod in memory.pods:
            if component_of(pod) is not Component.FEEDER or not _runs(pod):
                continue
            report, age = self._reporter.last(pod)
            if not deletion.agrees(report if age < FRESH_SECONDS else None, generation):
                return False
        return True

    async def _lost_tier(self, memory: Memory, resource: Resource) -> str | None:
        """A tier that lived in the namespace that is ending, once no pod could be its server any more."""
        if not memory.terminating:
            return None
        local = deletion.local_tiers(resource, memory.services)
        if not local:
            return None
        pods = await self._api.list_labelled(PODS, resource.namespace)
        ours = labels.selector(resource.name)
        for pod in pods:
            found = pod["metadata"].get("labels") or {}
            ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if not ended and not ours.items() <= found.items():
                return None  # it may be a server, and bring the tier back as long as it lives
        return f"the tier spec.{' and spec.'.join(local)}"


def _runs(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's service may run. One that is being deleted is told to end, or its node is lost."""
    if pod["metadata"].get("deletionTimestamp") is not None:
        return False
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    return any("running" in (c.get("state") or {}) for c in containers)


def _states(own: Mapping[str, Any]) -> Any:
    return sorted((n, r.get("state")) for n, r in (own.get("namespaces") or {}).items())


def _waits(report: Mapping[str, Any]) -> tuple[str, ...]:
    """What holds a feeder up, in its own words."""
    own = report.get("feeder") or {}
    blocked = [
        f"{namespace}: {r['blockedOn']}"
        for namespace, r in sorted((own.get("namespaces") or {}).items())
        if r.get("blockedOn")
    ]
    told = [
        str(text)
        for key, text in sorted((report.get("problems") or {}).items())
        if not key.startswith(("state ", "clock", "foreign "))
    ]
    return tuple(dict.fromkeys([*blocked, *told]))

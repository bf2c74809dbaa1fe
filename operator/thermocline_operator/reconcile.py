"""One turn for one resource: read, decide, apply, observe, write the status."""

import dataclasses
import datetime as dt
import logging
from dataclasses import dataclass
from typing import Any, Final

from thermocline_common.clock import monotonic
from thermocline_common.spec.models import DeletionPolicy, Mode
from thermocline_operator.announcing import Announcer
from thermocline_operator.api import RESOURCES, Api, ApiError
from thermocline_operator.applying import apply_all, remove, tell_services, touch_files
from thermocline_operator.ending import Endings
from thermocline_operator.memory import Body, Memory
from thermocline_operator.observing import facts_of, files_digest, read_inputs, read_world
from thermocline_operator.plan import deletion, labels
from thermocline_operator.plan.deletion import Guard, Release, Why
from thermocline_operator.plan.desired import config_map, plan, surplus
from thermocline_operator.plan.effective import Intent, recovered, served_mode
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.plan.source import Resource, problems_of, resource_of
from thermocline_operator.reports import Reporter
from thermocline_operator.status.document import NUMBERS_SECONDS, Due, build, due
from thermocline_operator.status.events import Event, of_change
from thermocline_operator.status.facts import Ending, Facts
from thermocline_operator.status.reasons import EventReason, Reason
from thermocline_operator.workqueue import Again, Key

log = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 60.0
"""Everything is read anew at least this often, whatever the watches say."""
SECRET_SECONDS: Final = 10.0
"""So often while a Secret has to be made or mended: they are read by name, and can't be watched."""
LOOK_SECONDS: Final = 5.0
"""Services are asked for their status this often,"""
BUSY_SECONDS: Final = 1.0
"""and this often while something changes."""


@dataclass(slots=True)
class _Result:
    facts: Facts
    events: list[Event]
    released: bool = False


class Reconciler:
    """Its turns are what the queue calls; a turn that raises is tried again after a pause."""

    def __init__(
        self, api: Api, settings: PodSettings, reporter: Reporter, announcer: Announcer
    ) -> None:
        self._api = api
        self._settings = settings
        self._reporter = reporter
        self._announcer = announcer
        self._endings = Endings(api, reporter)
        self._memories: dict[Key, Memory] = {}

    async def close(self) -> None:
        """End every drain; what was drained stays drained."""
        for memory in self._memories.values():
            await self._endings.stop(memory)

    @property
    def memories(self) -> dict[Key, Memory]:
        """What is remembered, for the operator's own status and metrics."""
        return self._memories

    async def turn(self, key: Key, news: bool) -> Again | None:
        """One turn; ``news``: something has happened to the resource or what it owns."""
        memory = self._memories.setdefault(key, Memory())
        pause = SECRET_SECONDS if _waits_for_secret(memory.body) else RESYNC_SECONDS
        stale = memory.full_at is None or monotonic() - memory.full_at >= pause
        whole = news or stale or not memory.complete
        if whole:
            memory.full_at = None
            memory.body = await self._api.get(RESOURCES, *key)
        body = memory.body
        if body is None:
            await self._forget(key, memory)
            return None
        if memory.checked != body["metadata"]["resourceVersion"]:
            memory.problems = tuple(problems_of(body))
            if not memory.problems:
                memory.resource = resource_of(body)
            memory.checked = body["metadata"]["resourceVersion"]
        leaving = body["metadata"].get("deletionTimestamp") is not None
        if leaving and not deletion.has_finalizer(body):
            # Somebody else's finalizer keeps it; there is nothing of ours left to do.
            await self._endings.stop(memory)
            return Again(RESYNC_SECONDS)
        if whole:
            await read_world(self._api, memory, key)
            if memory.resource is None:
                memory.resource = recovered(memory.live, key[1])
            if memory.resource is not None:
                await read_inputs(self._api, memory, memory.resource)
        result = await self._carry_out(memory, body, whole)
        if whole:
            memory.full_at = monotonic()
        for event in result.events:
            await self._announcer.tell(body, event)
        if result.released:
            return Again(BUSY_SECONDS)
        left = await self._write_status(memory, key, body, result.facts)
        busy = leaving or memory.terminating or not memory.complete or _is_busy(result.facts)
        return Again(min(left, BUSY_SECONDS if busy else LOOK_SECONDS))

    async def _forget(self, key: Key, memory: Memory) -> None:
        await self._endings.stop(memory)
        self._reporter.forget(memory.pods)
        if memory.resource is not None:
            self._announcer.forget(memory.resource.uid)
        del self._memories[key]

    async def _carry_out(self, memory: Memory, body: Body, whole: bool) -> _Result:
        resource = memory.resource
        leaving = body["metadata"].get("deletionTimestamp") is not None
        if resource is None:
            # Never valid: there is nothing to do, and nothing that could be lost.
            memory.complete = True
            if leaving:
                return await self._end_unknown(memory, body)
            return _Result(facts_of(memory, body, self._reporter), [])
        if leaving or (memory.terminating and deletion.has_finalizer(body)):
            return await self._end(memory, body, resource, leaving, whole)
        await self._reporter.ask(memory.pods, resource.uid)
        if memory.problems or not whole:
            # Where the finalizer has to change, the next turn reads everything, and does it.
            guard = Guard.KEEP if memory.problems else self._guard(memory, body, resource)
            memory.complete = guard is Guard.KEEP
            return _Result(facts_of(memory, body, self._reporter), [])
        events = await self._apply(memory, body, resource)
        return _Result(facts_of(memory, body, self._reporter), events)

    def _guard(self, memory: Memory, body: Body, resource: Resource) -> Guard:
        feeders = facts_of(memory, body, self._reporter).reports(Component.FEEDER)
        owners = [r for r in feeders if (r.get("feeder") or {}).get("role") == "owner"]
        found = owners or feeders
        report = found[0] if found else None
        has = deletion.has_finalizer(body)
        served = not has and served_mode(memory.live, resource.name) == Mode.ACTIVE.value
        return deletion.guard(resource, has=has, report=report, served=served)

    async def _apply(self, memory: Memory, body: Body, resource: Resource) -> list[Event]:
        memory.complete = False
        body = await self._keep_finalizer(memory, body, resource)
        has = deletion.has_finalizer(body)
        waits = deletion.wants_tiering(resource) and not deletion.may_tier(resource, has=has)
        intent = Intent.WAIT if waits else Intent.SERVE
        if memory.terminating:
            memory.complete = True
            return []
        if resource.spec.paused:
            # Services hold still by their manifest; everything else stays as it is.
            events = await apply_all(self._api, memory, resource, [config_map(resource, intent)])
        else:
            wanted = plan(resource, intent, self._settings, memory.live)
            memory.pending = wanted.pending
            events = await apply_all(self._api, memory, resource, wanted.objects)
            gone = surplus(wanted, memory.live, resource.uid)
            events += await remove(self._api, memory, resource, gone)
        events += await self._follow_files(memory, resource)
        memory.complete = True
        return events

    async def _follow_files(self, memory: Memory, resource: Resource) -> list[Event]:
        now = files_digest(memory, resource)
        before, memory.files = memory.files, now
        if before is None or before == now:
            return []
        await touch_files(self._api, memory, labels.FILES, now)
        return []

    async def _keep_finalizer(self, memory: Memory, body: Body, resource: Resource) -> Body:
        todo = self._guard(memory, body, resource)
        if todo is Guard.KEEP:
            return body
        return await self._set_finalizer(memory, body, present=todo is Guard.ADD)

    async def _set_finalizer(self, memory: Memory, body: Body, *, present: bool) -> Body:
        metadata = body["metadata"]
        others = [f for f in metadata.get("finalizers") or [] if f != labels.FINALIZER]
        wanted = [*others, labels.FINALIZER] if present else others
        # With the version that was read: another's finalizer must not get lost.
        patch = {"metadata": {"finalizers": wanted, "resourceVersion": metadata["resourceVersion"]}}
        changed = await self._api.merge(RESOURCES, metadata["namespace"], metadata["name"], patch)
        memory.body = changed
        return changed

    async def _end_unknown(self, memory: Memory, body: Body) -> _Result:
        """Neither the spec nor the last manifest can be read: only a person can tell."""
        metadata = body["metadata"]
        if deletion.forced(body):
            event = Event(EventReason.RELEASED_UNSENT, "a person forced it; its spec is invalid")
            await self._announcer.tell(body, event)
            await self._set_finalizer(memory, body, present=False)
            return _Result(facts_of(memory, body, self._reporter), [], released=True)
        text = (
            "its spec is invalid, and so the archive can't be asked. Mend the spec, or to delete all "
            "the same, and lose what wasn't replayed: "
            + deletion.force_command(metadata["name"], metadata["namespace"], metadata["uid"])
        )
        facts = facts_of(memory, body, self._reporter, Ending.BLOCKED, text)
        return _Result(facts, [Event(EventReason.DRAIN_BLOCKED, text)])

    async def _end(
        self, memory: Memory, body: Body, resource: Resource, leaving: bool, whole: bool
    ) -> _Result:
        events: list[Event] = []
        draining = resource.spec.deletion_policy is not DeletionPolicy.ABANDON
        if whole and draining:
            # Only what is there: with foreground deletion, objects are being removed.
            wanted = config_map(_with_generation(resource, body), Intent.DRAIN)
            memory.complete = False
            await tell_services(self._api, memory, resource, wanted)
            await self._follow_files(memory, resource)
        memory.complete = True
        decision = await self._endings.step(memory, body, resource)
        if isinstance(decision, Release):
            reason = (
                EventReason.DRAINED if decision.why is Why.DRAINED else EventReason.RELEASED_UNSENT
            )
            if not leaving:
                # Its namespace ends, and it is drained: it goes as soon as it is deleted.
                text = decision.text
                return _Result(facts_of(memory, body, self._reporter, Ending.DRAINING, text), [])
            await self._announcer.tell(body, Event(reason, decision.text))
            await self._set_finalizer(memory, body, present=False)
            memory.body = None
            memory.complete = False
            return _Result(facts_of(memory, body, self._reporter), events, released=True)
        ending = Ending.BLOCKED if decision.blocked else Ending.DRAINING
        if decision.blocked:
            events.append(Event(EventReason.DRAIN_BLOCKED, decision.text))
        elif (body.get("status") or {}).get("phase") != "Draining":
            events.append(Event(EventReason.DRAIN_STARTED, decision.text))
        facts = facts_of(memory, body, self._reporter, ending, decision.text)
        return _Result(facts, events)

    async def _write_status(self, memory: Memory, key: Key, body: Body, facts: Facts) -> float:
        """Write the status if it is due; the seconds until the next turn, at most."""
        body = memory.body or body
        before: dict[str, Any] = body.get("status") or {}
        now = monotonic()
        after = build(facts, before, dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        urgency = due(before, after)
        if urgency is Due.NEVER:
            return RESYNC_SECONDS
        if urgency is Due.LATER and now - memory.written_at < NUMBERS_SECONDS:
            return RESYNC_SECONDS
        try:
            written = await self._api.replace(
                RESOURCES, *key, {**body, "status": after}, part="status"
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            memory.full_at = None  # somebody has changed it: read it, then decide again
            return 0.0
        memory.body = written
        memory.written_at = now
        for event in of_change(before, after):
            await self._announcer.tell(body, event)
        return RESYNC_SECONDS

    def knows(self, key: Key, kind: str, name: str, version: str) -> bool:
        """Whether this version of the resource, or of an object of its, was seen already."""
        memory = self._memories.get(key)
        if memory is None:
            return False
        seen = memory.body if kind == RESOURCES.name else memory.live.get((kind, name))
        return seen is not None and seen["metadata"].get("resourceVersion") == version


def _with_generation(resource: Resource, body: Body) -> Resource:
    """The last valid resource under the object's present generation, which a drain is told by."""
    return dataclasses.replace(
        resource, generation=int(body["metadata"].get("generation", resource.generation))
    )


def _waits_for_secret(body: Body | None) -> bool:
    status = (body or {}).get("status") or {}
    reasons = {condition.get("reason") for condition in status.get("conditions") or []}
    return not reasons.isdisjoint(
        {Reason.SECRET_MISSING, Reason.SECRET_INCOMPLETE, Reason.LOG_IN_REFUSED}
    )


def _is_busy(facts: Facts) -> bool:
    """Whether something is on its way that people wait for."""
    if facts.pending or facts.problems:
        return False
    late = any(
        report.get("appliedGeneration") != facts.generation
        for component in Component
        for report in facts.reports(component)
    )
    unheard = any(p.report is None and not p.leaving for p in facts.pods)
    rolling = any(not d.rolled_out for d in facts.deployments)
    return late or unheard or rolling or not facts.applied

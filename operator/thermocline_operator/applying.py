"""Brings the objects of one resource to what they should be, and says what it did."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from thermocline_operator.api import PODS, Api, ApiError, kind_of
from thermocline_operator.memory import Applied, Body, Memory
from thermocline_operator.plan.drift import changed_paths, digest, part
from thermocline_operator.plan.objects import KINDS, Ref, owned_by, ref_of
from thermocline_operator.plan.source import Resource
from thermocline_operator.status.events import Event
from thermocline_operator.status.reasons import EventReason

log = logging.getLogger(__name__)

_REFUSALS = (400, 403, 404, 422)
"""Another try alone won't change the answer."""


async def apply_all(
    api: Api,
    memory: Memory,
    resource: Resource,
    objects: Iterable[Body],
) -> list[Event]:
    """Apply what isn't as it should be. Raises :class:`ApiError` where trying again may help.

    One object that is refused, or that belongs to somebody else, holds up no other.
    """
    events: list[Event] = []
    created: list[str] = []
    memory.conflicts.clear()
    memory.refused.clear()
    for wanted in objects:
        ref = ref_of(wanted)
        if ref[0] == "Deployment" and any(kind == "ConfigMap" for kind, _ in _unusable(memory)):
            continue  # pods would follow somebody else's manifest
        live = memory.live.get(ref)
        if live is None:
            # Without our label it isn't in any list: somebody else's, or ours and defaced.
            live = await api.get(kind_of(wanted), resource.namespace, ref[1])
        if live is not None and not owned_by(live, resource.uid):
            memory.conflicts.append(ref)
            continue
        if live is not None and _is_as_applied(memory.applied.get(ref), live, wanted):
            continue
        if live is not None and live["metadata"].get("deletionTimestamp"):
            continue
        event = _drift(memory.applied.get(ref), live, wanted)
        try:
            answer = await _apply(api, wanted, live)
        except ApiError as error:
            if error.status not in _REFUSALS:
                raise
            memory.refused[ref] = error.message
            log.warning("an object is refused: %s", error, extra={"object": "/".join(ref)})
            continue
        memory.live[ref] = answer
        memory.applied[ref] = Applied(digest(wanted), part(answer, wanted))
        if event is not None:
            events.append(event)
        elif live is None:
            created.append(" ".join(ref))
    if created:
        events.insert(0, Event(EventReason.CREATED, ", ".join(created)))
    return events


async def _apply(api: Api, wanted: Body, live: Body | None) -> Body:
    """Server-side apply; where what somebody put beside ours stands in its way, that goes first.

    Items of lists belong to whoever put them there: another's Service port of the same name stays,
    and ours is refused as its duplicate.
    """
    try:
        return await api.apply(kind_of(wanted), wanted)
    except ApiError as error:
        if error.status != 422 or live is None or "spec" not in wanted:
            raise
        metadata = wanted["metadata"]
        spec = {"spec": wanted["spec"]}
        await api.merge(kind_of(wanted), metadata["namespace"], metadata["name"], spec)
        return await api.apply(kind_of(wanted), wanted)


async def tell_services(api: Api, memory: Memory, resource: Resource, wanted: Body) -> None:
    """Bring the manifest of a resource that is being deleted to its services, if its ConfigMap is still there.

    Deletion with ``--cascade=orphan`` has taken the owner reference away by now: it stays away, or the
    object would be deleted with its owner.
    """
    live = memory.live.get(ref_of(wanted))
    if live is None or live["metadata"].get("deletionTimestamp"):
        return
    if not owned_by(live, resource.uid):
        if live["metadata"].get("ownerReferences"):
            return  # somebody else's
        metadata = {k: v for k, v in wanted["metadata"].items() if k != "ownerReferences"}
        wanted = {**wanted, "metadata": metadata}
    if part(live, wanted) == wanted:
        return
    memory.live[ref_of(wanted)] = await api.apply(kind_of(wanted), wanted)


def _unusable(memory: Memory) -> list[Ref]:
    return [*memory.conflicts, *memory.refused]


def _is_as_applied(applied: Applied | None, live: Body, wanted: Body) -> bool:
    return (
        applied is not None
        and applied.wanted == digest(wanted)
        and applied.part == part(live, wanted)
    )


def _drift(applied: Applied | None, live: Body | None, wanted: Body) -> Event | None:
    kind, name = ref_of(wanted)
    if live is None and applied is not None:
        return Event(
            EventReason.DRIFT_REPAIRED, f"{kind} {name} was deleted by somebody; created again"
        )
    if live is None or applied is None or applied.wanted != digest(wanted):
        return None
    paths = ", ".join(changed_paths(applied.part, part(live, wanted)))
    return Event(
        EventReason.DRIFT_REPAIRED, f"{kind} {name} was changed by somebody at {paths}; set right"
    )


async def remove(api: Api, memory: Memory, resource: Resource, refs: Iterable[Ref]) -> list[Event]:
    """Delete objects of ours that aren't needed any more."""
    events = []
    for ref in refs:
        live = memory.live[ref]
        await api.delete(KINDS[ref[0]], resource.namespace, ref[1], live["metadata"]["uid"])
        memory.live.pop(ref, None)
        memory.applied.pop(ref, None)
        events.append(Event(EventReason.DELETED, f"{ref[0]} {ref[1]} isn't needed any more"))
    return events


async def touch_files(api: Api, memory: Memory, annotation: str, value: str) -> None:
    """Touch an annotation of every pod: its kubelet then brings its files up to date at once."""
    for pod in memory.pods:
        metadata: Mapping[str, Any] = pod["metadata"]
        if metadata.get("deletionTimestamp") is not None:
            continue
        try:
            await api.merge(
                PODS,
                metadata["namespace"],
                metadata["name"],
                {"metadata": {"annotations": {annotation: value}}},
            )
        except ApiError as error:
            # Without it the files come by themselves within a minute.
            if error.status not in (403, 404, 409, 422):
                raise

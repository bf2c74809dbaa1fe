"""Which events follow from a change of the status."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from thermocline_operator.status.reasons import WARNINGS, ConditionType, EventReason, Reason

MAX_MESSAGE: Final = 1_000
"""The API server takes 1,024 bytes."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event about a resource."""

    reason: EventReason
    message: str

    @property
    def type(self) -> str:
        """``Normal`` or ``Warning``."""
        return "Warning" if self.reason in WARNINGS else "Normal"

    @property
    def bounded(self) -> str:
        """The message as it can be stored."""
        raw = self.message.encode()
        if len(raw) <= MAX_MESSAGE:
            return self.message
        return raw[: MAX_MESSAGE - 4].decode(errors="ignore") + " ..."


_TURNS: Final[dict[tuple[ConditionType, str], EventReason]] = {
    (ConditionType.READY, "True"): EventReason.READY,
    (ConditionType.READY, "False"): EventReason.NOT_READY,
    (ConditionType.DEGRADED, "True"): EventReason.DEGRADED,
    (ConditionType.DEGRADED, "False"): EventReason.RECOVERED,
    (ConditionType.CONFIG_VALID, "False"): EventReason.SPEC_REFUSED,
    (ConditionType.STALLED, "True"): EventReason.STALLED,
    (ConditionType.RECONCILING, "False"): EventReason.SPEC_APPLIED,
    (ConditionType.WARMUP_COMPLETE, "True"): EventReason.WARMUP_COMPLETE,
    (ConditionType.FEEDER_CAUGHT_UP, "False"): EventReason.FEEDER_BEHIND,
    (ConditionType.EVICTION_SAFE, "False"): EventReason.EVICTION_STOPPED,
    (ConditionType.ARCHIVE_REACHABLE, "True"): EventReason.TIER_REACHABLE,
    (ConditionType.ARCHIVE_REACHABLE, "False"): EventReason.TIER_UNREACHABLE,
    (ConditionType.FAST_TIER_REACHABLE, "True"): EventReason.TIER_REACHABLE,
    (ConditionType.FAST_TIER_REACHABLE, "False"): EventReason.TIER_UNREACHABLE,
}
_QUIET_AT_FIRST: Final = frozenset(
    {EventReason.RECOVERED, EventReason.NOT_READY, EventReason.FEEDER_BEHIND}
)
"""Nothing turned to this when a resource is seen for the first time."""
_SPECIAL: Final = {
    "NameConflict": EventReason.NAME_CONFLICT,
    "ApiRefused": EventReason.API_REFUSED,
    "CollectionRefused": EventReason.COLLECTION_REFUSED,
    "ApprovalNeeded": EventReason.ROLLOUT_WAITS,
    "DrainBlocked": EventReason.DRAIN_BLOCKED,
}
"""Reasons of ``Stalled`` that have an event of their own."""


def of_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    """Events for what turned between two statuses."""
    found: list[Event] = []
    old = {c["type"]: c for c in before.get("conditions") or []}
    for condition in after.get("conditions") or []:
        kind = ConditionType(condition["type"])
        previous = old.get(kind.value, {})
        if previous.get("status") == condition["status"] and not (
            kind is ConditionType.STALLED and previous.get("reason") != condition["reason"]
        ):
            continue
        reason = _TURNS.get((kind, condition["status"]))
        if kind is ConditionType.STALLED and condition["status"] == "True":
            reason = _SPECIAL.get(condition["reason"], EventReason.STALLED)
            if condition["reason"] == "InvalidSpec":
                continue  # ConfigValid tells it
        if condition["reason"] == Reason.NOT_NEEDED.value:
            continue
        if reason is EventReason.SPEC_APPLIED and condition["reason"] != Reason.UP_TO_DATE.value:
            continue
        if reason is None or (not previous and reason in _QUIET_AT_FIRST):
            continue
        if reason in (EventReason.TIER_REACHABLE, EventReason.RECOVERED) and (
            previous.get("status") != ("False" if reason is EventReason.TIER_REACHABLE else "True")
        ):
            continue
        found.append(Event(reason, condition["message"]))
    found += _states(before, after)
    if (before.get("phase") == "Paused") != (after.get("phase") == "Paused"):
        if after.get("phase") == "Paused":
            found.append(Event(EventReason.PAUSED, "spec.paused is true"))
        elif before:
            found.append(Event(EventReason.RESUMED, "spec.paused is false"))
    return found


def _states(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    old = {c["namespace"]: c.get("state") for c in before.get("collections") or []}
    return [
        Event(EventReason.COLLECTION_STATE, f"{c['namespace']} is {c['state']}")
        for c in after.get("collections") or []
        if c.get("state") in ("Active", "Passthrough")
        and old.get(c["namespace"]) not in (None, c["state"])
    ]

"""A resource's status, for people. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Body = Mapping[str, Any]

GOOD_WHERE_FALSE: Final = frozenset({"Reconciling", "Stalled", "Degraded"})
_STYLES: Final = {
    "Active": "green", "Passthrough": "green", "Warming": "cyan", "Pending": "cyan", "Draining": "cyan",
    "Paused": "yellow", "Degraded": "red", "Failed": "red",
}  # fmt: skip


def status_view(body: Body) -> RenderableType:
    """Everything that a person looks for, the most important first."""
    status: Body = body.get("status") or {}
    parts: list[RenderableType] = [_head(body, status)]
    parts += _waiting(body, status)
    if status.get("collections"):
        parts.append(_table(_COLLECTION, status["collections"]))
    if status.get("components"):
        parts.append(_table(_COMPONENT, status["components"]))
    if status.get("conditions"):
        parts.append(_conditions(status["conditions"]))
    return Group(*parts)


def progress_line(body: Body) -> str:
    """One line that says how far it is: it changes where something goes on."""
    status: Body = body.get("status") or {}
    ready = _condition(status, "Ready").get("status", "Unknown")
    parts = [f"phase {status.get('phase', 'Pending')}", f"ready {ready}"]
    parts += [f"{key} {status[key]}" for key in ("warm", "lag", "coverage") if status.get(key)]
    for collection in status.get("collections") or []:
        left = collection.get("timeLeft")
        if left:
            parts.append(f"{collection['namespace']} {collection.get('warmPercent', 0)}%, {left} left")  # fmt: skip
    blocked = [_wait(one) for one in status.get("blockedOn") or []]
    return ", ".join([*parts, *(f"waits for {text}" for text in blocked)])


def _condition(status: Body, kind: str) -> Body:
    found = [c for c in status.get("conditions") or [] if c.get("type") == kind]
    return found[0] if found else {}


def _head(body: Body, status: Body) -> Text:
    metadata = body["metadata"]
    phase = str(status.get("phase") or "Pending")
    ready = _condition(status, "Ready")
    text = Text.assemble(
        (f"{metadata['namespace']}/{metadata['name']}", "bold"),
        "  ",
        (phase, _STYLES.get(phase, "")),
        f"  Ready={ready.get('status', 'Unknown')}",
    )
    proxy = status.get("proxy") or {}
    text.append(f"  proxies {proxy.get('readyReplicas', 0)}/{proxy.get('replicas', 0)}")
    for key in ("warm", "lag", "coverage"):
        if status.get(key):
            text.append(f"  {key} {status[key]}")
    if ready.get("message"):
        text.append(f"\n  {ready['message']}")
    seen, wanted = status.get("observedGeneration"), metadata.get("generation")
    if seen != wanted:
        text.append(
            f"\n  the operator has seen generation {seen or 'none'} of {wanted}: if this stays, look at the operator's pod"
        )
    return text


def _wait(blocked: Body) -> str:
    return f"{blocked['kind']} {blocked['name']}: {blocked['reason']}"


def _waiting(body: Body, status: Body) -> Iterator[Text]:
    for blocked in status.get("blockedOn") or []:
        since = f" (since {blocked['since']})" if blocked.get("since") else ""
        yield Text.assemble(("waits for ", "yellow"), f"{_wait(blocked)}{since}")
    if status.get("pendingRollout"):
        metadata = body["metadata"]
        yield Text.assemble(
            ("rollout ", "yellow"),
            f"{status['pendingRollout']}\n  kubectl thermocline approve {metadata['name']} -n {metadata['namespace']}",
        )


_COLLECTION: Final = {
    "namespace": "COLLECTION", "state": "STATE", "warmPercent": "WARM %", "floor": "COMPLETE FROM",
    "documentsCopied": "COPIED", "timeLeft": "LEFT", "lag": "LAG", "unsentOperations": "UNSENT",
    "evicted": "EVICTED", "wouldEvict": "WOULD EVICT", "fastReadPercent": "FAST READS %",
    "archiveReason": "ELSE BECAUSE",
}  # fmt: skip
_COMPONENT: Final = {
    "name": "SERVICE", "version": "VERSION", "appliedGeneration": "GENERATION",
    "credentialsGeneration": "CREDENTIALS", "notAfter": "CERTIFICATE UNTIL",
}  # fmt: skip


def _table(columns: Mapping[str, str], rows: Sequence[Body]) -> Table:
    """Columns that no row has a value for are left out."""
    used = [key for key in columns if any(row.get(key) is not None for row in rows)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for key in used:
        table.add_column(columns[key], no_wrap=True)
    for row in rows:
        table.add_row(*("" if row.get(key) is None else str(row[key]) for key in used))
    return table


def _conditions(conditions: Sequence[Body]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("CONDITION", "STATUS", "REASON"):
        table.add_column(title, no_wrap=True)
    table.add_column("MESSAGE", overflow="fold")
    for condition in conditions:
        good = "False" if condition["type"] in GOOD_WHERE_FALSE else "True"
        style = "" if condition["status"] == good else "yellow"
        table.add_row(
            condition["type"],
            Text(condition["status"], style),
            condition["reason"],
            condition.get("message", ""),
        )
    return table

"""What to look at when a key went wrong: its whole history, and what both tiers' oplogs say of it."""

import datetime as dt
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from support.chaos.cluster import Cluster
from support.chaos.evictions import oplog, parts
from support.chaos.histories import Operation
from thermocline_common import names

RELEVANT = frozenset(f"{names.DATABASE}.{name}" for name in (names.COVERAGE, names.TIERED))


def write(
    directory: Path,
    cluster: Cluster,
    namespace: str,
    ids: Mapping[Hashable, Iterable[Any]],
    operations: Iterable[Operation],
    epoch: float,
) -> None:
    """A file per key: ``ids`` are the documents that it is about. ``epoch``: the wall clock at 0."""
    history = list(operations)
    for name, tier in cluster.tiers.items():
        entries = oplog(tier)
        for key, concerned in ids.items():
            wanted = set(concerned)
            lines = [
                f"{_seconds(entry['wall'], epoch):9.3f} {name} {entry['ts'].time}:{entry['ts'].inc}"
                f" lsid={_session(entry)} txn={entry.get('txnNumber')} {part['op']} {part['ns']}"
                f" {part.get('o2', '')} {part['o']}"[:700]
                for entry in entries
                for part in parts(entry)
                if _concerns(part, namespace, wanted)
            ]
            path = directory / f"key-{_slug(key)}.txt"
            with path.open("a") as sink:
                if name == "fast":
                    sink.writelines(f"{o}\n" for o in _ordered(history, key))
                sink.write(f"--- oplog of {name}\n" + "\n".join(lines) + "\n")


def _concerns(part: Mapping[str, Any], namespace: str, ids: set[Any]) -> bool:
    if "ns" not in part:
        return False
    where, identity = part["ns"], (part.get("o2") or part["o"]).get("_id")
    if where in RELEVANT:
        return bool(identity == namespace)
    if where == f"{names.DATABASE}.{names.REMOVED}":
        return isinstance(identity, dict) and identity["ns"] == namespace and identity["id"] in ids
    if part["op"] == "c":
        return bool(where.partition(".")[0] == namespace.partition(".")[0])
    return bool(where == namespace and identity in ids)


def _ordered(operations: Iterable[Operation], key: Hashable) -> list[Operation]:
    return sorted((o for o in operations if o.key == key), key=lambda o: o.invoked)


def _seconds(wall: dt.datetime, epoch: float) -> float:
    return wall.timestamp() - epoch


def _session(entry: Mapping[str, Any]) -> str:
    lsid = entry.get("lsid")
    return "-" if lsid is None else lsid["id"].bytes.hex()[-8:]


def _slug(key: Hashable) -> str:
    return "".join(c if c.isalnum() else "-" for c in str(key))

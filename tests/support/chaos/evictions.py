"""The ledger of evictions, read from the tiers' own oplogs: nothing left F before the archive had it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bson.timestamp import Timestamp

from support.chaos.histories import Violation
from support.mongod import ReplicaSet
from thermocline_common import names, sessions

SHOWN: Final = 12


class Change(StrEnum):
    """What an entry of F's oplog did to a document."""

    WRITTEN = "written"
    DELETED = "deleted"
    COPIED = "copied"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class Entry:
    """One document's change in F. ``wall``: seconds of the servers' clock (of one machine)."""

    time: tuple[int, int]
    wall: float
    key: tuple[str, bytes]
    change: Change


@dataclass(frozen=True, slots=True)
class Position:
    """The feeder's checkpoint, and when the archive had it."""

    wall: float
    checkpoint: tuple[int, int]


def judge_evictions(entries: Iterable[Entry], positions: Sequence[Position]) -> list[Violation]:
    """Every eviction came after the archive held the document's last write. Pure.

    ``entries`` in the order of F's oplog, ``positions`` in that of the archive's.
    """
    written: dict[tuple[str, bytes], Entry] = {}
    wrong = []
    for entry in entries:
        if entry.change in (Change.WRITTEN, Change.DELETED):
            written[entry.key] = entry
        elif entry.change is Change.EVICTED and entry.key in written:
            last = written[entry.key]
            held = any(p.checkpoint >= last.time and p.wall <= entry.wall for p in positions)
            if not held:
                wrong.append(f"{entry.key}: written at {last.time}, evicted at {entry.time}")
    return [Violation("deleted = confirmed", "evictions", tuple(wrong[:SHOWN]))] if wrong else []


def judge_ages(
    entries: Sequence[Entry], ages: Mapping[tuple[str, bytes], float], least: float
) -> list[Violation]:
    """Nothing left F younger than ``least`` seconds. ``ages``: the dates that the archive holds, as seconds
    of the servers' clock; what was written after its eviction tells nothing. Pure."""
    written = {e.key: e.time for e in entries if e.change is Change.WRITTEN}
    wrong = [
        f"{e.key}: evicted {e.wall - ages[e.key]:.1f} s old, {least:.1f} s is the least"
        for e in entries
        if e.change is Change.EVICTED
        and e.key in ages
        and written.get(e.key, (0, 0)) < e.time
        and e.wall - ages[e.key] < least
    ]
    return [Violation("what is young stays", "evictions", tuple(wrong[:SHOWN]))] if wrong else []


def judge_reports(reports: Mapping[str, Mapping[str, Any]]) -> list[Violation]:
    """The evictors' own ledgers: what was confirmed is what was deleted. By evictor and namespace. Pure."""
    wrong = [
        f"{name}: confirmed {report['confirmed']}, evicted {report['evicted']}"
        for name, report in reports.items()
        if report.get("confirmed") != report.get("evicted")
    ]
    return [Violation("deleted = confirmed", "evictors' status", tuple(wrong))] if wrong else []


def count(entries: Iterable[Entry]) -> Counter[Change]:
    """How many changes of each kind."""
    return Counter(entry.change for entry in entries)


def read_fast(fast: ReplicaSet, namespaces: Sequence[str]) -> list[Entry]:
    """F's oplog, as far as it is about documents of these namespaces."""
    wanted = set(namespaces)
    entries = []
    for operation in oplog(fast):
        entries += [
            Entry(
                (operation["ts"].time, operation["ts"].inc),
                operation["wall"].timestamp(),
                (part["ns"], repr(_identity(part)).encode()),
                change,
            )
            for part, change in _changes(operation)
            if part["ns"] in wanted
        ]
    return entries


def read_positions(archive: ReplicaSet) -> list[Position]:
    """The checkpoints that the archive's oplog shows."""
    namespace = f"{names.DATABASE}.{names.CHECKPOINT}"
    positions = []
    for operation in oplog(archive):
        for part in parts(operation):
            if part.get("ns") == namespace and (time := _checkpoint_time(part["o"])) is not None:
                wall = operation["wall"].timestamp()
                positions.append(Position(wall, (time.time, time.inc)))
    return positions


def oplog(replica_set: ReplicaSet) -> list[dict[str, Any]]:
    """All of it, in order, but for no-ops."""
    with replica_set.client() as client:
        found = client.local["oplog.rs"].find({"op": {"$ne": "n"}})
        return list(found.sort("$natural", 1))


def parts(operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The changes in an entry: those of a transaction, or the entry itself."""
    if operation["op"] == "c" and "applyOps" in operation["o"]:
        return list(operation["o"]["applyOps"])
    return [operation]


def _changes(operation: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Change]]:
    own = operation["op"] == "c" and _reserved(operation)
    written, deleted = (Change.COPIED, Change.EVICTED) if own else (Change.WRITTEN, Change.DELETED)
    kinds = {"i": written, "u": written, "d": deleted}
    return [(p, kinds[p["op"]]) for p in parts(operation) if p["op"] in kinds]


def _reserved(operation: Mapping[str, Any]) -> bool:
    lsid = operation.get("lsid")
    return lsid is not None and sessions.is_reserved(lsid["id"].bytes)


def _identity(part: Mapping[str, Any]) -> Any:
    return part["o2"]["_id"] if part["op"] == "u" else part["o"]["_id"]


def _checkpoint_time(document: Mapping[str, Any]) -> Timestamp | None:
    """The time in an entry that wrote the checkpoint, whole or as a difference."""
    difference = document.get("diff", {})
    for place in (document, difference.get("u", {}), difference.get("i", {})):
        if isinstance(place.get("time"), Timestamp):
            time: Timestamp = place["time"]
            return time
    return None

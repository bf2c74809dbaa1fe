"""What ``$currentOp`` shows: running writes, open transactions, open cursors."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

READS = frozenset(
    {
        "find", "getMore", "count", "distinct", "listIndexes", "listCollections", "collStats", "dbStats",
        "explain", "killCursors", "hello", "isMaster", "ismaster", "ping", "validate", "dataSize", "dbHash",
    }
)  # fmt: skip


def _targets(operation: Mapping[str, Any], namespace: str) -> bool:
    ns = operation.get("ns")
    if ns == namespace:
        return True
    command = operation.get("command") or {}
    database, name = namespace.split(".", 1)
    if "dropDatabase" in command:
        return bool(command.get("$db") == database)
    if "renameCollection" in command:
        return namespace in (command["renameCollection"], command.get("to"))
    return ns == f"{database}.$cmd" and bool(command) and next(iter(command.values())) == name


def _reads(operation: Mapping[str, Any]) -> bool:
    if operation.get("op") in ("query", "getmore"):
        return True
    command = operation.get("command") or {}
    name = next(iter(command), None)
    if name == "aggregate":
        stages = command.get("pipeline") or ()
        return not any(isinstance(s, Mapping) and ("$out" in s or "$merge" in s) for s in stages)
    return name in READS


def writes(operations: Iterable[Mapping[str, Any]], namespace: str) -> set[Any]:
    """Ids of the writes (and of all that isn't surely a read) that run on the namespace now."""
    return {
        o.get("opid")
        for o in operations
        if o.get("active") and _targets(o, namespace) and not _reads(o)
    }


def transactions(operations: Iterable[Mapping[str, Any]]) -> set[tuple[bytes, int]]:
    """(session id, number) of every open transaction, idle ones too; those name no namespace."""
    found = set()
    for operation in operations:
        parameters = (operation.get("transaction") or {}).get("parameters") or {}
        if parameters.get("autocommit") is False:
            session: Any = (operation.get("lsid") or {}).get("id")
            raw = session.bytes if isinstance(session, uuid.UUID) else bytes(session or b"")
            found.add((raw, int(parameters.get("txnNumber", 0))))
    return found


def cursors(operations: Iterable[Mapping[str, Any]], namespace: str) -> set[Any]:
    """Cursors (and reads that run now) on the namespace; tailable ones never end and don't count."""
    found: set[Any] = set()
    for operation in operations:
        cursor = operation.get("cursor") or {}
        if cursor.get("tailable"):
            continue
        if operation.get("type") == "idleCursor":
            if operation.get("ns") == namespace:
                found.add(cursor.get("cursorId"))
        elif operation.get("active") and _targets(operation, namespace) and _reads(operation):
            found.add(cursor.get("cursorId") or operation.get("opid"))
    return found

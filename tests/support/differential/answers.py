"""What two servers' answers to one command have in common, or not. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from bson import decode, encode
from bson.raw_bson import RawBSONDocument

from support.differential.step import Compared

Answer = tuple[dict[str, Any], list[int], list[bytes]]
"""The essence of a reply, the sizes of its batches, the raw documents of its cursor."""

_PER_SERVER = frozenset(
    {"$clusterTime", "operationTime", "electionId", "opTime", "$gleStats", "topologyVersion", "$configTime", "$topologyTime"}
)  # fmt: skip
TRANSIENT = frozenset({262, 91, 189, 6, 7, 89, 9001, 10107, 11600, 11602, 13435})
"""Codes after which a driver tries again; an application never sees them while it does."""


def plain(value: Any) -> Any:
    """Documents as bytes, so that field order and number types count; containers as tuples."""
    if isinstance(value, RawBSONDocument):
        return value.raw
    if isinstance(value, Mapping):
        return encode(value)
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, float):
        return encode({"float": value})  # NaN is equal to itself, and -0.0 isn't 0.0
    return value


def essence(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A reply without what differs from server to server; messages give way to codes, names and keys."""
    if not reply.get("ok"):
        return {"ok": 0, **_codes(reply), "labels": _labels(reply), **_keys(reply)}
    made: dict[str, Any] = {}
    for name in reply:
        value = reply[name]
        if name in _PER_SERVER or name == "cursor":
            continue
        if name == "writeErrors":
            made[name] = tuple((e["index"], e["code"], tuple(_keys(e).items())) for e in value)
        elif name == "writeConcernError":
            made[name] = tuple(_codes(value).items())
        elif name == "errorLabels":
            made[name] = _labels(reply)
        elif name in ("n", "nModified", "ok"):
            made[name] = int(value)
        elif name == "lastErrorObject":
            made[name] = {key: plain(value[key]) for key in value}
        elif name == "retriedStmtIds":
            made[name] = tuple(sorted(value))
        else:
            made[name] = plain(value)
    return made


def _codes(error: Mapping[str, Any]) -> dict[str, Any]:
    return {"code": error.get("code"), "codeName": error.get("codeName")}


def _labels(reply: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(reply.get("errorLabels", ())))


def _keys(error: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(error[name]) for name in ("keyPattern", "keyValue") if name in error}


def differ(
    compared: Compared, ordered: bool, left: Sequence[Any], right: Sequence[Any]
) -> str | None:
    """Compare [essence, batches, documents] of two answers; None if equal, else what differs.

    ``left`` is the plain server's.
    """
    if compared is Compared.CODES:
        both = [(side[0].get("ok"), codes(side[0])) for side in (left, right)]
        return None if both[0] == both[1] else "the codes"
    if compared is Compared.SET and left[0].get("ok") and right[0].get("ok"):
        values = [sorted(map(repr, side[0]["values"])) for side in (left, right)]
        return None if values[0] == values[1] else "the values"
    if left[0] != right[0]:
        return "the reply"
    if compared is Compared.MATCH:
        found = right[2]
        wanted = min(1, len(left[2]))
        return None if len(found) == wanted and set(found) <= set(left[2]) else "the match"
    if compared is Compared.CATALOG:
        entries = [sorted(_without_uuid(raw) for raw in side[2]) for side in (left, right)]
        return None if entries[0] == entries[1] else "the catalog"
    if left[1] != right[1]:
        return "the sizes of batches"
    documents = [list(side[2]) if ordered else sorted(side[2]) for side in (left, right)]
    return None if documents[0] == documents[1] else "the documents"


def _without_uuid(raw: bytes) -> bytes:
    entry = decode(raw)
    entry.get("info", {}).pop("uuid", None)
    return encode(entry)


def codes(reply: Mapping[str, Any]) -> list[int]:
    """All error codes in an essence."""
    if "code" in reply:
        return [reply["code"]]
    return [error[1] for error in reply.get("writeErrors", ())]

"""What two servers' answers to one command have in common, or not. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from bson import encode
from bson.raw_bson import RawBSONDocument

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
    return value


def essence(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A reply without what differs from server to server; messages give way to codes and keys."""
    if not reply.get("ok"):
        return {"ok": 0, "code": reply.get("code"), **_keys(reply)}
    made: dict[str, Any] = {}
    for name in reply:
        value = reply[name]
        if name in _PER_SERVER or name == "cursor":
            continue
        if name == "writeErrors":
            made[name] = tuple((e["index"], e["code"], tuple(_keys(e).items())) for e in value)
        elif name in ("n", "nModified", "ok"):
            made[name] = int(value)
        elif name == "lastErrorObject":
            made[name] = {key: plain(value[key]) for key in value}
        elif name == "retriedStmtIds":
            made[name] = tuple(sorted(value))
        else:
            made[name] = plain(value)
    return made


def _keys(error: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(error[name]) for name in ("keyPattern", "keyValue") if name in error}


def differ(kind: str, ordered: bool, left: Sequence[Any], right: Sequence[Any]) -> str | None:
    """Compare [essence, batches, documents] of two answers; None if equal, else what differs."""
    if left[0] != right[0]:
        if kind == "distinct" and left[0].get("ok") and right[0].get("ok"):
            one, two = dict(left[0]), dict(right[0])
            if (
                sorted(map(repr, one.pop("values"))) == sorted(map(repr, two.pop("values")))
                and one == two
            ):
                return None
        return "the reply"
    if left[1] != right[1]:
        return "the sizes of batches"
    documents = [list(side[2]) if ordered else sorted(side[2]) for side in (left, right)]
    return None if documents[0] == documents[1] else "the documents"


def codes(reply: Mapping[str, Any]) -> list[int]:
    """All error codes in an essence."""
    return (
        [reply["code"]] if "code" in reply else [error[1] for error in reply.get("writeErrors", ())]
    )


def _unordered_values(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {**reply, "values": sorted(map(repr, reply["values"]))}

"""What monitoring agents and shells ask of a server, answered for the proxy as a mongos would. Pure."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.int64 import Int64

from thermocline_proxy.commands.catalog import CATALOG, Kind
from thermocline_proxy.wire.decoding import decoded

_COUNTED: Final[Mapping[str, str]] = {
    "insert": "insert",
    "find": "query",
    "update": "update",
    "delete": "delete",
    "getMore": "getmore",
}
"""Commands with an opcounter of their own; all others are ``command``."""
_OF_THE_ARCHIVE: Final = ("version", "defaultRWConcern", "security", "logicalSessionRecordCache")
"""Sections that hold for whoever uses the proxy."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a proxy knows of itself. ``uptime`` in seconds, sizes in bytes; ``commands`` by name."""

    host: str
    pid: int
    uptime: float
    now: dt.datetime
    connections: int
    active: int
    accepted: int
    most_connections: int
    resident: int
    virtual: int
    page_faults: int
    bytes_in: int
    bytes_out: int
    commands: Mapping[str, int]
    errors: int
    own: Mapping[str, Any]


def server_status(archive: bytes, figures: Figures) -> bytes:
    """The proxy's own serverStatus. ``archive``: the archive's, which the client was allowed to see."""
    seen = decoded(archive)
    counters = dict.fromkeys((*_COUNTED.values(), "command"), 0)
    for name, count in figures.commands.items():
        counters[_COUNTED.get(name, "command")] += count
    requests = sum(figures.commands.values())
    return bson.encode(
        {
            "host": figures.host,
            "process": "mongos",
            "pid": Int64(figures.pid),
            "uptime": float(int(figures.uptime)),
            "uptimeMillis": Int64(int(figures.uptime * 1000)),
            "uptimeEstimate": Int64(int(figures.uptime)),
            "localTime": figures.now,
            **{name: seen[name] for name in _OF_THE_ARCHIVE if name in seen},
            "asserts": {
                "regular": 0,
                "warning": 0,
                "msg": 0,
                "user": figures.errors,
                "tripwire": 0,
                "rollovers": 0,
            },
            "connections": {
                "current": figures.connections,
                "available": max(0, figures.most_connections - figures.connections),
                "totalCreated": figures.accepted,
                "active": figures.active,
            },
            "extra_info": {
                "note": "fields vary by platform",
                "page_faults": Int64(figures.page_faults),
            },
            "mem": {
                "bits": 64,
                "resident": figures.resident >> 20,
                "virtual": figures.virtual >> 20,
                "supported": True,
            },
            "network": {
                "bytesIn": Int64(figures.bytes_in),
                "bytesOut": Int64(figures.bytes_out),
                "numRequests": Int64(requests),
            },
            "opcounters": {name: Int64(count) for name, count in counters.items()},
            "thermocline": dict(figures.own),
            "ok": 1.0,
        }
    )


def served_commands(reply: bytes) -> bytes:
    """A listCommands reply without what the proxy refuses."""
    document = decoded(reply)
    commands = document.get("commands")
    if not isinstance(commands, dict):
        return reply
    document["commands"] = {
        name: described
        for name, described in commands.items()
        if (entry := CATALOG.get(name)) is not None and entry.kind is not Kind.REFUSED
    }
    return bson.encode(document)

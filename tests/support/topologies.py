"""Replica sets as drivers describe them, for tests of what is chosen among members; no server runs."""

import datetime as dt
from typing import Any

from pymongo.hello import Hello
from pymongo.server_description import ServerDescription
from pymongo.topology_description import TOPOLOGY_TYPE, TopologyDescription

NOW = dt.datetime(2026, 1, 1)  # noqa: DTZ001  # as PyMongo has it


def member(
    name: str, kind: str, milliseconds: float, lag: int = 0, **tags: str
) -> ServerDescription:
    """``kind``: primary, secondary or arbiter; so many milliseconds away, its last write ``lag`` seconds ago."""
    hello: dict[str, Any] = {
        "ok": 1, "setName": "rs", "hosts": ["a:1"], "tags": tags, "minWireVersion": 0, "maxWireVersion": 17,
        "lastWrite": {"lastWriteDate": NOW - dt.timedelta(seconds=lag)},
        "isWritablePrimary": kind == "primary", "secondary": kind == "secondary", "arbiterOnly": kind == "arbiter",
    }  # fmt: skip
    return ServerDescription((name, 1), Hello(hello), milliseconds / 1000)


class Settings:
    """What a description takes from its client's options."""

    local_threshold_ms = 15
    heartbeat_frequency = 10


def described(*members: ServerDescription) -> TopologyDescription:
    """The set of these members."""
    primary = any(one.is_writable for one in members)
    kind = TOPOLOGY_TYPE.ReplicaSetWithPrimary if primary else TOPOLOGY_TYPE.ReplicaSetNoPrimary
    servers = {one.address: one for one in members}
    return TopologyDescription(kind, servers, "rs", None, None, Settings())

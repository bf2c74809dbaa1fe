"""The answer to hello: the proxy is a ``mongos``, with the limits of the tiers behind it. Pure."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.objectid import ObjectId

from thermocline_proxy.wire.header import MAX_DOCUMENT_SIZE, MAX_MESSAGE_SIZE, MAX_WRITE_BATCH


@dataclass(frozen=True, slots=True)
class Limits:
    """What all members that can be reached have in common.

    ``session_minutes``: None where a member has no sessions.
    """

    min_wire: int
    max_wire: int
    session_minutes: int | None


def common_limits(members: list[tuple[int, int, int | None]]) -> Limits | None:
    """Of (min wire version, max wire version, session minutes) of each member; None of no member."""
    if not members:
        return None
    minutes = [member[2] for member in members if member[2] is not None]
    return Limits(
        max(member[0] for member in members),
        min(member[1] for member in members),
        min(minutes) if len(minutes) == len(members) else None,
    )


def hello_reply(
    limits: Limits,
    *,
    legacy: bool,
    hello_ok: bool,
    connection_id: int,
    now: dt.datetime,
    service_id: ObjectId | None = None,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The raw reply, without times. ``legacy``: to isMaster, whose primary field has the old name.

    No ``topologyVersion``: drivers then ask again and again instead of waiting for a push.
    """
    document: dict[str, Any] = {}
    if hello_ok:
        document["helloOk"] = True
    document["ismaster" if legacy else "isWritablePrimary"] = True
    document |= {
        "msg": "isdbgrid",
        "maxBsonObjectSize": MAX_DOCUMENT_SIZE,
        "maxMessageSizeBytes": MAX_MESSAGE_SIZE,
        "maxWriteBatchSize": MAX_WRITE_BATCH,
        "localTime": now,
    }
    if limits.session_minutes is not None:
        document["logicalSessionTimeoutMinutes"] = limits.session_minutes
    document |= {
        "connectionId": connection_id,
        "minWireVersion": limits.min_wire,
        "maxWireVersion": limits.max_wire,
        "readOnly": False,
    }
    if service_id is not None:
        document["serviceId"] = service_id
    document |= extra or {}
    document["ok"] = 1.0
    return bson.encode(document)

"""The answer to hello: the proxy is a ``mongos``, with the limits of the tiers behind it. Pure."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
from bson.objectid import ObjectId

from thermocline_common.errors import CommandError
from thermocline_proxy.commands.command import Command
from thermocline_proxy.wire.compression import agreed


@dataclass(frozen=True, slots=True)
class Limits:
    """What one member can do, or what several have in common. Sizes in bytes.

    ``session_minutes``: None where a member has no sessions. ``batch``: statements of one write.
    """

    min_wire: int
    max_wire: int
    session_minutes: int | None
    document: int
    message: int
    batch: int


def common_limits(members: Sequence[Limits]) -> Limits | None:
    """What every member can do; None of no member."""
    if not members:
        return None
    minutes = [member.session_minutes for member in members if member.session_minutes is not None]
    return Limits(
        max(member.min_wire for member in members),
        min(member.max_wire for member in members),
        min(minutes) if len(minutes) == len(members) else None,
        min(member.document for member in members),
        min(member.message for member in members),
        min(member.batch for member in members),
    )


def application_name(command: Command) -> str:
    """The name that a hello's metadata give the application; empty where they give none."""
    metadata = command.get("client")
    application = metadata.get("application") if isinstance(metadata, Mapping) else None
    name = application.get("name") if isinstance(application, Mapping) else None
    return name if isinstance(name, str) else ""


def compression(command: Command, before: tuple[str, ...]) -> tuple[str, ...]:
    """The compressors to answer a hello with; one that names none keeps those from ``before``.

    Raises ``CommandError`` 14 for a list that is none.
    """
    if "compression" not in command.fields:
        return before
    wanted = command.get("compression")
    if not isinstance(wanted, list):
        raise _wrong_type("compression", "array")
    for place, name in enumerate(wanted):
        if not isinstance(name, str):
            raise _wrong_type(f"compression.{place}", "string")
    return agreed(wanted)


def _wrong_type(field: str, expected: str) -> CommandError:
    return CommandError(
        14,
        f"BSON field 'hello.{field}' is the wrong type, expected type '{expected}'",
        code_name="TypeMismatch",
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
        "maxBsonObjectSize": limits.document,
        "maxMessageSizeBytes": limits.message,
        "maxWriteBatchSize": limits.batch,
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

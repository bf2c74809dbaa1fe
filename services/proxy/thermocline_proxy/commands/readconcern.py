"""The client's readConcern and read preference, merged with what each tier needs.

An ``afterClusterTime`` of a client is always a time of the fast tier (clients get no others), so it
goes to the fast tier as it is and never to the archive.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from thermocline_proxy.commands.command import Command, element

LINEARIZABLE: Final = "linearizable"
SNAPSHOT: Final = "snapshot"
MAJORITY: Final = "majority"
_LEVELS: Final = (None, "local", "available", MAJORITY, LINEARIZABLE, SNAPSHOT)


@dataclass(frozen=True, slots=True)
class ReadConcern:
    """A readConcern as sent. ``level`` None: none given. ``valid``: nothing in it is unknown."""

    level: str | None = None
    after: Timestamp | None = None
    at: Timestamp | None = None
    valid: bool = True


NONE: Final = ReadConcern()


def read_concern(command: Command) -> ReadConcern:
    """The command's readConcern."""
    if "readConcern" not in command.fields:
        return NONE
    value = command.get("readConcern")
    if not isinstance(value, Mapping):
        return ReadConcern(valid=False)
    given: dict[str, Any] = dict(value)
    level = given.pop("level", None)
    after = given.pop("afterClusterTime", None)
    at = given.pop("atClusterTime", None)
    given.pop("provenance", None)
    valid = (
        not given
        and level in _LEVELS
        and isinstance(after, Timestamp | None)
        and isinstance(at, Timestamp | None)
    )
    if not valid:
        return ReadConcern(valid=False)
    return ReadConcern(level, after, at)


def on_primary(command: Command) -> bool:
    """Whether the command must be answered by a primary (also: a read preference that is unreadable)."""
    if "$readPreference" not in command.fields:
        return True
    value = command.get("$readPreference")
    mode = value.get("mode") if isinstance(value, Mapping) else None
    if read_concern(command).level == LINEARIZABLE:
        return True
    return mode not in ("primaryPreferred", "secondary", "secondaryPreferred", "nearest")


def _later(one: Timestamp | None, other: Timestamp | None) -> Timestamp | None:
    if one is None or other is None:
        return one or other
    return max(one, other)


def for_fast(command: Command, published: Timestamp | None) -> tuple[Command, Timestamp | None]:
    """The command for F, seeing at least ``published``; and the time to make known to the member.

    ``linearizable`` takes no ``afterClusterTime`` and needs none; a snapshot names its own time.
    """
    concern = read_concern(command)
    if concern.level == LINEARIZABLE or concern.at is not None or not concern.valid:
        return command, None
    after = _later(concern.after, published)
    if after is None or after == concern.after:
        return command, after
    # On a replica set ``available`` is ``local``, but it takes no ``afterClusterTime``.
    level = "local" if concern.level == "available" else concern.level
    fields: dict[str, Any] = {} if level is None else {"level": level}
    fields["afterClusterTime"] = after
    return command.changed({"readConcern": element("readConcern", fields)}), after


def for_archive(command: Command, after: Timestamp | None) -> Command:
    """The command for a tiered read of A: level ``majority``, not before ``after`` (a time of A).

    ``linearizable`` stays, without a time: it goes to the primary.
    """
    concern = read_concern(command)
    if not concern.valid:
        return command  # the server says what is wrong with it
    level = concern.level
    fields: dict[str, Any] = {"level": LINEARIZABLE if level == LINEARIZABLE else MAJORITY}
    if after is not None and level != LINEARIZABLE:
        fields["afterClusterTime"] = after
    return command.changed({"readConcern": element("readConcern", fields)})


def for_snapshot(command: Command, after: Timestamp | None) -> Command:
    """The command for a snapshot read of A, at a time not before ``after`` (a time of A), or at its own."""
    concern = read_concern(command)
    if not concern.valid or concern.at is not None or after is None:
        return command
    fields = {"level": SNAPSHOT, "afterClusterTime": after}
    return command.changed({"readConcern": element("readConcern", fields)})


def timeless(command: Command) -> Command:
    """A write or DDL for A's primary without a time of F, which drivers send along in causal sessions: it
    comes after everything that A has, and while A takes the writes of a namespace, A has them all."""
    return untiered_concern(command, None)


def untiered_concern(command: Command, after: Timestamp | None) -> Command:
    """The command for A with the client's own level, its time of F replaced by ``after``, one of A."""
    concern = read_concern(command)
    if concern.after is None:
        return command
    fields: dict[str, Any] = {} if concern.level is None else {"level": concern.level}
    if after is not None and concern.level != LINEARIZABLE:
        fields["afterClusterTime"] = after
    return command.changed({"readConcern": element("readConcern", fields) if fields else None})

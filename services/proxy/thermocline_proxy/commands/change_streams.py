"""Change streams: what a client asks for, and the command that the tier gets instead. Pure."""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import ARRAY, DOCUMENT, STRING, array, elements, string, wrap
from thermocline_common.sessions import RANGE
from thermocline_proxy.commands.command import Command, build, element, raw_element
from thermocline_proxy.commands.readconcern import MAJORITY, read_concern
from thermocline_proxy.commands.resume_tokens import NO_COLLECTION, Token, parse_token, unmarked
from thermocline_proxy.wire.decoding import decoded

RESUMABLE: Final = "ResumableChangeStreamError"
"""With this label a driver opens the stream anew where it stopped."""
_NOT_RESUMABLE: Final = "NonResumableChangeStreamError"
_STAGE: Final = b"$changeStream"
_TOKENS: Final = (b"resumeAfter", b"startAfter")
_TIMESTAMP: Final = 0x11
_LOW, _HIGH = (Binary(edge, 4) for edge in RANGE)
# A range of UUIDs; an absent lsid (no transaction) passes.
_NOT_RESERVED: Final = bytes(
    bson.encode({"$match": {"$nor": [{"lsid.id": {"$gte": _LOW, "$lte": _HIGH}}]}})
)
_UPDATES: Final = bytes(bson.encode({"$match": {"operationType": "update"}}))
_KEYS: Final = bytes(bson.encode({"$project": {"documentKey._id": 1}}))
_FEEDERS: Final = "written by Thermocline, while the fast tier had the say"
# A stream of the archive that slept while its collection was active would show what the feeder wrote. Such an
# event ends it: no document can come of it, and the server doesn't put a client's $match before this stage.
_UNTIL_ACTIVE: Final = bytes(
    bson.encode(
        {
            "$replaceWith": {
                "$cond": [
                    {"$and": [{"$gte": ["$lsid.id", _LOW]}, {"$lte": ["$lsid.id", _HIGH]}]},
                    _FEEDERS,
                    "$$ROOT",
                ]
            }
        }
    )
)
_NO_DOCUMENT: Final = 40228
# Last, so that the client's own stages still see it: times of the archive don't reach clients.
_WITHOUT_TIME: Final = bytes(bson.encode({"$unset": "clusterTime"}))


@dataclass(frozen=True, slots=True)
class Watch:
    """One ``$changeStream``. ``token``: of ``resumeAfter`` or ``startAfter``, None where there is none or
    one that the server will refuse. ``at``: ``startAtOperationTime``. ``looks_up``: updates come with
    the document as it is when the event is read. ``hides``: the client's stages may make something
    of a looked-up document that doesn't show whether it was found. ``cluster``: of all databases."""

    token: str | None = None
    at: Timestamp | None = None
    looks_up: bool = False
    hides: bool = False
    cluster: bool = False


def watch_of(command: Command) -> Watch | None:
    """What a command watches; None where it isn't a change stream. Never raises."""
    if command.name != "aggregate":
        return None
    try:
        stages = command.documents("pipeline")
        for name, kind, _, start, end in elements(stages[0]) if stages else ():
            if name != _STAGE:
                return None
            watch = _read(stages[0][start:end]) if kind == DOCUMENT else Watch()
            hides = watch.looks_up and not all(map(_shows_all, stages[1:]))
            return replace(watch, hides=hides)
    except (ValueError, struct.error, IndexError):
        return None  # no BSON: the server says so
    return None


def _read(options: bytes) -> Watch:
    token: str | None = None
    at: Timestamp | None = None
    looks_up = cluster = False
    for name, kind, _, start, end in elements(options):
        value = options[start:end]
        if name in _TOKENS and kind == DOCUMENT:
            token = _data(value)
        elif name == b"startAtOperationTime" and kind == _TIMESTAMP:
            number = int.from_bytes(value, "little")
            at = Timestamp(number >> 32, number & 0xFFFFFFFF)
        elif name == b"fullDocument" and kind == STRING:
            looks_up = value[4:-1] == b"updateLookup"
        elif name == b"allChangesForCluster" and kind == 0x08:
            cluster = value != b"\0"
    return Watch(token, at, looks_up, cluster=cluster)


def _shows_all(stage: bytes) -> bool:
    """Whether a stage lets an event through by what isn't the looked-up document, and unchanged."""
    return all(name == b"$match" for name, *_ in elements(stage)) and not any(
        word in stage for word in (b"fullDocument", b"$$")
    )


def _data(token: bytes) -> str | None:
    for name, kind, _, start, end in elements(token):
        if name == b"_data" and kind == STRING:
            return token[start + 4 : end - 1].decode("utf-8", "replace")
    return None


def history_lost(text: str) -> CommandError:
    """The end of a stream: a driver must not open it anew where it stopped."""
    return CommandError(Code.ChangeStreamHistoryLost, text, labels=(_NOT_RESUMABLE,))


def moved(namespace: str) -> CommandError:
    """The end of a stream whose collection changed tiers (or was dropped or renamed, which does that too)."""
    return history_lost(
        f"{namespace} changed tiers, was dropped or was renamed while it was watched: open a new change "
        "stream without a resume token, and read the collection for what happened meanwhile"
    )


def check_on_fast(watch: Watch, coverage: Coverage) -> None:
    """Raise where a stream of F can't begin at that point: what the client asks for isn't there."""
    if watch.at is not None and not _since(coverage, _number(watch.at)):
        raise history_lost(
            f"{coverage.namespace} has been in the fast tier only since {coverage.activated_at}: a change "
            "stream can't start at an operation time before that"
        )
    token = None if watch.token is None else parse_token(watch.token)
    if token is not None and not _of_this_activation(token, coverage):
        raise history_lost(
            f"the resume token is from before {coverage.namespace} was switched to the fast tier, or of "
            "another stream: open a new change stream without it"
        )


def _of_this_activation(token: Token, coverage: Coverage) -> bool:
    if coverage.fast_uuid is not None and token.origin == coverage.fast_uuid.bytes:
        return True
    # A collection that didn't exist then: only the time tells.
    return not token.event and token.origin == NO_COLLECTION and _since(coverage, token.time)


def _since(coverage: Coverage, time: int) -> bool:
    return coverage.activated_at is not None and time >= _number(coverage.activated_at)


def _number(time: Timestamp) -> int:
    return (time.time << 32) | time.inc


def check_on_archive(watch: Watch, coverage: Coverage | None = None) -> None:
    """Raise where a stream of A can't begin at that point, as far as the stream's options tell."""
    if watch.at is not None:
        raise CommandError(
            Code.InvalidOptions,
            "change streams of the archive can't start at an operation time of the fast tier: use "
            "resumeAfter or startAfter with a token of the same stream",
        )
    token = None if watch.token is None else parse_token(watch.token)
    if token is None or token.origin is None:
        return
    fast = None if coverage is None else coverage.fast_uuid
    if not token.event or (fast is not None and token.origin == fast.bytes):
        raise history_lost(
            "the resume token is of the fast tier, which doesn't serve this change stream (any more): open a "
            "new one without it"
        )


def start_of(watch: Watch) -> int | None:
    """The time at which a stream begins, as BSON's 64 bits; None: now."""
    if watch.at is not None:
        return _number(watch.at)
    token = None if watch.token is None else parse_token(watch.token)
    return None if token is None else token.time


def ahead(watch: Watch, now: Timestamp) -> bool:
    """Whether the token is of a time that A, at ``now``, hasn't reached: then it isn't one of A's.

    A stream that resumed there would say nothing until then.
    """
    token = None if watch.token is None else parse_token(watch.token)
    return token is not None and token.time > _number(now)


def for_fast(command: Command, activated_at: Timestamp | None) -> Command:
    """The command for F: without Thermocline's own copies and evictions, on a member that knows of the
    activation."""
    first, *rest = command.documents("pipeline")
    command = _with_stages(command, (_unmarked(first), _NOT_RESERVED, *rest))
    concern = read_concern(command)
    if not concern.valid or concern.level not in (None, MAJORITY) or activated_at is None:
        return command  # the server refuses other levels
    after = activated_at if concern.after is None else max(concern.after, activated_at)
    fields: dict[str, Any] = {"level": MAJORITY, "afterClusterTime": after}
    return command.changed({"readConcern": element("readConcern", fields)})


def scan_of_updates(command: Command, token: str | None = None) -> Command:
    """The change stream of F that shows, of ``command``'s, which documents were updated.

    From ``command``'s own beginning, or behind ``token``.
    """
    stage, *_ = command.documents("pipeline")
    if token is not None:
        stage = bson.encode({"$changeStream": {"resumeAfter": {"_data": unmarked(token)}}})
    else:
        stage = _map(_unmarked(stage), (_STAGE,), _without_lookups)
    fields: dict[str, Any] = {
        "aggregate": command.collection,
        "cursor": {},
        "$db": command.database,
    }
    session = command.fields.get("lsid")
    own = build(fields, [] if session is None else [raw_element("lsid", *session)])
    return _with_stages(own, (stage, _NOT_RESERVED, _UPDATES, _KEYS))


def _without_lookups(options: bytes) -> bytes:
    return wrap(
        *(
            options[begin:end]
            for name, _, begin, _, end in elements(options)
            if not name.startswith(b"fullDocument")
        )
    )


def for_archive(command: Command, closed: Iterable[str]) -> Command:
    """The command for A: no times of A in the events, nothing of Thermocline's own databases; of one collection,
    nothing that the feeder wrote."""
    first, *rest = command.documents("pipeline")
    watch = watch_of(command)
    own: tuple[bytes, ...] = ()
    if watch is not None and watch.cluster:
        own = (bson.encode({"$match": {"ns.db": {"$nin": sorted(closed)}}}),)
    elif command.collection is not None:
        own = (_UNTIL_ACTIVE,)
    return _with_stages(command, (first, *own, *rest, _WITHOUT_TIME))


def met_the_feeder(reply: bytes) -> bool:
    """Whether a stream of A failed because it came to what the feeder wrote: it has slept through a switch."""
    if _FEEDERS.encode() not in reply:
        return False
    failed = decoded(reply)
    return failed.get("ok") != 1 and failed.get("code") == _NO_DOCUMENT


def _with_stages(command: Command, stages: Iterable[bytes]) -> Command:
    pipeline = raw_element("pipeline", ARRAY, array((DOCUMENT, stage) for stage in stages))
    sequences = {n: d for n, d in command.sequences.items() if n != "pipeline"}
    return command.changed({"pipeline": pipeline}, sequences)


def _unmarked(stage: bytes) -> bytes:
    """The ``$changeStream`` stage with the token as the server made it."""
    return _map(stage, (_STAGE,), lambda options: _map(options, _TOKENS, _plain))


def _map(document: bytes, names: tuple[bytes, ...], change: Callable[[bytes], bytes]) -> bytes:
    parts = []
    for name, kind, begin, start, end in elements(document):
        if name in names and kind == DOCUMENT:
            parts.append(b"\x03" + name + b"\0" + change(document[start:end]))
        else:
            parts.append(document[begin:end])
    return wrap(*parts)


def _plain(token: bytes) -> bytes:
    parts = []
    for name, kind, begin, start, end in elements(token):
        if name == b"_data" and kind == STRING:
            text = token[start + 4 : end - 1].decode("utf-8", "surrogateescape")
            plain = unmarked(text)
            parts.append(string(b"_data", plain) if plain != text else token[begin:end])
        else:
            parts.append(token[begin:end])
    return wrap(*parts)

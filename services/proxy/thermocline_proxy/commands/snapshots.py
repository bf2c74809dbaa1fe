"""Times of snapshot reads, as clients get them: times of the archive, marked.

Drivers' snapshot sessions send the ``atClusterTime`` of their first reply with every later read, to
whichever proxy. The mark says that it is the archive's time and no time of the fast tier. It takes the
upper bits of the increment, which counts what happened within a second.
"""

from typing import Final

from bson.timestamp import Timestamp

from thermocline_common.ids import DOCUMENT
from thermocline_proxy.commands.command import Command, element, raw_element
from thermocline_proxy.wire.header import UINT32
from thermocline_proxy.wire.scan import scan

_ARCHIVE: Final = 1 << 31
"""MongoDB's increments never reach this: its clock goes to the next second before."""
_PARTIAL: Final = 1 << 30
_COUNT: Final = _PARTIAL - 1
_AT: Final = b"atClusterTime"
_TIMESTAMP: Final = 0x11
READS: Final = frozenset(("find", "aggregate", "distinct"))
"""What MongoDB reads at a snapshot outside transactions."""


def is_archives(at: Timestamp) -> bool:
    """Whether it is a time of the archive, marked."""
    return bool(at.inc & _ARCHIVE)


def is_whole(at: Timestamp) -> bool:
    """Whether at this time of the archive, it held every write that the fast tier had acknowledged when
    the snapshot was begun; else the time suits untiered collections alone."""
    return is_archives(at) and not at.inc & _PARTIAL


def marked(at: Timestamp, *, whole: bool) -> Timestamp:
    """A time of the archive, marked (again)."""
    return Timestamp(at.time, at.inc & _COUNT | _ARCHIVE | (0 if whole else _PARTIAL))


def unmarked(at: Timestamp) -> Timestamp:
    """As the archive knows it; a time of the fast tier stays as it is."""
    return Timestamp(at.time, at.inc & _COUNT) if is_archives(at) else at


def mark_reply(body: bytes, *, whole: bool) -> bytes:
    """A reply of the archive with its ``atClusterTime`` marked, if it has one."""
    place = _place(body)
    if place < 0:
        return body
    at = marked(_read(body, place), whole=whole)
    return body[:place] + UINT32.pack(at.inc) + body[place + 4 :]


def reply_time(body: bytes) -> Timestamp | None:
    """The archive's own time of a reply's snapshot; None: it has none (its collection doesn't exist)."""
    place = _place(body)
    return None if place < 0 else unmarked(_read(body, place))


def for_archive(command: Command) -> Command:
    """The command, also one inside an ``explain``, with the archive's own time in place of a marked one."""
    if command.name == "explain":
        kind, raw = command.fields.get("explain", (0, b""))
        if kind != DOCUMENT or len(raw) < 8:
            return command
        changed = for_archive(Command(raw)).body
        if changed == raw:
            return command
        return command.changed({"explain": raw_element("explain", DOCUMENT, changed)})
    kind, _ = command.fields.get("readConcern", (0, b""))
    if kind != DOCUMENT:
        return command
    concern = command.get("readConcern")
    at = concern.get("atClusterTime")
    if not isinstance(at, Timestamp) or not is_archives(at):
        return command
    fields = {**concern, "atClusterTime": unmarked(at)}
    return command.changed({"readConcern": element("readConcern", fields)})


def _place(body: bytes) -> int:
    """Where the increment of the ``atClusterTime`` is: of the cursor, or of ``distinct``; -1: nowhere."""
    spans = scan(body, 0)
    found = spans.get(_AT)
    if found is None:
        cursor = spans.get(b"cursor")
        if cursor is None or cursor[0] != DOCUMENT:
            return -1
        found = scan(body, cursor[2]).get(_AT)
    return found[2] if found is not None and found[0] == _TIMESTAMP else -1


def _read(body: bytes, place: int) -> Timestamp:
    return Timestamp(UINT32.unpack_from(body, place + 4)[0], UINT32.unpack_from(body, place)[0])

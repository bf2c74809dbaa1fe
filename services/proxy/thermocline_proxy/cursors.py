"""Which server a cursor is open on, so that getMore and killCursors find it."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from thermocline_common.coverage import Tier
from thermocline_proxy.wire.header import INT32, WireError
from thermocline_proxy.wire.scan import scan

MAX_CURSORS = 200_000
CURSOR_FIRST = b"\x03cursor\0"
_BATCHES = (b"\x04firstBatch\0", b"\x04nextBatch\0")
_ID = b"\x12id\0"
_ZERO = bytes(8)
_CLOSED = _ID + _ZERO


@dataclass(frozen=True, slots=True)
class Home:
    """Where a cursor lives. ``member``: ``host:port``."""

    tier: Tier
    member: str


class Cursors:
    """Cursor id -> home. The oldest entries go when there are too many; such a cursor is looked for.

    Whoever holds a cursor is a mapping with its id, which loses it when the cursor is forgotten.
    """

    def __init__(self) -> None:
        self._homes: dict[int, Home] = {}
        self._holders: dict[int, MutableMapping[int, Any]] = {}
        self.streams: set[int] = set()
        """Those that are change streams."""

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, cursor_id: int) -> Home | None:
        """The home; None for cursors that another proxy opened."""
        return self._homes.get(cursor_id)

    def remember(self, cursor_id: int, tier: Tier, member: str) -> None:
        """A reply told of an open cursor."""
        homes = self._homes
        if cursor_id not in homes and len(homes) >= MAX_CURSORS:
            self.forget(next(iter(homes)))
        homes[cursor_id] = Home(tier, member)

    def forget(self, cursor_id: int) -> None:
        """It is exhausted, killed or unknown to its server."""
        self._homes.pop(cursor_id, None)
        self.streams.discard(cursor_id)
        holder = self._holders.pop(cursor_id, None)
        if holder is not None:
            holder.pop(cursor_id, None)

    def give(self, cursor_id: int, holder: MutableMapping[int, Any]) -> None:
        """It belongs to the holder from now on."""
        before = self._holders.get(cursor_id)
        if before is not None and before is not holder:
            before.pop(cursor_id, None)
        self._holders[cursor_id] = holder

    def holder(self, cursor_id: int) -> MutableMapping[int, Any] | None:
        """Who holds it."""
        return self._holders.get(cursor_id)


def reply_cursor(frame: bytes, start: int = 25) -> int:
    """The id of the cursor that stays open after this reply; 0 where there is none.

    ``start``: the offset of the reply document's first element. mongod puts the cursor first, the
    batch first in it and the id behind that.
    """
    if frame[start : start + 8] != CURSOR_FIRST:
        return 0
    if frame[start + 12 : start + 24] == _BATCHES[0]:
        after = start + 24 + INT32.unpack_from(frame, start + 24)[0]
        if frame[after : after + 12] == _CLOSED:
            return 0
    inner = start + 12
    end = start + 8 + INT32.unpack_from(frame, start + 8)[0]
    if frame[inner : inner + 12] == _BATCHES[0]:
        after = inner + 12
    elif frame[inner : inner + 11] == _BATCHES[1]:
        after = inner + 11
    else:
        return _search(frame, inner - 4, end)
    after += INT32.unpack_from(frame, after)[0]
    if frame[after : after + 4] == _ID:
        raw = frame[after + 4 : after + 12]
        return 0 if raw == _ZERO else int.from_bytes(raw, "little", signed=True)
    return _search(frame, inner - 4, end)


def describe(frame: bytes, start: int = 25) -> tuple[str, bool]:
    """The ``ns`` of the cursor in a reply (empty where there is none), and whether it is a change stream."""
    if frame[start : start + 8] != CURSOR_FIRST:
        return "", False
    try:
        fields = scan(frame, start + 8)
    except (WireError, IndexError):
        return "", False
    found = fields.get(b"ns")
    namespace = (
        "" if found is None else frame[found[2] + 4 : found[3] - 1].decode("utf-8", "replace")
    )
    return namespace, b"postBatchResumeToken" in fields


def _search(frame: bytes, start: int, end: int) -> int:
    try:
        found = scan(frame[start:end], 0).get(b"id")
    except (WireError, IndexError):
        return 0
    if found is None or found[0] != 0x12:
        return 0
    return int.from_bytes(frame[start + found[2] : start + found[3]], "little", signed=True)


def first_batch_is_empty(frame: bytes) -> bool:
    """Whether a successful reply to a find holds no document (False where it can't be told)."""
    return (
        frame[25:33] == CURSOR_FIRST
        and frame[37:49] == _BATCHES[0]
        and frame[49:53] == b"\x05\0\0\0"
    )

"""Resume tokens of change streams, read as far as telling where they come from needs.

A token is a KeyString in hexadecimal digits: the event's cluster time, some numbers, and for an event
the collection's UUID. One that stands for no event (a *high-water mark*: every reply ends in a
token, whether something happened or not) has no UUID, so the proxy appends one to those it
hands out for the fast tier. mongod reads a token up to its end and ignores what follows.
"""

from dataclasses import dataclass
from typing import Final

_TIMESTAMP: Final = 0x82
_ZERO: Final = 0x29
_INTEGERS: Final = range(0x2B, 0x33)
"""Positive integers of 1 to 8 bytes."""
_BOOLEANS: Final = (0x6E, 0x6F)
_UUID: Final = bytes((0x5A, 16, 4))
_END: Final = 0x04
_SIZE: Final = 16
NO_COLLECTION: Final = bytes(_SIZE)
"""The mark of a stream on a collection that doesn't exist yet."""
_LONGEST: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Token:
    """``time``: the cluster time as BSON's 64 bits. ``origin``: the collection's UUID, or the mark; None:
    neither. ``event``: it stands for an event, and not only for a time."""

    time: int
    origin: bytes | None
    event: bool


def parse_token(data: str) -> Token | None:
    """The token; None where it isn't laid out like one of MongoDB 6 (the server judges it then)."""
    raw = _raw(data)
    if raw is None:
        return None
    end = _head(raw)
    if end is None:
        return None
    time = int.from_bytes(raw[1:9], "big")
    if raw[end] != _END:
        start = end + len(_UUID)
        known = raw[end:start] == _UUID and len(raw) >= start + _SIZE
        return Token(time, raw[start : start + _SIZE] if known else None, event=True)
    mark = raw[end + 1 :]
    return Token(time, mark if len(mark) == _SIZE else None, event=False)


def marked(data: str, origin: bytes) -> str:
    """A high-water mark with ``origin`` appended; every other token as it is."""
    token = parse_token(data)
    if token is None or token.event or token.origin is not None:
        return data
    return data + origin.hex().upper()


def unmarked(data: str) -> str:
    """What the server made of it."""
    token = parse_token(data)
    if token is None or token.event or token.origin is None:
        return data
    return data[: -2 * _SIZE]


def _raw(data: str) -> bytes | None:
    if len(data) > _LONGEST:
        return None
    try:
        raw = bytes.fromhex(data)
    except ValueError:
        return None
    # fromhex takes spaces, which the server doesn't.
    return raw if 2 * len(raw) == len(data) else None


def _head(raw: bytes) -> int | None:
    """Where the part behind version, type, position in the transaction and invalidation begins."""
    if len(raw) < 10 or raw[0] != _TIMESTAMP:
        return None
    at = 9
    for _ in range(3):
        if at >= len(raw):
            return None
        kind = raw[at]
        if kind in _INTEGERS:
            at += 1 + kind - 0x2A
        elif kind == _ZERO:
            at += 1
        else:
            return None
    if at + 1 >= len(raw) or raw[at] not in _BOOLEANS:
        return None
    return at + 1

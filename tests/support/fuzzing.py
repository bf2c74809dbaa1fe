"""Seeded garbage for a wire protocol: whole messages, bent in every way that a header, a section, a
length, a compressor or a document offers.

``python -m support.fuzzing --frames 1000000`` sends it to a proxy, and fails where that stops answering, its
memory grows, or it logs an error of its own.
"""

import argparse
import contextlib
import random
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bson.int64 import Int64

from support.mongod import ReplicaSet
from support.services import Thermocline
from support.wire import Wire, frame, message, packed, query, sequence, signed

_COMMANDS: Final[Sequence[dict[str, Any]]] = (
    {"ping": 1, "$db": "admin"},
    {"hello": 1, "$db": "admin", "compression": ["zlib"]},
    {"find": "fuzz", "filter": {"_id": 1}, "$db": "t"},
    {"find": "fuzz", "batchSize": 1, "$db": "t"},
    {"insert": "fuzz", "documents": [{"_id": 1, "x": "y" * 50}], "$db": "t"},
    {"update": "fuzz", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], "$db": "t"},
    {"aggregate": "fuzz", "pipeline": [{"$match": {"x": 1}}], "cursor": {}, "$db": "t"},
    {"getMore": Int64(77), "collection": "fuzz", "$db": "t"},
    {"killCursors": "fuzz", "cursors": [Int64(77)], "$db": "t"},
    {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=a,r=b", "$db": "admin"},
    {"explain": {"find": "fuzz"}, "$db": "t"},
    {"bogus": 1, "$db": "t"},
)
_INTERESTING: Final = (0, 1, 4, 5, 15, 16, 20, 2**31 - 1, 2**31, 2**32 - 1, 48_000_000, 48_000_001)
_PARTS: Final = 20
_FLAGS: Final = (0, 0, 0, 0, 1 << 16, 1 << 20, 2, 1, 4)


def frames(seed: int) -> Iterator[bytes]:
    """Messages without end, the same for the same seed."""
    chance = random.Random(seed)
    while True:
        yield _bent(_whole(chance), chance)


def _whole(chance: random.Random) -> bytes:
    command = dict(chance.choice(_COMMANDS))
    kind = chance.randrange(10)
    if kind == 0:
        return query(chance.choice(("admin.$cmd", "t.fuzz")), command)
    if kind == 1:
        return frame(chance.randbytes(chance.randrange(60)), chance.choice((2013, 2012, 2004, 1)))
    more = b""
    if kind == 2:
        more = sequence("documents", [{"_id": n} for n in range(chance.randrange(4))])
    made = message(command, flags=chance.choice(_FLAGS), behind=more)
    if kind == 3:
        return signed(made)
    if kind in (4, 5, 6):
        size = chance.choice((None, None, None, 0, 10, 5_000, -1, 48_000_001))
        return packed(made, chance.choice((1, 2, 3, 3, 0, 7)), size)
    return made


def _bent(made: bytes, chance: random.Random) -> bytes:
    kind = chance.randrange(8)
    if kind < 2:
        return made
    data = bytearray(made)
    at = chance.randrange(len(data))
    if kind == 2:
        data[at] = chance.randrange(256)
    elif kind == 3:
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(16, len(data)) if len(data) > 16 else 0] ^= 1 << chance.randrange(
                8
            )
    elif kind == 4 and at + 4 <= len(data):
        data[at : at + 4] = struct.pack("<I", chance.choice(_INTERESTING))
    elif kind == 5:
        data = data[:at] + chance.randbytes(chance.randrange(12)) + data[at:]
    elif kind == 6:
        del data[at : at + chance.randrange(1, 12)]
    if kind >= 5 and len(data) >= 4:
        # The stream stays in step: only the contents are wrong.
        data[:4] = struct.pack("<i", len(data))
    return bytes(data)


def memory(pid: int) -> int:
    """Resident memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def attack(port: int, seed: int, count: int, *, a_connection: int = 8) -> None:
    """Send ``count`` messages, some to a connection. Raises ``AssertionError`` where nobody answers then."""
    source = frames(seed)
    sent = 0
    while sent < count:
        with Wire(port, 30) as wire, contextlib.suppress(OSError):
            for _ in range(min(a_connection, count - sent)):
                sent += 1
                wire.send(next(source))
            wire.socket.shutdown(socket.SHUT_WR)
            while wire.socket.recv(1 << 16):
                pass
    with Wire(port, 30) as wire:
        assert wire.ask({"ping": 1, "$db": "admin"})["ok"] == 1


def besiege(proxied: Thermocline, count: int, seed: int, growth: int) -> str | None:
    """Send ``count`` messages; what went wrong, or None. ``growth``: KiB that are allowed."""
    service = proxied.services["proxy"]
    start = None
    for number in range(_PARTS):
        attack(proxied.port, seed + number, max(1, count // _PARTS))
        now = memory(service.process.pid)
        # Until here, caches and the allocator's own reserve are filled.
        start = now if number <= _PARTS // 4 else start
        print(f"{(number + 1) * 100 // _PARTS} %: {now} KiB", flush=True)
        if start is not None and now > start + growth:
            return f"memory grew by {now - start} KiB"
        for line in service.process.log.read_text().splitlines():
            if '"level": "error"' in line:
                return f"the proxy logged an error in part {number}: ...{line[-3_000:]}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth", type=int, default=20_000, help="KiB that are allowed")
    options = parser.parse_args(arguments)
    with ReplicaSet("fast") as fast, ReplicaSet("archive") as archive:
        proxied = Thermocline(fast, archive, [], mode="Passthrough")
        try:
            proxied.start(only=("proxy",))
            problem = besiege(proxied, options.frames, options.seed, options.growth)
        finally:
            proxied.stop()
    print(problem or "flat")
    return int(problem is not None)


if __name__ == "__main__":
    sys.exit(main())

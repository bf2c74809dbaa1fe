"""Whose cursors and transactions are whose, and when an application has vanished."""

from dataclasses import dataclass, field
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64

from support.wire import message
from thermocline_common.coverage import Tier
from thermocline_proxy.cursors import MAX_CURSORS, Cursors
from thermocline_proxy.owners import MOST_SESSIONS, Owner, Owners, session_of
from thermocline_proxy.ports import Identity

LSID = {"id": Binary(bytes(range(16)), 4)}
SESSION = bson.encode(LSID)[8:-1]


@dataclass
class Connection:
    owner: Owner = field(default_factory=lambda: Owner(None))
    identity: Identity | None = None


def reply(cursor_id: int) -> bytes:
    cursor = {"firstBatch": [], "id": Int64(cursor_id), "ns": "d.c"}
    return message({"cursor": cursor, "ok": 1.0})


class World:
    def __init__(self) -> None:
        self.cursors = Cursors()
        self.owners = Owners(self.cursors)

    def connect(self, metadata: bytes, *, alone: bool = False) -> Connection:
        owner = self.owners.join(("h", b""))
        return Connection(self.owners.move(owner, "h", metadata, alone=alone))

    def open(self, connection: Connection, cursor_id: int) -> None:
        self.cursors.remember(cursor_id, Tier.FAST, "m:1")
        self.owners.opened(connection, cursor_id, reply(cursor_id))

    def close(self, connection: Connection, frame: bytes = b"") -> None:
        self.owners.leave(connection.owner, connection.identity, frame)


def test_an_application_is_there_as_long_as_one_of_its_connections() -> None:
    world = World()
    one, two, other = world.connect(b"a"), world.connect(b"a"), world.connect(b"b")
    assert one.owner is two.owner is not other.owner
    world.open(one, 7)
    assert one.owner.cursors[7].namespace == "d.c"
    world.close(one)
    assert not world.owners.vanished
    world.close(two)
    assert world.owners.vanished == [one.owner]
    world.close(other)
    assert world.owners.vanished == [one.owner], "it left nothing"
    assert len(world.owners) == 0


def test_a_load_balanced_connection_is_alone() -> None:
    world = World()
    one, two = (world.connect(b"a", alone=True) for _ in range(2))
    world.open(one, 7)
    world.close(one)
    assert world.owners.vanished == [one.owner]
    assert one.owner.alone
    assert not two.owner.cursors


def test_what_ended_is_no_leftover() -> None:
    world = World()
    one = world.connect(b"a")
    world.open(one, 7)
    world.cursors.forget(7)
    world.close(one)
    assert not world.owners.vanished


def test_a_cursor_goes_to_whom_reads_on() -> None:
    world = World()
    one, other = world.connect(b"a"), world.connect(b"b")
    world.open(one, 7)
    world.open(other, 7)
    assert not one.owner.cursors
    world.close(one)
    assert not world.owners.vanished
    world.close(other)
    assert world.owners.vanished == [other.owner]


def test_an_application_that_came_back_has_what_it_left() -> None:
    world = World()
    one = world.connect(b"a")
    for cursor_id in (7, 8):
        world.open(one, cursor_id)
    one.owner.unanswered[None, b"s"] = None
    world.close(one)
    gone = world.owners.vanished.pop()
    assert not world.owners.back(gone)
    again, other = world.connect(b"a"), world.connect(b"b")
    world.open(other, 8)
    assert world.owners.back(gone)
    assert again.owner is not gone
    assert list(again.owner.cursors) == [7]
    assert again.owner.unanswered == {(None, b"s"): None}
    world.close(again)
    assert world.owners.vanished == [again.owner]


def test_the_oldest_cursors_are_forgotten_by_their_owners_too() -> None:
    world = World()
    one = world.connect(b"a")
    for cursor_id in range(1, MAX_CURSORS + 3):
        world.open(one, cursor_id)
    assert len(one.owner.cursors) == len(world.cursors) == MAX_CURSORS


def test_an_application_that_lives_for_years_is_no_burden() -> None:
    world = World()
    one, monitor = world.connect(b"a"), world.connect(b"a")
    for number in range(MOST_SESSIONS + 50):
        session = {"id": Binary(number.to_bytes(16, "big"), 4)}
        world.close(one, message({"find": "c", "lsid": session, "$db": "d"}))
        one = world.connect(b"a")
    assert len(monitor.owner.unanswered) == MOST_SESSIONS


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ({"find": "c", "lsid": LSID, "$db": "d"}, True),
        ({"aggregate": "c", "pipeline": [], "lsid": LSID, "$db": "d"}, True),
        ({"find": "c", "$db": "d"}, False),
        ({"insert": "c", "lsid": LSID, "$db": "d"}, False),
        ({"getMore": Int64(1), "lsid": LSID, "$db": "d"}, False),
        ({"find": "c", "lsid": 5, "$db": "d"}, False),
        ({"find": "c", "lsid": {"id": 5}, "$db": "d"}, False),
        ({"bogus": 1, "lsid": LSID, "$db": "d"}, False),
    ],
)
def test_whose_answer_may_tell_of_a_cursor(command: dict[str, Any], found: bool) -> None:
    assert session_of(message(command)) == (SESSION if found else b"")
    assert session_of(message(command)[:30]) == b""
    assert session_of(b"") == b""
    world = World()
    one = world.connect(b"a")
    world.close(one, message(command))
    assert bool(world.owners.vanished) is found

"""Whose turn it is for a connection: its own user's, until another user's commands have waited for long."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from thermocline_proxy.slots import PATIENCE_SECONDS, Slots


@dataclass(frozen=True)
class Waiter:
    since: float
    gone: bool = False


@dataclass(frozen=True)
class Idle:
    idle_since: float


@dataclass(eq=False)
class Pool:
    waiting: deque[Any] = field(default_factory=deque)
    idle: list[Any] = field(default_factory=list)


LONG = PATIENCE_SECONDS * 2


@pytest.mark.parametrize(
    ("own", "other", "changed_at", "expected"),
    [
        ([], [], -9.0, None),
        ([1.0], [], -9.0, "own"),
        ([], [1.0], -9.0, "other"),
        ([], [1.0], 1.0, "other"),  # nothing may lie idle while somebody waits
        ([1.0], [1.01], -9.0, "own"),
        ([1.04], [1.03], -9.0, "own"),  # not long enough
        ([1.02], [1.06 - LONG], -9.0, "other"),
        ([1.02], [1.06 - LONG], 1.05, "own"),  # a change was just now
        ([1.06 - LONG], [1.02], -9.0, "own"),
    ],
)
def test_whose_turn_it_is(
    own: list[float], other: list[float], changed_at: float, expected: str | None
) -> None:
    slots: Slots[Pool] = Slots(2)
    pools = {"own": Pool(deque(map(Waiter, own))), "other": Pool(deque(map(Waiter, other)))}
    slots.queued = {pool: None for pool in pools.values() if pool.waiting}
    slots.changed_at = changed_at
    turn = slots.next(pools["own"], 1.06)
    assert turn is (None if expected is None else pools[expected])


def test_two_users_who_wait_forever_get_connections_alike() -> None:
    """Each release takes a millisecond; both users always have commands that wait."""
    slots: Slots[Pool] = Slots(10)
    one, two = Pool(), Pool()
    has = {id(one): 10, id(two): 0}
    for pool in (one, two):
        pool.waiting = deque(Waiter(0.0) for _ in range(50))
        slots.queued[pool] = None
    changes, now = 0, 0.0
    for turn in range(5_000):
        now += 0.001
        holder = one if turn % 10 < has[id(one)] else two
        chosen = slots.next(holder, now)
        assert chosen is not None
        chosen.waiting.popleft()
        chosen.waiting.append(Waiter(now))
        if chosen is not holder:
            changes += 1
            has[id(holder)] -= 1
            has[id(chosen)] += 1
    assert 2 <= has[id(one)] <= 8, has
    assert changes <= 5.0 / PATIENCE_SECONDS + 1, "a log-in at most so often"


def test_those_who_gave_up_get_no_turn() -> None:
    slots: Slots[Pool] = Slots(1)
    pool = Pool(deque([Waiter(1.0, gone=True), Waiter(2.0), Waiter(3.0, gone=True)]))
    left = Pool(deque([Waiter(0.0, gone=True)]))
    slots.queued = {pool: None, left: None}
    assert slots.oldest() is pool
    assert slots.first(pool).since == 2.0
    assert slots.oldest() is None
    assert not slots.queued


def test_a_slot_is_not_taken_past_those_who_wait() -> None:
    slots: Slots[Pool] = Slots(1)
    assert slots.take()
    assert not slots.take()
    slots.used = 0
    slots.queued[Pool(deque([Waiter(1.0)]))] = None
    assert not slots.take()


def test_the_connection_that_was_idle_longest_is_given_up() -> None:
    slots: Slots[Pool] = Slots(3)
    own = Pool(idle=[Idle(0.0)])
    one, two, busy = Pool(idle=[Idle(3.0), Idle(9.0)]), Pool(idle=[Idle(2.0)]), Pool()
    slots.pools |= {own, one, two, busy}
    assert slots.idle_elsewhere(own) is two
    two.idle.clear()
    assert slots.idle_elsewhere(own) is one
    one.idle.clear()
    assert slots.idle_elsewhere(own) is None

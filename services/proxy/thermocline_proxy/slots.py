"""Whose turn it is for a connection to a member, of which this process may have only so many.

Users can't share connections (each is logged in as one user). So a connection that becomes free goes on
to its own user's next command, unless another user's has waited for long: then it is closed, and the
other user may open one. While anybody waits for a member, no connection to it lies idle.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

PATIENCE_SECONDS: Final = 0.05
"""How long a user's commands wait before a connection of another user, who waits too, is closed for
them; no more often than this either, because a log-in costs more than most commands."""


class Waiter(Protocol):
    """A command that waits for a connection."""

    @property
    def since(self) -> float:
        """Monotonic seconds."""
        ...

    @property
    def gone(self) -> bool:
        """It was given up; it leaves the queue by itself, a moment later."""
        ...


class Idle(Protocol):
    """A connection that nobody uses."""

    @property
    def idle_since(self) -> float:
        """Monotonic seconds."""
        ...


class Queue(Protocol):
    """The connections of one user to the member, and who waits for one, oldest first."""

    @property
    def waiting(self) -> deque[Waiter]: ...

    @property
    def idle(self) -> Sequence[Idle]: ...


P = TypeVar("P", bound=Queue)


class Slots(Generic[P]):
    """The connections to one member. ``used``: open, or being opened; never above ``most``.

    ``pools``: of every user who has, or waits for, a connection; ``queued``: those in which somebody waits.
    """

    __slots__ = ("changed_at", "most", "pools", "queued", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.pools: set[P] = set()
        self.queued: dict[P, None] = {}
        self.changed_at = float("-inf")

    def take(self) -> bool:
        """Take a slot where one is free, and nobody waits for it."""
        if self.used >= self.most or self.queued:
            return False
        self.used += 1
        return True

    def oldest(self) -> P | None:
        """The pool whose first command waits longest; None: nobody waits."""
        for pool in list(self.queued):
            while pool.waiting and pool.waiting[0].gone:
                pool.waiting.popleft()
            if not pool.waiting:
                del self.queued[pool]
        return min(self.queued, key=lambda pool: pool.waiting[0].since, default=None)

    def next(self, pool: P, now: float) -> P | None:
        """The pool whose first command gets the connection that ``pool`` has free; None: nobody waits."""
        first = self.oldest()
        if first is None or first is pool or pool not in self.queued:
            return first
        patient = now - first.waiting[0].since < PATIENCE_SECONDS
        if patient or now - self.changed_at < PATIENCE_SECONDS:
            return pool
        self.changed_at = now
        return first

    def first(self, pool: P) -> Any:
        """Take the first of those who wait in ``pool`` out of the queue."""
        waiter = pool.waiting.popleft()
        if not pool.waiting:
            del self.queued[pool]
        return waiter

    def leave(self, pool: P, waiter: Waiter) -> None:
        """One that waited gives up."""
        if waiter in pool.waiting:
            pool.waiting.remove(waiter)
            if not pool.waiting:
                del self.queued[pool]

    def idle_elsewhere(self, pool: P) -> P | None:
        """The pool of another user with the connection that was idle longest; None: there is none."""
        others = [other for other in self.pools if other is not pool and other.idle]
        return min(others, key=lambda other: other.idle[0].idle_since, default=None)

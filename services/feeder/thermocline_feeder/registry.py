"""What is replayed now: the namespaces in the stream, and the pairs of collections they mean."""

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from bson.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class Pair:
    """A namespace's collection on either tier; None: it has none yet.

    ``since``: a time of A after which every write there that isn't the feeder's is foreign.
    """

    fast: uuid.UUID | None
    archive: uuid.UUID | None
    since: Timestamp | None = None


class Registry:
    """``watched``: every namespace in the stream's filter, whatever its state. ``pairs``: those whose
    changes are replayed. A namespace is watched before it pauses and has its pair before it is
    published, so no write can happen that the stream, or replay, would pass over."""

    def __init__(self) -> None:
        self.watched: set[str] = set()
        self.pairs: dict[str, Pair] = {}
        self.opened: frozenset[str] = frozenset()
        self.loaded = False
        self.changed = asyncio.Event()
        self._open = asyncio.Condition()

    def reset(self, watched: Iterable[str], pairs: dict[str, Pair]) -> None:
        """Start over from what the tiers hold."""
        self.watched = set(watched)
        self.pairs = dict(pairs)
        self.opened = frozenset()
        self.loaded = True

    def clear(self) -> None:
        """Nothing is replayed until it is read, or activated, again."""
        self.watched.clear()
        self.pairs.clear()
        self.opened = frozenset()
        self.loaded = False

    async def watch(self, namespace: str) -> None:
        """Put a namespace in the stream; returns when a stream with it is open."""
        if namespace not in self.watched:
            self.watched.add(namespace)
            self.changed.set()
        async with self._open:
            await self._open.wait_for(lambda: namespace in self.opened)

    def forget(self, namespace: str) -> None:
        """Take it out; the open stream may go on with it."""
        self.watched.discard(namespace)
        self.pairs.pop(namespace, None)

    async def stream_opened(self, namespaces: frozenset[str]) -> None:
        """The stream now has these namespaces."""
        async with self._open:
            self.opened = namespaces
            self._open.notify_all()

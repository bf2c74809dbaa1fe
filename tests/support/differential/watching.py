"""Change streams of a collection on both servers, opened at the same point and compared as they go."""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo.change_stream import CollectionChangeStream
from pymongo.errors import OperationFailure

from support.differential.answers import TRANSIENT
from support.differential.layout import CLOSED_PARTITION, SHOP, Collection
from support.differential.sides import RAW, Client, Tally

WAIT_SECONDS: Final = 60.0
HISTORY_LOST: Final = 286
_PER_SERVER = frozenset({"_id", "clusterTime", "wallTime", "lsid", "txnNumber", "collectionUUID"})
OPTIONS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"full_document": "updateLookup"},
    {"full_document_before_change": "whenAvailable"},
)
Event = dict[str, Any]
Stream = CollectionChangeStream[RawBSONDocument]


class Watch:
    """One collection's change streams, as far as one partition's documents go.

    ``state_of``: another number whenever a switch of the namespace began or ended, and whether one is under
    way: streams end then by design.
    """

    def __init__(
        self,
        collection: Collection,
        partition: int,
        ids: list[Any],
        clients: tuple[Client, Client],
        state_of: Callable[[str], tuple[int, bool]],
        tally: Tally,
        chance: random.Random,
    ) -> None:
        self.collection = collection
        self.partition = partition
        self._fences = CLOSED_PARTITION + partition
        self._clients = clients
        self._state_of = state_of
        self._tally = tally
        self._chance = chance
        self._options = chance.choice(OPTIONS)
        mine: list[dict[str, Any]] = [
            {"documentKey._id": {"$in": ids}}, {"documentKey._id.fence": self._fences},
        ]  # fmt: skip
        self._pipeline = [{"$match": {"documentKey": {"$exists": True}, "$or": mine}}]
        self._number = 0
        self._state = (0, False)
        self._streams: tuple[Stream, Stream] | None = None
        self.in_order = True
        self.open()

    def open(self) -> None:
        """New streams, from now on: no step may run meanwhile."""
        self.close()
        self._state = self._state_of(self.collection.namespace)
        self._streams = (self._watch(0), self._watch(1))

    def close(self) -> None:
        """Close both."""
        for stream in self._streams or ():
            stream.close()
        self._streams = None

    def _watch(self, side: int, **options: Any) -> Stream:
        shop: Any = self._clients[side][SHOP]
        source = shop.get_collection(self.collection.name, codec_options=RAW)
        settings = {**self._options, **options}
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                made: Stream = source.watch(self._pipeline, max_await_time_ms=300, **settings)
            except OperationFailure as error:
                # Drivers try an aggregation twice; a starved machine takes longer.
                if error.code not in TRANSIENT or time.monotonic() > deadline:
                    raise
            else:
                return made

    def differ(self) -> str | None:
        """Read both to this point and compare. None: equal, or ended by a switch."""
        assert self._streams is not None
        self._number += 1
        fence = {"fence": self._fences, "n": self._number}
        document = {"_id": fence, "p": self._fences, "sku": f"{self._fences}-{self._number}"}
        for client in self._clients:
            client[SHOP][self.collection.name].insert_one(dict(document))
        expected = self._read(0, fence)
        try:
            answered = self._read(1, fence)
        except OperationFailure as error:
            return self._ended(error)
        found = compare_events(expected, answered, in_order=self.in_order)
        self._tally.events["events compared"] += len(expected)
        self.in_order = True
        if found is None and self._chance.random() < 0.2:
            try:
                self._resume()
            except OperationFailure as error:
                return self._ended(error)
        return found

    def _ended(self, error: OperationFailure) -> str | None:
        """Begin anew, where a switch has ended the stream. None: that is why."""
        labels = (error.details or {}).get("errorLabels", ())
        count, under_way = self._state_of(self.collection.namespace)
        switched = under_way or (count, under_way) != self._state
        if error.code != HISTORY_LOST or "NonResumableChangeStreamError" not in labels:
            return f"the stream ended with {error.code} {labels}: {error}"
        if not switched:
            return "the stream ended with 286, and nothing was switched"
        self._tally.events["streams ended by a switch"] += 1
        self.open()
        self.in_order = True
        return None

    def _read(self, side: int, fence: Mapping[str, Any]) -> list[Event]:
        assert self._streams is not None
        events: list[Event] = []
        deadline = time.monotonic() + WAIT_SECONDS
        last = encode({"_id": dict(fence)})
        while time.monotonic() < deadline:
            change = self._streams[side].try_next()
            if change is None:
                continue
            if change["documentKey"].raw == last:
                return events
            events.append(
                {
                    name: value.raw if isinstance(value, RawBSONDocument) else value
                    for name, value in change.items()
                    if name not in _PER_SERVER
                }
            )
        name = ("plain", "proxied")[side]
        raise AssertionError(
            f"{name}: no event of {fence} on {self.collection.namespace}; events {events}"
        )

    def _resume(self) -> None:
        assert self._streams is not None
        tokens = [stream.resume_token for stream in self._streams]
        self.close()
        how = self._chance.choice(["resume_after", "start_after"])
        self._streams = (self._watch(0, **{how: tokens[0]}), self._watch(1, **{how: tokens[1]}))
        self._tally.events["streams resumed"] += 1


def compare_events(left: list[Event], right: list[Event], *, in_order: bool) -> str | None:
    """None if equal. Not ``in_order``: only the events of each document are in order, because a statement
    may take its documents in any."""
    if not in_order:
        kinds = [_by_document(events) for events in (left, right)]
        if kinds[0] == kinds[1]:
            return None
    elif left == right:
        return None
    missing, surplus = _count(left) - _count(right), _count(right) - _count(left)
    if missing or surplus:
        return f"events: only plain {list(missing)}, only proxied {list(surplus)}"
    return f"the order of events: plain {left}, proxied {right}"


def _by_document(events: list[Event]) -> dict[bytes, list[Event]]:
    made: dict[bytes, list[Event]] = {}
    for event in events:
        made.setdefault(event["documentKey"], []).append(event)
    return made


def _count(events: list[Event]) -> Counter[str]:
    return Counter(repr(sorted(event.items())) for event in events)

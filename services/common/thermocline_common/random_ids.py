"""Ids chosen at random between a collection's lowest and highest, for reads of a few documents anywhere."""

import random
from typing import Any, Final, TypeAlias

from thermocline_common.clock import Clock, monotonic
from thermocline_common.id_range import between
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import Client, run_raw

LONGEST_READ_MS: Final = 5_000
ENDS_SECONDS: Final = 60.0

KINDS: Final = ("number", "objectId", "binData", "string")
"""Those of which one between two others can be made. In a collection of several kinds each has ends of its own:
between a number and a string there is nothing to choose."""

Ends: TypeAlias = tuple[DocId, DocId]


class RandomIds:
    """The ends are remembered for a minute."""

    def __init__(self, client: Client, clock: Clock = monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, tuple[float, list[Ends]]] = {}

    async def choose(self, namespace: str) -> list[DocId]:
        """One of each kind of ``_id`` that the collection has, to look for the next from there; none where it is
        empty. Raises PyMongo's errors."""
        return [between(*ends, random.random()) for ends in await self._ends(namespace)]  # noqa: S311

    async def _ends(self, namespace: str) -> list[Ends]:
        """The lowest and the highest ``_id`` of each kind, as they were lately."""
        known = self._known.get(namespace)
        if known is None or self._clock() - known[0] > ENDS_SECONDS:
            kinds = [await self._ends_of(namespace, {"_id": {"$type": kind}}) for kind in KINDS]
            found = [ends for ends in kinds if ends is not None]
            if not found:
                whole = await self._ends_of(namespace, {})
                found = [] if whole is None else [whole]
            known = self._known[namespace] = (self._clock(), found)
        return known[1]

    async def _ends_of(self, namespace: str, query: dict[str, Any]) -> Ends | None:
        database, collection = namespace.split(".", 1)
        ends: list[DocId] = []
        for order in (1, -1):
            find = {
                "find": collection,
                "filter": query,
                "projection": {"_id": 1},
                "sort": {"_id": order},
                "limit": 1,
                "singleBatch": True,
                "maxTimeMS": LONGEST_READ_MS,
            }
            reply = await run_raw(self._client, database, find)
            found = reply["cursor"]["firstBatch"]
            ends += [DocId.of_document(bytes(document.raw)) for document in found]
        return (ends[0], ends[1]) if len(ends) == 2 else None

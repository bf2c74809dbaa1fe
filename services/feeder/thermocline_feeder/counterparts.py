"""A collection of F that isn't the known one: an insert created it, or somebody dropped the old one."""

import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary

from thermocline_common.coverage_store import compare_and_set, read_one
from thermocline_common.indexes import list_indexes
from thermocline_feeder import catalog
from thermocline_feeder.registry import Pair
from thermocline_feeder.switch import Overtaken, Switch

log = logging.getLogger(__name__)

Resynchronise = Callable[[], Awaitable[object]]
"""Brings A up to F's documents and records."""


@dataclass(slots=True)
class Counterparts:
    """Sees that A has the counterpart, and that the pair is published."""

    switch: Switch

    async def resolve(self, namespace: str) -> Pair | None:
        """F's collection isn't the known one: find out, and see that A has its counterpart."""
        pair = self.switch.registry.pairs.get(namespace)
        if pair is None:
            return None
        found = await catalog.find_collection(self.switch.tiers.fast, namespace)
        present = None if found is None else found.uuid
        if present == pair.fast:
            return pair
        if pair.fast is not None:
            self.switch.problems.set(
                f"dropped {namespace}",
                f"{namespace} was dropped, or replaced, in the fast tier from outside; the archive is untouched, "
                "but writes that had not been replayed are lost. Drop collections through the proxy only",
            )
        archive_uuid = pair.archive
        if present is not None and archive_uuid is None:
            assert found is not None
            archive_uuid = await self._counterpart(namespace, found)
        if self.switch.registry.pairs.get(namespace) != pair:
            return None  # switched meanwhile
        new = Pair(present, archive_uuid, pair.since)
        self.switch.registry.pairs[namespace] = new
        await self._publish_pair(namespace, new, lost=pair.fast is not None)
        return new

    async def adopt(self, namespace: str, resync: Resynchronise) -> bool:
        """Go on with the collection that the archive has now, as after a restore there.

        What F covers was counted with the other one, so it goes. False: the archive has none.
        """
        pair = self.switch.registry.pairs.get(namespace)
        found = await catalog.find_collection(self.switch.tiers.archive, namespace)
        if pair is None or found is None or found.uuid is None:
            return False
        if found.uuid == pair.archive:
            return True
        self.switch.problems.set(
            f"replaced {namespace}",
            f"{namespace} was replaced in the archive from outside; the fast tier's documents and every "
            "later write are applied to the new collection",
        )
        new = Pair(pair.fast, found.uuid, pair.since)
        self.switch.registry.pairs[namespace] = new
        # What was replayed before isn't in the new collection. Published last: a crash begins again.
        await resync()
        await self._publish_pair(namespace, new, lost=True)
        return True

    async def _counterpart(self, namespace: str, found: catalog.Collection) -> uuid.UUID | None:
        existing = await catalog.find_collection(self.switch.tiers.archive, namespace)
        if existing is not None:
            return existing.uuid
        indexes = await list_indexes(self.switch.tiers.fast, namespace)
        return await catalog.create_like(
            self.switch.tiers.archive, namespace, found.options, indexes
        )

    async def _publish_pair(self, namespace: str, pair: Pair, *, lost: bool) -> None:
        uuids: dict[str, Any] = {}
        if pair.fast is not None:
            uuids["fast"] = Binary.from_uuid(pair.fast)
        if pair.archive is not None:
            uuids["archive"] = Binary.from_uuid(pair.archive)
        unset = ("floor", "claim", "complete", "publishedAt") if lost else ()
        indexes = await list_indexes(self.switch.tiers.archive, namespace)
        unique = [
            {"name": u.name, "paths": list(u.paths), "plain": u.plain}
            for u in catalog.unique_indexes(indexes)
        ]
        for _ in range(20):
            seen = await read_one(self.switch.tiers, namespace)
            if seen is None:
                return
            if await compare_and_set(
                self.switch.tiers,
                seen,
                set_fields={"uuids": uuids, "unique": unique},
                unset=unset,
                raise_by=int(lost),
            ):
                return
        raise Overtaken(f"{namespace}: its coverage document keeps changing")

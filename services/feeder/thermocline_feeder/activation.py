"""A namespace goes to ``Active``: the fast tier takes its writes from then on."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from bson.binary import Binary

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.indexes import list_indexes
from thermocline_feeder import catalog, waits
from thermocline_feeder.foreign import writes_since
from thermocline_feeder.registry import Pair
from thermocline_feeder.switch import Blocked, Switch, archive_now

log = logging.getLogger(__name__)

WATCHED_FOR: Final = 0.25
"""Seconds at least in which nobody may write to the paused collection: a writer that goes round the proxy
every few milliseconds would otherwise fall between two steps on a quick machine."""


@dataclass(slots=True)
class Activation:
    """From ``Passthrough`` to ``Active``; section 9 of the architecture, step by step."""

    switch: Switch

    async def activate(self, coverage: Coverage) -> None:
        """From ``Passthrough`` to ``Active``. Raises :class:`Blocked` or PyMongo's errors; then it was reverted."""
        namespace = coverage.namespace
        await self.switch.registry.watch(namespace)
        await self.switch.nothing_in_the_way(namespace)
        paused = await self.switch.pause_namespace(coverage, State.ACTIVE)
        await self.switch.within_limit(paused, self._to_active(paused))

    async def _to_active(self, paused: Coverage) -> None:
        namespace = paused.namespace
        await self.switch.wait_lease()
        await waits.writes_ended(self.switch.tiers.archive, namespace)
        quiet_from, _ = await archive_now(self.switch.tiers.archive, namespace)
        clock = asyncio.get_running_loop().time
        enough = clock() + WATCHED_FOR
        await self.switch.hold("drop")
        await self._empty_fast(paused)
        await self.switch.hold("create")
        archive = await catalog.find_collection(self.switch.tiers.archive, namespace)
        indexes = await list_indexes(self.switch.tiers.archive, namespace)
        fast_uuid = archive_uuid = None
        if archive is not None:
            archive_uuid = archive.uuid
            fast_uuid = await catalog.create_like(
                self.switch.tiers.fast, namespace, archive.options, indexes
            )
        await self.switch.remove_records(paused)
        await asyncio.sleep(max(enough - clock(), 0))
        time, cluster_time = await archive_now(self.switch.tiers.archive, namespace)
        foreign = await writes_since(self.switch.tiers.archive, namespace, quiet_from, time)
        if foreign:
            raise Blocked(
                f"{foreign} writes to {namespace} reached the archive while it was paused: something writes "
                "there without the proxy. Let it use the proxy"
            )
        uuids: dict[str, Any] = {}
        if fast_uuid is not None and archive_uuid is not None:
            uuids = {"fast": Binary.from_uuid(fast_uuid), "archive": Binary.from_uuid(archive_uuid)}
        # Change streams of the application begin here: what F's oplog holds from before isn't theirs.
        ping = await self.switch.tiers.fast.admin.command("ping")
        # Before anybody can write: what is written must be replayed from its first event on.
        self.switch.registry.pairs[namespace] = Pair(fast_uuid, archive_uuid, time)
        await self.switch.hold("publish")
        await self.switch.change(
            paused,
            {
                "state": State.ACTIVE.value,
                "target": State.ACTIVE.value,
                "uuids": uuids,
                "archiveTime": time,
                "archiveClusterTime": dict(cluster_time),
                "activatedAt": ping["operationTime"],
                "unique": [
                    {"name": u.name, "paths": list(u.paths), "plain": u.plain}
                    for u in catalog.unique_indexes(indexes)
                ],
                "lookBack": Tier.ARCHIVE.value,
                "epoch": Binary.from_uuid(self.switch.epoch()),
            },
            ("floor", "claim", "complete", "publishedAt", "pausingSince"),
        )
        self.switch.problems.clear(f"dropped {namespace}")
        log.info("namespace is active", extra={"namespace": namespace})

    async def _empty_fast(self, paused: Coverage) -> None:
        """Drop what an earlier activation of ours left; anything else is set aside, never dropped."""
        namespace = paused.namespace
        found = await catalog.find_collection(self.switch.tiers.fast, namespace)
        if found is None:
            return
        if found.uuid is None:
            raise Blocked(f"{namespace} is a {found.kind} in the fast tier; drop it there")
        ours = found.uuid == paused.fast_uuid
        if ours or await catalog.is_empty(self.switch.tiers.fast, namespace):
            await catalog.drop(self.switch.tiers.fast, namespace, found.uuid)
            return
        target = await catalog.set_aside(self.switch.tiers.fast, namespace, found.uuid)
        self.switch.aside.append(target)
        self.switch.problems.set(
            f"aside {namespace}",
            f"the fast tier held documents of {namespace} that aren't Thermocline's; they were renamed to "
            f"{target}. Look at them and drop that collection",
        )

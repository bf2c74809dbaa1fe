"""A namespace goes to ``Passthrough``: the archive takes its writes again, and F is emptied of it."""

import logging
from dataclasses import dataclass

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_feeder import catalog, waits
from thermocline_feeder.switch import Blocked, Switch

log = logging.getLogger(__name__)

_ENDS_CURSORS = frozenset({"drop", "dropDatabase", "renameCollection"})


@dataclass(slots=True)
class Withdrawal:
    """From ``Active`` to ``Passthrough``, and the cleaning up after it."""

    switch: Switch

    async def withdraw(self, coverage: Coverage) -> None:
        """From ``Active`` to ``Passthrough``. Raises as :meth:`activate`."""
        await self.switch.nothing_in_the_way(coverage.namespace)
        paused = await self.switch.pause_namespace(coverage, State.PASSTHROUGH)
        await self.switch.within_limit(paused, self._to_passthrough(paused))

    async def _to_passthrough(self, paused: Coverage) -> None:
        namespace = paused.namespace
        await self.switch.wait_lease()
        await waits.writes_ended(self.switch.tiers.fast, namespace)
        await self.switch.hold("replay")
        await self.switch.replay.past_now()
        if any(ns == namespace for ns, _ in self.switch.applier.quarantine):
            raise Blocked(f"{namespace}: the archive refuses some of its documents")
        # Nothing more of it is to reach A, which takes the application's writes from here on.
        self.switch.registry.pairs.pop(namespace, None)
        await self.switch.hold("publish")
        await self.switch.change(
            paused,
            {
                "state": State.PASSTHROUGH.value,
                "target": State.PASSTHROUGH.value,
                "lookBack": Tier.FAST.value,
            },
            ("floor", "claim", "complete", "publishedAt", "pausingSince"),
        )
        log.info("namespace is in passthrough", extra={"namespace": namespace})

    async def clean(self, coverage: Coverage) -> None:
        """Drop F's collection (unless it is to stay) and records, once no reader can use them any more."""
        namespace = coverage.namespace
        await self.switch.wait_lease()
        limit = self._cursor_wait(coverage)
        if limit and not await waits.cursors_ended(self.switch.tiers.fast, namespace, limit):
            log.warning(
                "cursors outlived the wait and end with an error", extra={"namespace": namespace}
            )
        await self.switch.hold("drop")
        # A command that waits for the fast tier to be empty counts more than a wish to keep it.
        stays = self.switch.retains() and not coverage.requests
        if coverage.fast_uuid is not None and not stays:
            await catalog.drop(self.switch.tiers.fast, namespace, coverage.fast_uuid)
        await self.switch.remove_records(coverage)
        await self.switch.change(
            coverage, {}, ("uuids", "unique", "archiveTime", "archiveClusterTime")
        )

    def _cursor_wait(self, coverage: Coverage) -> float:
        """How long cursors may hold the cleaning up; 0: they end with the collection in MongoDB too."""
        settings = self.switch.settings
        if not coverage.requests:
            return settings.cursor_wait
        if any(request.command in _ENDS_CURSORS for request in coverage.requests):
            return 0.0
        return min(settings.cursor_wait, settings.request_cursor_wait)

"""One statement on one tiered namespace in a transaction on F: what it must know of the archive.

A statement acts first and asks then: where it turns out that the archive alone held something that
counts, the transaction is aborted, the documents are promoted, and the driver repeats it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.portions import portions
from thermocline_common.tiers import Tiers
from thermocline_proxy.commands.command import Command
from thermocline_proxy.transactions.inside import Inside
from thermocline_proxy.transactions.past import Past
from thermocline_proxy.transactions.pins import Pin
from thermocline_proxy.transactions.refusals import too_many
from thermocline_proxy.writes.covered import covers_filter
from thermocline_proxy.writes.filters import storable
from thermocline_proxy.writes.refusal import refuse_long
from thermocline_proxy.writes.removal import record_deletions
from thermocline_proxy.writes.run import Run
from thermocline_proxy.writes.unique import holders, unique_specs

MOST_PROMOTED: Final = 10_000
"""Cold documents that one statement may bring in; more take longer than a transaction may last."""


class Cold(Exception):
    """These documents existed in the archive alone at the transaction's time (or were changed since)."""

    def __init__(self, namespace: str, ids: Iterable[DocId]) -> None:
        super().__init__(namespace)
        self.namespace = namespace
        self.ids = tuple(ids)


class Statement:
    """``command``: the client's, bare. ``run``: for look-ups with the time budget of the client."""

    def __init__(self, command: Command, pin: Pin, inside: Inside, run: Run, tiers: Tiers) -> None:
        assert pin.snapshot is not None
        assert pin.at is not None
        self.command = command
        self.pin = pin
        self.snapshot = pin.snapshot
        self.inside = inside
        self.namespace = command.namespace
        self.coverage: Coverage = pin.snapshot.tierings[self.namespace].coverage
        self._run = run
        self._tiers = tiers
        self._past = Past(tiers, self.coverage, pin.at, pin.archive_at)

    @property
    def complete(self) -> bool:
        """Whether F held the whole namespace: then the archive has nothing to add."""
        return self.coverage.keep_all and self.coverage.complete

    @property
    def has_unique(self) -> bool:
        """Whether keys have to be asked for in the archive."""
        return bool(self.coverage.unique) and not self.complete

    async def expect_absent(self, ids: Iterable[DocId]) -> None:
        """Of ids that the transaction doesn't see, or has just inserted: none existed but here.

        Raises :class:`Cold`.
        """
        wanted = [i for i in ids if storable(i)]
        if not wanted or self.complete:
            return
        async with self._run.bounded():
            # In this order: what was deleted since, and in the archive too, has its record by then.
            held = await self._past.in_archive(wanted)
            hidden = await self._past.hidden_now(wanted)
            cold = await self._existed(held | hidden)
        if cold:
            raise Cold(self.namespace, cold)

    async def expect_seen(self, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Which of these the transaction sees; the others don't exist. Raises :class:`Cold`."""
        wanted = list(ids)
        present = await self.inside.present(self.namespace, wanted)
        await self.expect_absent(i for i in wanted if i not in present)
        return present

    async def expect_no_cold(
        self, query: bytes, lookup: Mapping[str, Any], *, most: int = MOST_PROMOTED
    ) -> None:
        """No document outside F matched the filter. Raises :class:`Cold` with at most ``most`` that did."""
        if covers_filter(self.coverage, query):
            return
        fields = {name: value for name, value in lookup.items() if name != "hint"}
        cold: list[DocId] = []
        async with (
            self._run.bounded(listing=True),
            aclosing(self._past.archive_matches(query, fields)) as groups,  # type: ignore[type-var]
        ):
            async for group in groups:
                cold += await self._existed(frozenset(group))
                if len(cold) >= most:
                    break
        if len(cold) > MOST_PROMOTED:
            raise too_many(self.namespace, MOST_PROMOTED)
        if cold:
            raise Cold(self.namespace, cold[:most])

    async def expect_no_rivals(self, documents: Sequence[bytes]) -> None:
        """No document outside F holds a unique key of one of these. Raises :class:`Cold`, ``Refused``."""
        if not documents or not self.has_unique:
            return
        specs = await unique_specs(self._run, self.coverage)
        coverage = await self._past.coverage()
        found = await holders(self._run, coverage, documents, specs)
        async with self._run.bounded():
            cold = await self._existed(found)
        if cold:
            raise Cold(self.namespace, cold)

    async def expect_new(self, ids: Sequence[DocId]) -> None:
        """Documents that an upsert has inserted: nobody outside F has their ids and keys."""
        refuse_long(ids)
        await self.expect_absent(ids)
        if self.has_unique and ids:
            await self.expect_no_rivals(await self.inside.documents(self.namespace, ids))

    async def record(self, ids: Sequence[DocId]) -> None:
        """``deleted`` records, outside, for those that F holds outside; before the transaction deletes them."""
        for portion in portions(ids):
            async with self._run.bounded():
                await record_deletions(self._tiers, self.namespace, portion)

    async def _existed(self, ids: frozenset[DocId]) -> frozenset[DocId]:
        """Those of the archive's documents that existed outside F at the time.

        What F held then is the transaction's own business, even if it has deleted it; what it has
        inserted was in neither tier, or this very question tells.
        """
        left = ids - await self._past.in_fast(ids) if ids else ids
        return left - await self._past.hidden(left) if left else left

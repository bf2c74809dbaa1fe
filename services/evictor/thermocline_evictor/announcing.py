"""Finds candidates, confirms that the archive holds them, and announces that they will leave.

An announcement carries a time of the archive to all its readers: from then on, and so at least
a lease before the eviction, none of them may be answered by a member that lacks the copy.
"""

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from thermocline_common import coverage_store
from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import read_records
from thermocline_common.ttl import Rule, may_have_expired
from thermocline_evictor import candidates, confirm, records
from thermocline_evictor.confirm import ArchiveView
from thermocline_evictor.expiry import read_rules
from thermocline_evictor.plan.cutoff import bound_of
from thermocline_evictor.plan.mismatches import Mismatches
from thermocline_evictor.plan.verdicts import Verdict, digest, judge
from thermocline_evictor.tools import Report, Tools


@dataclass(frozen=True, slots=True)
class Pending:
    """An announced document: our record's token, the digest of its content, when it is due."""

    token: uuid.UUID
    content: bytes
    due: float


class Announcing:
    """The part of one namespace's eviction that looks ahead."""

    def __init__(self, tools: Tools, report: Report) -> None:
        self._tools = tools
        self._report = report
        self.mismatches = Mismatches(tools.settings.mismatch_looks)
        self.rules: tuple[Rule, ...] = ()
        self._walk: candidates.Walk | None = None
        self._next_walk = 0.0
        self._next_suspects = 0.0
        self._next_oldest = 0.0
        self._counted = 0
        self._counting = False

    def begin_anew(self) -> None:
        """Start a new pass at once, and count anew: mode or policy have changed."""
        self._walk = None
        self._next_walk = 0.0
        self._counting = False

    def reset(self) -> None:
        """Also forget what was suspected: the namespace isn't evicted from any more."""
        self.begin_anew()
        self.mismatches = Mismatches(self._tools.settings.mismatch_looks)
        self._report.mismatches = []

    def judge_with(
        self, view: ArchiveView, ids: Iterable[DocId], horizon: dt.datetime
    ) -> Callable[[Coverage, Mapping[DocId, bytes]], dict[DocId, Verdict]]:
        """The verdicts at ``view``, as a function of the coverage and F's bytes at its checkpoint."""
        wanted = tuple(ids)
        now = self._tools.now()

        def decide(coverage: Coverage, fast: Mapping[DocId, bytes]) -> dict[DocId, Verdict]:
            return judge(
                wanted,
                fast,
                view.documents,
                path=coverage.age_field or "",
                bound=bound_of(coverage, horizon),
                quarantined=view.quarantined,
                expired=lambda document: may_have_expired(self.rules, document, now),
            )

        return decide

    async def announce_page(
        self, coverage: Coverage, horizon: dt.datetime, pending: Mapping[DocId, Pending]
    ) -> dict[DocId, Pending] | None:
        """Announce the next page of candidates; None: there are none for now.

        Raises PyMongo's errors and :class:`candidates.NoAgeIndex`.
        """
        tools = self._tools
        found = await self._next_page(
            coverage, bound_of(coverage, horizon), tools.settings.scan_pause
        )
        if found is None:
            return None
        ids = [i for i in found if i not in pending]
        # What has a record is another's: looking at it would only write archive times, and each of
        # those makes the other evictor's transaction conflict.
        recorded = await read_records(tools.tiers.fast, coverage.namespace, ids)
        self._report.ledger.skip([Verdict.RECORDED.value] * len(recorded))
        ids = [i for i in ids if i not in recorded]
        if not ids:
            return {}
        view, fast, verdicts = await self._look(coverage, ids, horizon)
        wanted = [i for i, verdict in verdicts.items() if verdict is Verdict.DELETABLE]
        self._report.ledger.skip(v.value for v in verdicts.values() if v is not Verdict.DELETABLE)
        if not wanted:
            return {}
        await coverage_store.raise_archive_time(
            tools.tiers, [coverage.namespace], view.time, view.cluster_time
        )
        await tools.paused("announce")
        tokens = await records.announce(tools.tiers, coverage.namespace, wanted)
        due = tools.clock() + tools.settings.announce_seconds
        self._report.ledger.announced += len(tokens)
        self._report.ledger.skip([Verdict.RECORDED.value] * (len(wanted) - len(tokens)))
        return {i: Pending(token, digest(fast[i]), due) for i, token in tokens.items()}

    async def count_page(self, coverage: Coverage, horizon: dt.datetime) -> int:
        """Count what would be evicted from the next page; how many were looked at, 0: the pass is over."""
        settings = self._tools.settings
        without_floor = _uncovered(coverage)
        found = await self._next_page(
            without_floor, bound_of(without_floor, horizon), settings.dry_run_pause
        )
        if found is None:
            if self._counting or self._report.would_evict is None:
                self._report.would_evict = self._counted if self._counting else 0
                self._counting = False
            return 0
        if not self._counting:
            self._counting, self._counted = True, 0
        _, _, verdicts = await self._look(without_floor, found, horizon)
        self._counted += sum(v is Verdict.DELETABLE for v in verdicts.values())
        return len(found)

    async def _next_page(self, coverage: Coverage, bound: int, pause: float) -> list[DocId] | None:
        tools = self._tools
        if self._walk is None:
            if tools.clock() < self._next_walk:
                return None
            index = await candidates.age_index_name(tools.tiers, coverage)
            self._walk = candidates.Walk(tools.tiers, coverage, index)
        found = await self._walk.page(bound, tools.piece(tools.settings.page))
        if not found:
            self._walk = None
            self._next_walk = tools.clock() + pause
            return None
        return found

    async def _look(
        self, coverage: Coverage, ids: Iterable[DocId], horizon: dt.datetime
    ) -> tuple[ArchiveView, dict[DocId, bytes], dict[DocId, Verdict]]:
        """Both tiers at the feeder's checkpoint; suspicions are noted."""
        wanted = list(ids)
        tiers = self._tools.tiers
        looking = confirm.look_archive(tiers, coverage, wanted)
        view = await self._tools.beside(coverage.namespace, looking, len(wanted))
        fast = await confirm.look_fast(tiers.fast, coverage, wanted, view.checkpoint)
        decide = self.judge_with(view, wanted, horizon)
        verdicts = decide(coverage, fast)
        if Verdict.MISSING in verdicts.values():
            # The archive's TTL monitor may go by a rule that is newer than our last pass.
            self.rules = await read_rules(tiers, coverage.namespace)
            verdicts = decide(coverage, fast)
        self.note(verdicts, fast, view)
        return view, fast, verdicts

    def note(
        self,
        verdicts: Mapping[DocId, Verdict],
        fast: Mapping[DocId, bytes],
        view: ArchiveView,
    ) -> None:
        """Keep the suspicions of a look."""
        self.mismatches = self.mismatches.look(verdicts, fast, view.checkpoint)
        self._report.mismatches = self.mismatches.confirmed

    async def look_at_suspects(self, coverage: Coverage, horizon: dt.datetime) -> None:
        """Look again at what differed, now and then."""
        tools = self._tools
        ids = list(self.mismatches.suspicions)
        if not ids or tools.clock() < self._next_suspects:
            return
        self._next_suspects = tools.clock() + tools.settings.mismatch_pause
        for first in range(0, len(ids), tools.settings.page):
            await self._look(coverage, ids[first : first + tools.settings.page], horizon)

    async def look_for_oldest(self, coverage: Coverage) -> None:
        """Bring the age of the oldest resident up to date, now and then."""
        tools = self._tools
        if tools.clock() < self._next_oldest:
            return
        self._next_oldest = tools.clock() + tools.settings.oldest_pause
        index = await candidates.age_index_name(tools.tiers, coverage)
        self._report.oldest_resident = await candidates.oldest_resident(
            tools.tiers, coverage, index
        )


def _uncovered(coverage: Coverage) -> Coverage:
    """The coverage as it would be with the floor raised to the horizon."""
    return dataclasses.replace(coverage, floor=None, claim=None)

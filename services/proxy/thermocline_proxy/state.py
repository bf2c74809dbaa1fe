"""The lease: what this proxy may believe about tiered namespaces, and until when.

Time is measured on the monotonic clock from before the first read. Everything is read with
``linearizable``, so that a primary that was cut off can't renew a lease.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from thermocline_common import leases, names
from thermocline_common.coverage import State, Tier, parse_coverage, trusted
from thermocline_common.coverage_store import outlive_leases, read_linearizable
from thermocline_common.errors import Code, CommandError
from thermocline_common.health import Problems
from thermocline_common.logs import redact
from thermocline_common.raw_reads import run_raw
from thermocline_common.tiers import Tiers
from thermocline_proxy.commands.catalog import CLOSED_DATABASES
from thermocline_proxy.commands.views import sources_of
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_proxy.settings import Settings
from thermocline_proxy.times import TierClock

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
SHORTEST_PAUSE = 0.02
"""Seconds between two renewals, when somebody waits for news."""
_MAX_STANDINGS = 100_000


class Standing(IntEnum):
    """What the short path may do with a namespace under the snapshot in force."""

    UNTIERED = 0
    """Goes to the archive under the lease on the archive's list."""
    POINTS_ON_FAST = 1
    """Tiered and active: a document found in F by its ``_id`` is the answer."""
    CONSIDER = 2
    """Anything else: decided on the long path."""


class NoLease(Exception):
    """The tiers' coordination data can't be trusted; the text says why."""


_UNREADABLE = (PyMongoError, NoLease, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """What the archive told: its list, the checkpoint, and views over listed databases."""

    listed: frozenset[str]
    checkpoint: Mapping[str, Any] | None
    views: Mapping[str, frozenset[str]]


def check_epoch(checkpoint: Mapping[str, Any] | None, marker: Mapping[str, Any] | None) -> None:
    """Did F go back? Raises :class:`NoLease`."""
    if checkpoint is None:
        return
    if checkpoint.get("nextEpoch") is not None:
        raise NoLease("the fast tier is being taken over anew by the feeder")
    if checkpoint.get("epoch") is None:
        return
    if marker is None or marker.get("epoch") != checkpoint["epoch"]:
        raise NoLease(
            "the fast tier is not the one that the archive's checkpoint names: it was replaced or restored"
        )
    if int(marker.get("counter", 0)) < int(checkpoint.get("counter", 0)):
        raise NoLease(
            "the fast tier has gone back behind the archive's checkpoint: it was restored or lost writes"
        )


def check_document(document: Mapping[str, Any], owner: tuple[str, str]) -> None:
    """Format and owner of a coordination document. Raises :class:`NoLease`."""
    version = document.get("formatVersion", names.FORMAT_VERSION)
    if version > names.FORMAT_VERSION:
        raise NoLease(
            f"the coordination data has format {version}; this proxy knows up to {names.FORMAT_VERSION}"
        )
    found = document.get("owner")
    if found is not None and (found.get("namespace"), found.get("name")) != owner:
        raise NoLease(
            f"the coordination data belongs to {found.get('namespace')}/{found.get('name')}, "
            f"not to {owner[0]}/{owner[1]}"
        )


def standing(namespace: str, snapshot: Snapshot) -> Standing:
    """What the short path may do with one namespace. Pure."""
    sources = snapshot.sources(namespace)
    if namespace.partition(".")[0] in CLOSED_DATABASES:
        return Standing.CONSIDER
    if not any(source in snapshot.listed or source in snapshot.tierings for source in sources):
        return Standing.UNTIERED
    tiering = snapshot.tierings.get(namespace)
    if (
        sources == {namespace}
        and tiering is not None
        and not snapshot.archive_only
        and tiering.coverage.doubt is None
        and tiering.coverage.state is State.ACTIVE
    ):
        return Standing.POINTS_ON_FAST
    return Standing.CONSIDER


class LeaseKeeper:
    """:class:`~thermocline_proxy.ports.Leases`, renewed in the background."""

    def __init__(
        self,
        tiers: Tiers,
        clocks: Mapping[Tier, TierClock],
        settings: Callable[[], Settings],
        problems: Problems,
        clock: Callable[[], float],
    ) -> None:
        self._tiers = tiers
        self._clocks = clocks
        self._settings = settings
        self._problems = problems
        self._clock = clock
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        self._standings: dict[bytes, Standing] = {}
        self._seen_settings: Settings | None = None
        self.token = object()
        """Another object whenever what a namespace's standing rests on may have changed."""
        self._renewed_at = float("-inf")
        self._granted = leases.UNPUBLISHED.seconds
        self.snapshot = Snapshot(expires=float("-inf"), untiered_expires=float("-inf"))

    def forget_plans(self) -> None:
        """Let the short path decide about every command anew."""
        self.token = object()

    # What the short path asks: synchronous.

    def standing(self, namespace: bytes) -> Standing:
        """The standing of ``db.collection``; whether a lease is alive is the caller's to check."""
        found = self._standings.get(namespace)
        if found is None:
            try:
                found = standing(namespace.decode(), self.snapshot)
            except UnicodeDecodeError:
                found = Standing.CONSIDER
            if len(self._standings) < _MAX_STANDINGS:
                self._standings[namespace] = found
        return found

    @property
    def anything_tiered(self) -> bool:
        """Whether any namespace is listed by either tier."""
        return bool(self.snapshot.listed or self.snapshot.tierings)

    def alive(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot's coverage lease still runs, now."""
        return self._clock() < snapshot.expires

    def untiered_alive(self, snapshot: Snapshot) -> bool:
        """Whether statements that the snapshot calls untiered may be sent, now."""
        return self._clock() < snapshot.untiered_expires

    async def outlive_others(self) -> None:
        """Wait until every proxy has read what was changed before this call."""
        await outlive_leases(self._tiers.archive)

    @property
    def age(self) -> float:
        """Seconds since the beginning of the last full renewal; infinite before the first."""
        return self._clock() - self._renewed_at

    # What handlers wait for.

    async def current(self, deadline: float | None = None) -> Snapshot:
        """A snapshot whose leases are both alive; waits for one. Raises ``CommandError`` 262."""
        return await self._until(
            lambda: self._clock() < min(self.snapshot.expires, self.snapshot.untiered_expires),
            deadline,
            "the tiers' coverage can't be read",
        )

    async def untiered(self, deadline: float | None = None) -> Snapshot:
        """A snapshot whose ``untiered_expires`` is alive. Raises ``CommandError`` 262."""
        return await self._until(
            lambda: self._clock() < self.snapshot.untiered_expires,
            deadline,
            "the archive's list of tiered namespaces can't be read",
        )

    async def wait_for_change(self, snapshot: Snapshot, deadline: float | None) -> Snapshot:
        """The next newer snapshot with live leases. Raises ``CommandError`` 262 in the end."""
        return await self._until(
            lambda: (
                self.snapshot is not snapshot
                and self._clock() < min(self.snapshot.expires, self.snapshot.untiered_expires)
            ),
            deadline,
            "the namespace is being switched",
        )

    async def _until(
        self, ready: Callable[[], bool], deadline: float | None, what: str
    ) -> Snapshot:
        end = self._clock() + self._settings().barrier_timeout if deadline is None else deadline
        while not ready():
            left = end - self._clock()
            if left <= 0:
                raise CommandError(Code.ExceededTimeLimit, f"{what}; try again")
            self._wanted.set()
            news = self._news
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await news.wait()
        return self.snapshot

    # Renewal.

    async def run(self) -> None:
        """Renew, again and again, until cancelled.

        The fast tier is read beside the archive's turns: one that can't be reached must not hold up
        the lease for untiered namespaces.
        """
        fast: asyncio.Task[None] | None = None
        try:
            while True:
                started = self._clock()
                self._wanted.clear()
                archive = await self._renew_archive(started)
                if archive is not None and (fast is None or fast.done()):
                    fast = asyncio.create_task(self._renew_fast(started, archive))
                lease = min(self._settings().lease, self._granted)
                pause = lease / RENEWALS_PER_LEASE - (self._clock() - started)
                await asyncio.sleep(SHORTEST_PAUSE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, pause - SHORTEST_PAUSE)):
                        await self._wanted.wait()
        finally:
            if fast is not None:
                fast.cancel()
                await asyncio.gather(fast, return_exceptions=True)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _renew_archive(self, started: float) -> ArchiveView | None:
        settings = self._settings()
        try:
            archive = await self._read_archive(settings)
            self._granted = leases.published(archive.checkpoint).seconds
        except _UNREADABLE as error:
            self._problems.set(
                "lease", f"no lease: the archive's list can't be read: {_reason(error)}"
            )
            return None
        self._problems.clear("lease")
        self._put(
            dataclasses.replace(
                self.snapshot,
                untiered_expires=started + min(settings.lease, self._granted),
                listed=archive.listed,
                views=archive.views,
                archive_only=settings.archive_only,
            )
        )
        self._tell()
        return archive

    async def _renew_fast(self, started: float, archive: ArchiveView) -> None:
        """``started``: before the archive's part was read. The list may have been read again since;
        a namespace that only one of the two knows is treated as tiered."""
        settings = self._settings()
        try:
            tierings = await self._read_fast(archive, settings)
            lease = leases.usable(settings.lease, archive.checkpoint)
        except _UNREADABLE as error:
            self._problems.set("coverage", f"tiered namespaces can't be served: {_reason(error)}")
            return
        self._problems.clear("coverage")
        self._renewed_at = started
        self._put(
            dataclasses.replace(
                self.snapshot,
                expires=started + lease,
                tierings=tierings,
                fast_time=self._clocks[Tier.FAST].operation_time,
            )
        )
        self._tell()

    def _put(self, snapshot: Snapshot) -> None:
        old = self.snapshot
        self.snapshot = snapshot
        settings = self._settings()
        if settings is not self._seen_settings or (
            (old.listed, old.views, old.tierings, old.archive_only)
            != (snapshot.listed, snapshot.views, snapshot.tierings, snapshot.archive_only)
        ):
            self._seen_settings = settings
            self._standings = {}
            self.token = object()

    async def _read_archive(self, settings: Settings) -> ArchiveView:
        limit = max(1_000, int(settings.lease * 1_000))
        checkpoints, reply = await read_linearizable(
            self._tiers.archive, names.CHECKPOINT, {"_id": names.CHECKPOINT_ID}, max_time_ms=limit
        )
        self._clocks[Tier.ARCHIVE].learn_document(dict(reply))
        entries, reply = await read_linearizable(
            self._tiers.archive, names.TIERED, {}, max_time_ms=limit
        )
        self._clocks[Tier.ARCHIVE].learn_document(dict(reply))
        for document in (*checkpoints, *entries):
            check_document(document, settings.owner)
        listed = frozenset(str(entry["_id"]) for entry in entries)
        databases = sorted({namespace.partition(".")[0] for namespace in listed})
        views: dict[str, frozenset[str]] = {}
        for database in databases:
            views |= await _read_views(self._tiers.archive, database, limit)
        return ArchiveView(listed, checkpoints[0] if checkpoints else None, views)

    async def _read_fast(self, archive: ArchiveView, settings: Settings) -> dict[str, Tiering]:
        limit = max(1_000, int(settings.lease * 1_000))
        markers, reply = await read_linearizable(
            self._tiers.fast, names.MARKERS, {"_id": names.EPOCH_MARKER_ID}, max_time_ms=limit
        )
        self._clocks[Tier.FAST].learn_document(dict(reply))
        check_epoch(archive.checkpoint, markers[0] if markers else None)
        documents, reply = await read_linearizable(
            self._tiers.fast, names.COVERAGE, {}, max_time_ms=limit
        )
        self._clocks[Tier.FAST].learn_document(dict(reply))
        if documents and archive.checkpoint is None:
            raise NoLease("the fast tier holds coverage, but the archive has no checkpoint")
        quarantined = {
            str(entry["ns"]) for entry in (archive.checkpoint or {}).get("quarantine", ())
        }
        tierings = {}
        for document in documents:
            check_document(document, settings.owner)
            coverage = trusted(parse_coverage(document))
            if coverage.archive_cluster_time is not None:
                self._clocks[Tier.ARCHIVE].learn_document(
                    {"$clusterTime": dict(coverage.archive_cluster_time)}
                )
            namespace = coverage.namespace
            tierings[namespace] = Tiering(
                coverage,
                relaxed=namespace in settings.relaxed,
                quarantined=namespace in quarantined,
            )
        return tierings


async def _read_views(
    client: AsyncMongoClient[dict[str, Any]], database: str, max_time_ms: int
) -> dict[str, frozenset[str]]:
    reply = await run_raw(
        client,
        database,
        {
            "listCollections": 1,
            "filter": {"type": "view"},
            "cursor": {"batchSize": 10_000},
            "maxTimeMS": max_time_ms,
        },
    )
    return sources_of(database, reply["cursor"]["firstBatch"])


def _reason(error: Exception) -> str:
    if isinstance(error, PyMongoError):
        return redact(str(error).split(", Timeout:")[0].split(", full error:")[0])
    return str(error) or type(error).__name__

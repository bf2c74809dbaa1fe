"""One client command on its way: the lease it is sent under, its time budget, look-ups on its behalf."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from thermocline_common import copy_in
from thermocline_common.coverage import Coverage, State
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_common.portions import portions
from thermocline_common.raw_reads import find_by_ids, find_raw, read_records
from thermocline_common.removals import Kind as RecordKind, Record
from thermocline_common.timing import KEEP_SECONDS
from thermocline_proxy.commands.command import Command, element
from thermocline_proxy.commands.readconcern import timeless
from thermocline_proxy.exchange import LeaseLapsed
from thermocline_proxy.ports import Gateway, Reply, Request, Tier
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_proxy.writes.acceptance import Acceptance
from thermocline_proxy.writes.targets import Target

KEPT_SECONDS: Final = KEEP_SECONDS
"""What was kept stays for so long: an eviction comes at least 60 s after a new announcement."""
RECORDED_SECONDS: Final = 30.0
"""A delete follows its record within this time; the feeder removes records after five minutes."""
LONGEST_LOOKUP_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 60.0
"""How long a write without ``maxTimeMS`` waits for replay if its driver wouldn't repeat it: an election in
either tier and a feeder's successor (30 s) pass in less."""
ATTEMPTS: Final = 10

_ON_ITS_WAY: Final = (RecordKind.LEAVING, RecordKind.EVICTED)
ID_ONLY: Final = {"_id": 1}


class Moved(Exception):
    """The namespace isn't as it was when the step was planned, or the step took too long: plan anew."""


_accepted = Acceptance()


class Run:
    """A command on one tiered namespace. Not shared, not used again."""

    def __init__(self, request: Request, gateway: Gateway, snapshot: Snapshot) -> None:
        self.request = request
        self.gateway = gateway
        self.snapshot = snapshot
        self.namespace = request.command.namespace
        self.database = request.command.database
        self.collection = request.command.collection or ""
        self._sent = 0
        self._names_collection = "collectionUUID" in request.command.fields

    # The namespace's state

    async def coverage(self) -> Coverage | None:
        """The namespace's coverage under a live lease; None: ``Passthrough``. Waits while it pauses.

        Raises ``CommandError`` 262 where that takes too long.
        """
        leases = self.gateway.leases
        if not leases.alive(self.snapshot):
            self.snapshot = await leases.current(self.request.deadline)
        while True:
            tiering = self.snapshot.tierings.get(self.namespace)
            if tiering is None:
                if self.namespace not in self.snapshot.listed:
                    return None
            elif tiering.coverage.state is State.PASSTHROUGH:
                return None
            elif tiering.coverage.state is State.ACTIVE:
                return tiering.coverage
            self.snapshot = await leases.wait_for_change(self.snapshot, self.request.deadline)
            if not leases.alive(self.snapshot):
                self.snapshot = await leases.current(self.request.deadline)

    @property
    def tiering(self) -> Tiering | None:
        """The namespace's tiering in the snapshot at hand."""
        return self.snapshot.tierings.get(self.namespace)

    @property
    def held(self) -> Coverage | None:
        """The namespace's coverage in the snapshot at hand."""
        found = self.tiering
        return None if found is None else found.coverage

    @property
    def lease_runs(self) -> bool:
        """Whether the lease of the snapshot at hand still runs."""
        return self.gateway.leases.alive(self.snapshot)

    async def on_same_footing(self, coverage: Coverage) -> Coverage:
        """The coverage under a live lease, if it is still the activation that ``coverage`` describes.

        Floor and archive time may have changed since: what rests on those must use the result.
        Raises ``Moved``.
        """
        now = self.held if self.lease_runs else await self.coverage()
        if now is not coverage and (now is None or _footing(now) != _footing(coverage)):
            raise Moved
        return now

    # Sending the client's commands

    async def send(
        self,
        coverage: Coverage,
        command: Command,
        *,
        since: float | None = None,
        within: float = KEPT_SECONDS,
    ) -> Reply:
        """Send to F, as the client, under a live lease; ``since``: when what it rests on was made sure."""
        if self._names_collection:
            command = _named_in_fast(command, coverage)
        for _ in range(ATTEMPTS):
            await self.on_same_footing(coverage)
            if since is not None and self.gateway.clock() - since > within:
                raise Moved
            with contextlib.suppress(LeaseLapsed):  # not sent: there was a wait for a connection
                return await self._exchange(Tier.FAST, command)
        raise Moved

    async def attempt(
        self,
        coverage: Coverage,
        target: Target,
        *,
        query: bytes | None = None,
        update: tuple[int, bytes] | None = None,
        since: float | None = None,
    ) -> Reply:
        """Send the target's command without ``upsert``; one that was executed before gets its reply."""
        command = target.command(query=query, update=update)
        reply = await self.send(coverage, command, since=since)
        if target.inserted_before(reply.raw):
            return await self.send(coverage, target.command(upsert=True))
        return reply

    async def send_archive(self, command: Command) -> Reply:
        """Send to A, as the client: the namespace is in ``Passthrough``, under the snapshot at hand.

        Raises ``Moved`` where the lease ended in a wait for a connection: nothing was sent.
        """
        try:
            return await self._exchange(Tier.ARCHIVE, timeless(command))
        except LeaseLapsed as error:
            raise Moved from error

    async def ask(self, tier: Tier, command: Command) -> Reply:
        """Send the client's command to a tier in a form that executes nothing. Raises ``Moved`` likewise."""
        asked = timeless(command) if tier is Tier.ARCHIVE else command
        try:
            return await self.gateway.exchange.run(tier, self.request.identity, asked)
        except LeaseLapsed as error:
            raise Moved from error

    async def _exchange(self, tier: Tier, command: Command) -> Reply:
        if self.request.gone() and "txnNumber" in self.request.command.fields:
            # Its driver has sent it again by now, to another proxy perhaps. Where that attempt was answered
            # with an error of the statement, MongoDB remembers nothing, and would execute this one.
            raise CommandError(
                Code.ClientDisconnect, "the client is gone: it tries again elsewhere"
            )
        self._sent += 1
        if self.request.deadline is not None and (
            self._sent > 1 or command is not self.request.command
        ):
            command = command.changed({"maxTimeMS": element("maxTimeMS", self.milliseconds_left())})
        return await self.gateway.exchange.run(tier, self.request.identity, command)

    def milliseconds_left(self) -> int:
        """What is left of ``maxTimeMS``. Raises ``CommandError`` 50 where nothing is."""
        assert self.request.deadline is not None
        left = int((self.request.deadline - self.gateway.clock()) * 1000)
        if left <= 0:
            raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit")
        return left

    # What F accepts of this user

    def accepted(self, action: str) -> bool:
        """Whether F accepted this user's ``action`` lately."""
        now = self.gateway.clock()
        return _accepted.holds(self.request.identity, self.namespace, action, now)

    def note_accepted(self, action: str) -> None:
        """F has just accepted it."""
        _accepted.note(self.request.identity, self.namespace, action, self.gateway.clock())

    # Look-ups, as the proxy's own user

    @contextlib.asynccontextmanager
    async def bounded(self, *, listing: bool = False) -> AsyncIterator[None]:
        """End a look-up with the client's ``maxTimeMS``; but for listings, after a while in any case."""
        seconds = None if listing else LONGEST_LOOKUP_SECONDS
        if self.request.deadline is not None:
            left = self.milliseconds_left() / 1000
            seconds = left if seconds is None else min(seconds, left)
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            if self.request.deadline is not None:
                self.milliseconds_left()
            raise CommandError(
                Code.ExceededTimeLimit, f"a look-up for this write took more than {seconds} s"
            ) from error

    async def keep(self, coverage: Coverage, ids: Iterable[DocId]) -> copy_in.Kept:
        """Have these documents in F, where they exist at all, for ``KEPT_SECONDS``."""
        wanted = list(ids)
        if not wanted:
            return copy_in.Kept()
        coverage = await self.on_same_footing(coverage)
        try:
            async with self.bounded():
                kept = await copy_in.keep(
                    self.gateway.tiers, coverage, wanted, clock=self.gateway.clock
                )
        except copy_in.CollectionChanged as error:
            await self._collection_changed(coverage, error)
            raise Moved from error
        except copy_in.StillChanging as error:
            retryable = (
                ("RetryableWriteError",) if "txnNumber" in self.request.command.fields else ()
            )
            raise CommandError(Code.ExceededTimeLimit, str(error), labels=retryable) from error
        except copy_in.CannotCopy as error:
            raise CommandError(Code.OperationFailed, str(error)) from error
        if kept.copied:
            self.gateway.count("write-promoted", Tier.FAST.value)
        return kept

    async def _collection_changed(self, coverage: Coverage, error: Exception) -> None:
        """Wait for a coverage document that names the collections as they are now."""
        self.snapshot = await self.gateway.leases.wait_for_change(
            self.snapshot, self.request.deadline
        )
        found = self.tiering
        if found is not None and _footing(found.coverage) == _footing(coverage):
            raise CommandError(Code.ExceededTimeLimit, str(error)) from error

    async def ensure(self, coverage: Coverage, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Those ids that are in F for ``KEPT_SECONDS`` from now; all others don't exist.

        Asks F first, and keeps only what isn't there or is about to leave.
        """
        present: frozenset[DocId] = frozenset()
        for chunk in portions(dict.fromkeys(ids)):
            found, records = await asyncio.gather(self.fast_ids(chunk), self.records(chunk))
            # Evicted: F may have been asked for the document before, and for the record after that.
            weak = [
                i
                for i in chunk
                if i not in found or (i in records and records[i].kind in _ON_ITS_WAY)
            ]
            kept = await self.keep(coverage, weak)
            present |= (found - frozenset(weak)) | kept.present
        return present

    async def fast_ids(self, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Which of these ids F has."""
        async with self.bounded():
            found = await find_by_ids(
                self.gateway.tiers.fast, self.namespace, ids, fields={"projection": ID_ONLY}
            )
        return frozenset(found)

    async def records(self, ids: Iterable[DocId]) -> dict[DocId, Record]:
        """The removal records of these ids."""
        async with self.bounded():
            return await read_records(self.gateway.tiers.fast, self.namespace, ids)

    async def fast_matches(
        self, query: bytes, fields: Mapping[str, Any], *, limit: int = 0
    ) -> tuple[list[DocId], bool]:
        """Ids in F that match, and whether the lease still ran when the first batch arrived."""
        command = self._find(query, fields, limit)
        async with self.bounded(listing=not limit):
            return await self._collect(find_raw(self.gateway.tiers.fast, self.database, command))

    async def archive_matches(
        self,
        coverage: Coverage,
        query: bytes,
        fields: Mapping[str, Any],
        *,
        limit: int = 0,
        after: Timestamp | None = None,
    ) -> list[DocId]:
        """Ids in A's primary that match, at majority; ``after``: the barrier's time, if one was passed."""
        coverage = await self.on_same_footing(coverage)
        if coverage.archive_uuid is None:
            return []
        command = self._find(query, fields, limit)
        concern: dict[str, Any] = {"level": "majority"}
        time = max((t for t in (after, coverage.archive_time) if t is not None), default=None)
        if time is not None:
            concern["afterClusterTime"] = time
        command["readConcern"] = concern
        command["collectionUUID"] = Binary.from_uuid(coverage.archive_uuid)
        found = find_raw(
            self.gateway.tiers.archive,
            self.database,
            command,
            cluster_time=coverage.archive_cluster_time,
        )
        async with self.bounded(listing=not limit):
            try:
                return (await self._collect(found))[0]
            except OperationFailure as error:
                if error.code != Code.CollectionUUIDMismatch:
                    raise
                changed = error
        await self._collection_changed(coverage, changed)
        raise Moved from changed

    async def _collect(self, found: AsyncIterator[RawBSONDocument]) -> tuple[list[DocId], bool]:
        ids: list[DocId] = []
        in_time = True
        async for document in found:
            if not ids:
                in_time = self.lease_runs
            ids.append(DocId.of_document(bytes(document.raw)))
        return ids, in_time if ids else self.lease_runs

    def _find(self, query: bytes, fields: Mapping[str, Any], limit: int) -> dict[str, Any]:
        command: dict[str, Any] = {
            "find": self.collection,
            "filter": RawBSONDocument(query),
            "projection": ID_ONLY,
            **fields,
        }
        if limit:
            # Without batchSize a batch ends after 101 documents, and the single one with it.
            command |= {"limit": limit, "batchSize": limit, "singleBatch": True}
        else:
            command["batchSize"] = 10_000
        if self.request.deadline is not None:
            command["maxTimeMS"] = self.milliseconds_left()
        return command

    async def behind_barrier(self) -> Timestamp:
        """Wait until A holds every acknowledged write; the time of A to read at.

        A write that no driver sends again (updateMany, deleteMany) waits for longer than a read: it
        has written nothing yet, and would rather be late than fail.
        """
        found = self.tiering
        if found is not None and found.quarantined:
            raise CommandError(
                Code.OperationFailed,
                f"{self.namespace} has documents that the archive couldn't take (see the condition "
                "Degraded and the feeder's status): a write whose matches must be looked for in the "
                "archive is refused until that is resolved",
            )
        repeated = "txnNumber" in self.request.command.fields
        patience = None if repeated else PATIENCE_SECONDS
        return await self.gateway.barrier.passed(
            self.request.deadline, patience=patience, whole=(self.namespace,)
        )


def _footing(coverage: Coverage) -> tuple[object, ...]:
    return (
        coverage.state,
        coverage.epoch,
        coverage.fast_uuid,
        coverage.archive_uuid,
        coverage.unique,
        coverage.keep_all and coverage.complete,
    )


def _named_in_fast(command: Command, coverage: Coverage) -> Command:
    """A ``collectionUUID`` that a client knows from listing the archive's collections, as F knows it."""
    given = command.get("collectionUUID")
    if coverage.fast_uuid is None or coverage.archive_uuid is None:
        return command
    if given is None or bytes(given) != coverage.archive_uuid.bytes:
        return command
    uuid = Binary.from_uuid(coverage.fast_uuid)
    return command.changed({"collectionUUID": element("collectionUUID", uuid)})

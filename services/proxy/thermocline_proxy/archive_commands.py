"""Commands that the archive alone answers: on untiered namespaces, and about none at all."""

import bson
from bson.timestamp import Timestamp

from thermocline_common.coverage import State, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import ARRAY, DOCUMENT, elements
from thermocline_proxy import reads
from thermocline_proxy.commands import change_streams, snapshots
from thermocline_proxy.commands.catalog import CLOSED_DATABASES, Entry, Kind
from thermocline_proxy.commands.command import Command, element
from thermocline_proxy.commands.readconcern import (
    SNAPSHOT,
    for_snapshot,
    read_concern,
    timeless,
    untiered_concern,
)
from thermocline_proxy.commands.touched import inner_command, touched
from thermocline_proxy.exchange import read_preference
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.routing.at_snapshot import must_be_whole, quarantined
from thermocline_proxy.routing.snapshot import Snapshot
from thermocline_proxy.wire.decoding import decoded

_CAUSAL_LEVELS = (None, "local", "majority")
_LISTINGS = frozenset({"listDatabases", "listCollections"})
_PATIENCE_SECONDS = 1.0
"""How long a snapshot of untiered collections waits for the barrier, so that tiered ones can follow."""


def is_listed(namespace: str, snapshot: Snapshot) -> bool:
    """Whether either tier's list has the namespace, or a source of it, in whatever state."""
    return any(
        source in snapshot.listed or source in snapshot.tierings
        for source in snapshot.sources(namespace)
    )


class ArchiveCommands:
    """Sends commands to the archive as the client's user."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def statement(self, request: Request, entry: Entry, snapshot: Snapshot) -> bytes:
        """A statement on namespaces that are untiered under ``snapshot``."""
        _refuse_times(request.command)
        command = snapshots.for_archive(await self._watched(request, snapshot))
        preference = read_preference(command) if entry.any_member else None
        in_transaction = "autocommit" in command.fields
        default = self._proxy.settings().default_preference
        if entry.any_member and preference is None and default is not None and not in_transaction:
            preference = default
            command = command.changed({"$readPreference": b"\x03$readPreference\0" + default})
        if in_transaction or entry.kind is Kind.WRITE:
            preference = None
        after: Timestamp | None = None
        concern = read_concern(command)
        if concern.after is not None:
            after = await self._time(request, preference is None)
            command = untiered_concern(command, after)
        elif (
            preference is not None
            and not self._proxy.clock(Tier.FAST).operation
            and concern.valid
            and concern.level in _CAUSAL_LEVELS
        ):
            # The client never got a time, so it can't ask for its own writes by one.
            after = await self._time(request, False)
            level = {} if concern.level is None else {"level": concern.level}
            wanted = {**level, "afterClusterTime": after}
            command = command.changed({"readConcern": element("readConcern", wanted)})
        whole: bool | None = None
        if concern.level == SNAPSHOT and command.name in snapshots.READS and not in_transaction:
            begun, whole = await self._snapshot(request, snapshot)
            after = max((time for time in (after, begun) if time is not None), default=None)
            command = for_snapshot(command, after)
            after = concern.at or after
        self._proxy.observer.count("untiered", Tier.ARCHIVE.value)
        leases = self._proxy.leases
        listed = any(is_listed(namespace, snapshot) for namespace in touched(command, entry).all)
        alive = leases.alive if listed else leases.untiered_alive
        reply = await self._proxy.exchange.run(
            Tier.ARCHIVE,
            request.identity,
            command,
            preference=preference,
            after=after,
            deadline=request.deadline,
            may_send=lambda: alive(snapshot),
        )
        if not reply.ok and change_streams.met_the_feeder(reply.raw):
            raise change_streams.moved(command.namespace)
        if whole is None or not reply.ok:
            return reply.raw
        if listed:
            await self._require_whole(touched(command, entry).all, reply, request, snapshot)
        return snapshots.mark_reply(reply.raw, whole=whole)

    async def _snapshot(
        self, request: Request, snapshot: Snapshot
    ) -> tuple[Timestamp | None, bool]:
        """For a snapshot of untiered collections: a time of A to begin it at (None: any), and whether the
        same snapshot will do for tiered ones. Those must not hold it up for long."""
        at = read_concern(request.command).at
        if at is not None:
            return None, snapshots.is_whole(at)
        if not snapshot.touches_tiered(snapshot.listed | snapshot.tierings.keys()):
            return None, True
        if snapshot.archive_only or not self._proxy.leases.alive(snapshot):
            return None, False
        end = self._proxy.gateway.clock() + _PATIENCE_SECONDS
        deadline = end if request.deadline is None else min(end, request.deadline)
        try:
            return await self._proxy.gateway.barrier.passed(deadline), True
        except CommandError:
            return None, False

    async def _require_whole(
        self, namespaces: frozenset[str], reply: Reply, request: Request, snapshot: Snapshot
    ) -> None:
        """Collections that were tiered not long ago may have been so at the snapshot's time."""
        gateway = self._proxy.gateway
        lookups = reads.Lookups(gateway.tiers, gateway.clock)
        at = snapshots.reply_time(reply.raw)
        lacking = await lookups.quarantined(at, request.deadline)
        for namespace in lacking.intersection(must_be_whole(namespaces, snapshot)):
            refused = quarantined(namespace)
            raise CommandError(refused.code, refused.message)

    async def _watched(self, request: Request, snapshot: Snapshot) -> Command:
        """A change stream as the archive gets it; any other command as it is."""
        tiering = snapshot.tierings.get(request.command.namespace)

        async def now() -> Timestamp | None:
            return await self._time(request, False)

        return await reads.on_archive(
            request.command, None if tiering is None else tiering.coverage, now
        )

    async def _time(self, request: Request, primary: bool) -> Timestamp | None:
        """What "after T" means for an untiered namespace: the archive's primary's current time.

        A read of the primary needs no more than what the proxy has seen of it.
        """
        if not primary or not self._proxy.clock(Tier.ARCHIVE).operation:
            await self._proxy.exchange.refresh(Tier.ARCHIVE, request.identity, request.deadline)
        return self._proxy.clock(Tier.ARCHIVE).operation_time

    async def plain(self, request: Request) -> bytes:
        """A command that goes to the archive's primary as it is."""
        reply = await self._proxy.exchange.run(
            Tier.ARCHIVE, request.identity, timeless(request.command), deadline=request.deadline
        )
        return reply.raw

    async def admin(self, request: Request, entry: Entry) -> bytes:
        """A command about no collection's content."""
        _refuse_times(request.command)
        command = request.command
        preference = read_preference(command) if entry.any_member else None
        if entry.name in _LISTINGS and await self._all_are_there(request):
            preference = None
        if read_concern(command).after is not None:
            command = untiered_concern(command, await self._time(request, preference is None))
        reply = await self._proxy.exchange.run(
            Tier.ARCHIVE,
            request.identity,
            command,
            preference=preference,
            deadline=request.deadline,
        )
        if entry.name == "listDatabases":
            return _without_closed(reply.raw)
        return reply.raw

    async def _all_are_there(self, request: Request) -> bool:
        """Wait until A has every collection that clients have made by an insert, which runs on F; replay makes
        it in A. False: A had them all. After a wait only the primary is sure to have them."""
        snapshot = await self._proxy.leases.untiered(request.deadline)
        database = request.command.database if request.command.name == "listCollections" else None
        unborn = any(
            tiering.coverage.archive_uuid is None
            and tiering.coverage.state is not State.PASSTHROUGH
            and database in (None, namespace.partition(".")[0])
            for namespace, tiering in snapshot.tierings.items()
        )
        if unborn:
            await self._proxy.gateway.barrier.passed(request.deadline)
        return unborn


def _refuse_times(command: Command) -> None:
    """Times of the archive never reach a client, so none can come from one."""
    target = inner_command(command) if command.name == "explain" else command
    if target is None:
        return
    at = read_concern(target).at
    if at is not None and not snapshots.is_archives(at) and "autocommit" not in command.fields:
        raise CommandError(
            Code.InvalidOptions,
            "the archive can't be read at a time of the fast tier: let Thermocline choose the time "
            "(readConcern snapshot without atClusterTime), and use the one that it returns",
        )
    if target.name != "aggregate":
        return
    kind, raw = target.fields.get("pipeline", (0, b""))
    if kind != ARRAY:
        return
    for _, stage_kind, _, start, end in elements(raw):
        if stage_kind != DOCUMENT:
            return
        for name, inner_kind, _, begin, finish in elements(raw[start:end]):
            if name == b"$changeStream" and inner_kind == DOCUMENT:
                options = raw[start:end][begin:finish]
                if any(field == b"startAtOperationTime" for field, *_ in elements(options)):
                    raise CommandError(
                        Code.InvalidOptions,
                        "change streams of the archive can't start at an operation time of the fast "
                        "tier: use resumeAfter or startAfter with a token of the same stream",
                    )
        return


def _without_closed(raw: bytes) -> bytes:
    """A listDatabases reply without Thermocline's own databases."""
    reply = decoded(raw)
    databases = reply.get("databases")
    if databases is None:
        return raw
    kept = [database for database in databases if database["name"] not in CLOSED_DATABASES]
    if len(kept) == len(databases):
        return raw
    reply["databases"] = kept
    if "totalSize" in reply:
        size = sum(database.get("sizeOnDisk", 0) for database in kept)
        reply["totalSize"] = bson.Int64(size)
        reply["totalSizeMb"] = bson.Int64(size // (1024 * 1024))
    return bson.encode(reply)

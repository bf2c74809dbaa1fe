"""One client's read on its way: sends it to a tier under a live lease, within its time budget."""

import contextlib

import bson
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DOCUMENT
from thermocline_proxy.commands import snapshots
from thermocline_proxy.commands.command import Command, element, raw_element
from thermocline_proxy.commands.readconcern import (
    LINEARIZABLE,
    for_archive,
    for_fast,
    for_snapshot,
    on_primary,
    read_concern,
    untiered_concern,
)
from thermocline_proxy.ports import Gateway, Reply, Request
from thermocline_proxy.reads.replies import first_batch
from thermocline_proxy.routing.at_snapshot import must_be_whole
from thermocline_proxy.routing.routes import ArchiveRead, Reason, Refused
from thermocline_proxy.routing.snapshot import Snapshot


class LeaseEnded(Exception):
    """The snapshot's lease ran out before something could be sent: decide again with a new one."""


class Sender:
    """Sends one request's command, and variations of it. ``snapshot`` is replaced when its lease ends."""

    def __init__(
        self, request: Request, gateway: Gateway, snapshot: Snapshot, namespaces: frozenset[str]
    ) -> None:
        self.request = request
        self.gateway = gateway
        self.snapshot = snapshot
        self.namespaces = namespaces
        self.primary = self._on_primary(Tier.FAST)
        self.reason: Reason | None = None
        """Why the tier is asked that was counted last."""
        self._sent = False

    def _on_primary(self, tier: Tier) -> bool:
        """Whether the client's preference, or else the tier's, is its primary."""
        command = self.request.command
        if not on_primary(command) or "$readPreference" in command.fields:
            return on_primary(command)
        return read_concern(command).level == LINEARIZABLE or self.gateway.preference(tier) is None

    @property
    def command(self) -> Command:
        """The client's command."""
        return self.request.command

    def coverages(self) -> list[Coverage]:
        """The coverage documents of every tiered namespace that the read touches."""
        found = [self.snapshot.tiering(namespace) for namespace in sorted(self.namespaces)]
        return [tiering.coverage for tiering in found if tiering is not None]

    def answered(self, reply: Reply) -> None:
        """Count who answered, for each tiered collection that the read touches."""
        tiered = [name for name in self.namespaces if self.snapshot.tiering(name) is not None]
        if reply.ok and self.reason is not None:
            self.gateway.answered(tiered, reply.tier, self.reason.value)

    async def fast(self, command: Command | None = None, *, to_primary: bool = False) -> Reply:
        """Ask F. Its secondaries (and its primary, where one was just elected) show at least what
        the coverage promises. ``to_primary``: whatever the client prefers."""
        self.check_lease()
        times = [c.published_at for c in self.coverages() if c.published_at is not None]
        command, after = for_fast(command or self.command, max(times, default=None))
        return await self._run(Tier.FAST, command, to_primary or self.primary, after)

    async def stream(self, command: Command) -> Reply:
        """Open a change stream on F: it rests on no floor."""
        self.check_lease()
        after = read_concern(command).after
        return await self._run(Tier.FAST, command, self.primary, after)

    async def archive(self, route: ArchiveRead, command: Command | None = None) -> Reply:
        """Ask A as ``route`` says: behind the barrier, or not before ``archive_time``."""
        command = command or self.command
        after: Timestamp | None = None
        if route.barrier:
            whole = must_be_whole(self.namespaces, self.snapshot)
            after = await self.gateway.barrier.passed(self.request.deadline, whole=whole)
            await self.renew()
        to_primary = route.primary or self._on_primary(Tier.ARCHIVE)
        if after is None and route.tiered:
            times = [c.archive_time for c in self.coverages() if c.archive_time is not None]
            after = max(times, default=None)
        if route.snapshot:
            command = snapshots.for_archive(for_snapshot(command, after))
            after = read_concern(command).at or after
        elif not route.tiered:
            now = await self._archive_now(to_primary=to_primary)
            command, after = snapshots.for_archive(untiered_concern(command, now)), now
            if not self.gateway.leases.alive(self.snapshot):
                raise LeaseEnded
        else:
            command = for_archive(command, after)
        self.check_lease()
        return await self._run(Tier.ARCHIVE, command, to_primary, after)

    async def kill(self, reply: Reply) -> None:
        """Close the cursor of an answer that is thrown away. Best effort: it would time out anyway."""
        batch = first_batch(reply.raw) if reply.ok else None
        if batch is None or batch.cursor_id == 0:
            return
        database, _, collection = batch.namespace.partition(".")
        command = Command(
            bson.encode(
                {
                    "killCursors": collection,
                    "cursors": [Int64(batch.cursor_id)],
                    "$db": database,
                }
            )
        )
        session = self.command.fields.get("lsid")
        if session is not None:
            # A cursor belongs to the session that opened it.
            command = command.changed({"lsid": raw_element("lsid", *session)})
        with contextlib.suppress(CommandError):
            if not self.lease_runs():
                # Nothing is sent without a lease, and an open cursor would hold up evictions.
                await self.gateway.leases.current(self.request.deadline)
            await self.gateway.exchange.run(
                reply.tier, self.request.identity, command, member=reply.member
            )

    def lease_runs(self) -> bool:
        """Whether an answer that rests on the snapshot's floor counts, now that it arrived."""
        return self.gateway.leases.alive(self.snapshot)

    def check_lease(self) -> None:
        """Raise :class:`LeaseEnded` where nothing may be sent any more."""
        if not self.gateway.leases.alive(self.snapshot):
            raise LeaseEnded

    def count(self, reason: Reason, tier: Tier | None) -> None:
        """Count a reason for metrics."""
        self.reason = reason
        self.gateway.count(reason.value, "none" if tier is None else tier.value)

    def refuse(self, route: Refused) -> CommandError:
        """The error of a refused read, counted."""
        self.count(route.reason, None)
        return CommandError(route.code, route.message)

    async def renew(self) -> None:
        """Go on under a live lease, as long as it says the same about where the truth is.

        Floors may have moved: only reads that rest on none go on. Raises :class:`LeaseEnded`.
        """
        if self.gateway.leases.alive(self.snapshot):
            return
        fresh = await self.gateway.leases.current(self.request.deadline)
        before = _whereabouts(self.snapshot, self.namespaces)
        self.snapshot = fresh
        if _whereabouts(fresh, self.namespaces) != before:
            raise LeaseEnded

    async def _archive_now(self, *, to_primary: bool) -> Timestamp | None:
        """A's primary's time now, where a client's "not before" must be kept on A without a barrier."""
        if to_primary and read_concern(self.command).after is None:
            return None
        command = Command(bson.encode({"ping": 1, "$db": "admin"}))
        reply = await self.gateway.exchange.run(Tier.ARCHIVE, self.request.identity, command)
        return reply.operation_time

    async def _run(
        self, tier: Tier, command: Command, to_primary: bool, after: Timestamp | None
    ) -> Reply:
        deadline = self.request.deadline
        if deadline is not None:
            left = deadline - self.gateway.clock()
            if left <= 0:
                raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit")
            if self._sent and "maxTimeMS" in command.fields:
                command = command.changed(
                    {"maxTimeMS": element("maxTimeMS", max(1, int(left * 1000)))}
                )
        self._sent = True
        preference = None if to_primary else self.gateway.preference(tier)
        if preference is not None and "$readPreference" not in command.fields:
            command = command.changed(
                {"$readPreference": raw_element("$readPreference", DOCUMENT, preference)}
            )
        return await self.gateway.exchange.run(
            tier, self.request.identity, command, to_primary=to_primary, after=after
        )


def _whereabouts(snapshot: Snapshot, namespaces: frozenset[str]) -> list[object]:
    """What decides where the truth about these namespaces is, floors left out."""
    found: list[object] = [snapshot.archive_only]
    for namespace in sorted(namespaces):
        tiering = snapshot.tierings.get(namespace)
        if tiering is None:
            found.append(namespace in snapshot.listed)
            continue
        coverage = tiering.coverage
        active = coverage.state is State.ACTIVE or coverage.target is State.PASSTHROUGH
        found.append(
            (coverage.state is State.PASSTHROUGH, active, coverage.epoch, tiering.quarantined)
        )
    return found

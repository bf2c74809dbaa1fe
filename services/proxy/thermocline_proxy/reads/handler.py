"""Answers a client's read: takes the route that the decision names, and falls back to the archive."""

from typing import Final, assert_never

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.commands import snapshots
from thermocline_proxy.commands.command import element
from thermocline_proxy.commands.readconcern import read_concern
from thermocline_proxy.ports import Gateway, Reply, Request
from thermocline_proxy.reads.by_key import Elsewhere, KeyReads
from thermocline_proxy.reads.lookups import Lookups
from thermocline_proxy.reads.replies import error_code, first_batch, is_final_error, name_tier
from thermocline_proxy.reads.sender import LeaseEnded, Sender
from thermocline_proxy.reads.watching import open_stream
from thermocline_proxy.routing import newest
from thermocline_proxy.routing.at_snapshot import must_be_whole, quarantined
from thermocline_proxy.routing.decide import archive_route, decide, namespaces_of
from thermocline_proxy.routing.questions import Question, ask
from thermocline_proxy.routing.routes import (
    AnyRead,
    ArchiveRead,
    FastRead,
    IdsRead,
    NewestRead,
    PointRead,
    Reason,
    Refused,
    Route,
    StreamRead,
    UniqueRead,
    tier_of,
)
from thermocline_proxy.routing.snapshot import Snapshot

ATTEMPTS: Final = 10
"""How often a read starts over because its lease ended under it."""


async def handle(request: Request, gateway: Gateway, snapshot: Snapshot) -> Reply:
    """Answer one read (the :class:`~thermocline_proxy.ports.Handler` of reads).

    Raises ``CommandError`` with what the client gets.
    """
    return await answer(request, gateway, snapshot, Lookups(gateway.tiers, gateway.clock))


async def answer(request: Request, gateway: Gateway, snapshot: Snapshot, lookups: Lookups) -> Reply:
    """:func:`handle`, with the look-ups to use."""
    question = ask(request.command)
    for _ in range(ATTEMPTS):
        route = decide(request.command, snapshot)
        sender = Sender(request, gateway, snapshot, namespaces_of(question, snapshot))
        sender.count(route.reason, tier_of(route))
        if isinstance(route, Refused) and route.wait:
            snapshot = await gateway.leases.wait_for_change(snapshot, request.deadline)
            continue
        try:
            reply = await _Read(sender, question, lookups).take(route)
        except LeaseEnded:
            snapshot = await gateway.leases.current(request.deadline)
        else:
            if not question.explained:
                sender.answered(reply)
            return reply
    raise CommandError(Code.ExceededTimeLimit, "the coverage lease ended again and again")


class _Read:
    """One attempt under one snapshot."""

    def __init__(self, sender: Sender, question: Question, lookups: Lookups) -> None:
        self.sender = sender
        self.question = question
        self.lookups = lookups

    async def take(self, route: Route) -> Reply:
        if isinstance(route, Refused):
            raise CommandError(route.code, route.message)
        if self.question.explained:
            return await self._explain(route)
        if isinstance(route, ArchiveRead):
            return await (
                self._at_one_time(route) if route.snapshot else self.sender.archive(route)
            )
        if isinstance(route, StreamRead):
            coverage = self.sender.snapshot.tierings[self.question.namespace].coverage
            return await open_stream(self.sender, route.watch, coverage)
        try:
            reply = await self._ask_fast(route)
        except Elsewhere as elsewhere:
            return await self._fall_back(elsewhere.reason)
        if reply.tier is Tier.FAST and reply.ok:
            self.sender.gateway.sampler.answered(self.sender.request, reply)
        return reply

    async def _ask_fast(
        self, route: PointRead | UniqueRead | IdsRead | FastRead | NewestRead | AnyRead
    ) -> Reply:
        match route:
            case FastRead():
                return await self._proven()
            case NewestRead():
                return await self._newest(route)
            case AnyRead():
                return await self._any()
        tiering = self.sender.snapshot.tierings[self.question.namespace]
        reads = KeyReads(self.sender, self.lookups, tiering.coverage)
        match route:
            case PointRead():
                return await reads.by_id(route)
            case IdsRead():
                return await reads.by_ids(route)
            case UniqueRead():
                return await reads.by_unique_key(route)
            case _:
                assert_never(route)

    async def _proven(self) -> Reply:
        reply = _usable(await self.sender.fast())
        await self._require_lease(reply)
        return reply

    async def _newest(self, route: NewestRead) -> Reply:
        command = self.sender.command
        if route.batch_size is not None:
            command = command.changed({"batchSize": element("batchSize", route.batch_size)})
        reply = _usable(await self.sender.fast(command))
        await self._require_lease(reply)
        batch = first_batch(reply.raw)
        if batch is None:
            return reply
        whole = batch.cursor_id == 0
        if whole and newest.proves(batch.documents, route.count, route.path, route.floor):
            return reply
        await self.sender.kill(reply)
        raise Elsewhere(Reason.FAST_INCOMPLETE)

    async def _any(self) -> Reply:
        reply = _usable(await self.sender.fast())
        batch = first_batch(reply.raw)
        if batch is None or batch.documents:
            return reply
        await self.sender.kill(reply)
        raise Elsewhere(Reason.FAST_MISS)

    async def _require_lease(self, reply: Reply) -> None:
        """An answer that rests on coverage counts only if the lease still runs when it arrives."""
        if reply.ok and not self.sender.lease_runs():
            await self.sender.kill(reply)
            raise Elsewhere(Reason.LEASE_ENDED)

    async def _fall_back(self, reason: Reason) -> Reply:
        sender = self.sender
        await sender.renew()
        route = archive_route(sender.command, sender.snapshot, reason)
        sender.count(reason, tier_of(route))
        if isinstance(route, Refused):
            raise CommandError(route.code, route.message)
        return await sender.archive(route)

    async def _at_one_time(self, route: ArchiveRead) -> Reply:
        """A snapshot on A. What A lacked at that time may be other than what it lacks now."""
        sender = self.sender
        reply = await sender.archive(route)
        if not reply.ok:
            return reply
        needed = must_be_whole(sender.namespaces, sender.snapshot)
        if needed:
            at = snapshots.reply_time(reply.raw)
            lacking = await self.lookups.quarantined(at, sender.request.deadline)
            for namespace in lacking.intersection(needed):
                await sender.kill(reply)
                raise sender.refuse(quarantined(namespace))
        asked = read_concern(self.question.command).at
        whole = route.barrier if asked is None else snapshots.is_whole(asked)
        raw = snapshots.mark_reply(reply.raw, whole=whole)
        return Reply(raw, reply.tier, reply.member, reply.operation_time)

    async def _explain(self, route: Route) -> Reply:
        """An explanation from the tier that the route asks first; it never runs on both."""
        if not isinstance(route, ArchiveRead):
            reply = await self.sender.fast()
            if reply.ok or is_final_error(error_code(reply.raw)):
                return _named(reply)
        plain = ArchiveRead(route.reason, barrier=False, tiered=False)
        return _named(await self.sender.archive(plain))


def _usable(reply: Reply) -> Reply:
    """F's reply, unless it is an error that only says that F can't answer."""
    if not reply.ok and not is_final_error(error_code(reply.raw)):
        raise Elsewhere(Reason.FAST_ERROR)
    return reply


def _named(reply: Reply) -> Reply:
    raw = name_tier(reply.raw, reply.tier) if reply.ok else reply.raw
    return Reply(raw, reply.tier, reply.member, reply.operation_time)

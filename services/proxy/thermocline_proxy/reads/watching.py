"""Change streams of one tiered collection: opened on F, and followed from batch to batch.

What an application sees is what it did itself: F's events but for copies and evictions. The stream
ends with an error that isn't resumable as soon as F no longer has the say.
"""

import contextlib
from dataclasses import replace
from typing import Final

import bson
from bson.int64 import Int64

from thermocline_common.coverage import Coverage, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.commands import change_streams
from thermocline_proxy.commands.change_streams import RESUMABLE, Watch, moved
from thermocline_proxy.commands.command import Command, raw_element
from thermocline_proxy.commands.resume_tokens import NO_COLLECTION, parse_token
from thermocline_proxy.open_streams import OpenStream
from thermocline_proxy.ports import Gateway, Reply, Request
from thermocline_proxy.reads.looking_up import READY_SECONDS, brought_back, make_ready
from thermocline_proxy.reads.sender import LeaseEnded, Sender
from thermocline_proxy.reads.stream_replies import StreamBatch, not_found, stream_batch, with_mark
from thermocline_proxy.routing.decide import on_fast_by_state
from thermocline_proxy.routing.snapshot import Snapshot

ATTEMPTS: Final = 5
"""How often a stream is opened, where documents that it looks up had been evicted."""


async def open_stream(sender: Sender, watch: Watch, coverage: Coverage) -> Reply:
    """Open a stream on F. Raises ``CommandError``: 286 where it can't begin at that point."""
    change_streams.check_on_fast(watch, coverage)
    command = change_streams.for_fast(sender.command, coverage.activated_at)
    gateway = sender.gateway
    start = change_streams.start_of(watch)
    if watch.hides and start is not None:
        scan = change_streams.scan_of_updates(sender.command)
        await make_ready(sender.request, gateway, coverage, scan, start)
    for _ in range(ATTEMPTS):
        reply = await sender.stream(command)
        batch = stream_batch(reply.raw) if reply.ok else None
        if batch is None:
            return reply
        if not sender.lease_runs():
            await sender.kill(reply)
            raise LeaseEnded
        if batch.invalidated:
            raise moved(coverage.namespace)
        missing = not_found(batch) if watch.looks_up else ()
        if missing and await brought_back(gateway, coverage, missing):
            await sender.kill(reply)
            continue
        if batch.cursor_id:
            ready = gateway.clock() + READY_SECONDS
            stream = OpenStream(
                coverage.namespace, watch.looks_up, watch.hides, sender.command, batch.token, ready
            )
            gateway.streams.remember(batch.cursor_id, stream)
        return _marked(reply, batch, coverage)
    raise CommandError(
        Code.ExceededTimeLimit,
        "documents that the change stream looks up were evicted again and again",
        labels=(RESUMABLE,),
    )


async def before_more(
    request: Request, gateway: Gateway, cursor_id: int, snapshot: Snapshot
) -> None:
    """Before a getMore: have in F what a stream looks up without showing whether it found it."""
    stream = gateway.streams.find(cursor_id)
    if stream is None or not stream.hides or gateway.clock() < stream.ready_until:
        return
    token = parse_token(stream.token)
    tiering = snapshot.tiering(stream.namespace)
    if token is None or tiering is None or not on_fast_by_state(tiering.coverage):
        return
    ready = gateway.clock() + READY_SECONDS
    scan = change_streams.scan_of_updates(stream.opened, stream.token)
    await make_ready(request, gateway, tiering.coverage, scan, token.time)
    gateway.streams.remember(cursor_id, replace(stream, ready_until=ready))


async def follow(reply: Reply, request: Request, gateway: Gateway, before: Snapshot) -> Reply:
    """The reply to a getMore as the client gets it; ``before``: the snapshot when it was sent.

    Anything but a batch of a stream on one tiered collection is returned as it is. Raises
    ``CommandError``: 286 where the stream is over, 43 where the driver has to open it anew.
    """
    batch = stream_batch(reply.raw)
    if batch is None and change_streams.met_the_feeder(reply.raw):
        gateway.streams.forget(int(request.command.get("getMore")))
        raise moved(f"{request.command.database}.{request.command.get('collection')}")
    if batch is None or batch.namespace.endswith(".$cmd.aggregate"):
        return reply
    coverage = await _coverage(batch.namespace, request, gateway, before)
    if coverage is None and reply.tier is Tier.ARCHIVE:
        return reply
    cursor_id = int(request.command.get("getMore"))
    if (
        coverage is None
        # Also on the way to the fast tier: another proxy may know already that the switch is over, and
        # from then on the feeder's writes are what the archive shows.
        or reply.tier is Tier.ARCHIVE
        or not on_fast_by_state(coverage)
        or batch.invalidated
    ):
        await _close(reply, batch, request, gateway, cursor_id)
        raise moved(batch.namespace)
    missing = not_found(batch)
    stream = gateway.streams.find(cursor_id)
    if missing and (
        stream is None or (stream.looks_up and await brought_back(gateway, coverage, missing))
    ):
        # Opened anew, it finds them: here is known whether they are to be looked up at all.
        await _close(reply, batch, request, gateway, cursor_id)
        raise CommandError(
            Code.CursorNotFound,
            "the change stream has to be opened anew, for documents that it looks up had been evicted",
            labels=(RESUMABLE,),
        )
    if stream is not None and batch.cursor_id:
        gateway.streams.remember(cursor_id, replace(stream, token=batch.token))
    return _marked(reply, batch, coverage)


def _marked(reply: Reply, batch: StreamBatch, coverage: Coverage) -> Reply:
    origin = NO_COLLECTION if coverage.fast_uuid is None else coverage.fast_uuid.bytes
    return replace(reply, raw=with_mark(reply.raw, batch, origin))


async def _coverage(
    namespace: str, request: Request, gateway: Gateway, before: Snapshot
) -> Coverage | None:
    """The coverage of a namespace that isn't in ``Passthrough``; None for every other."""
    snapshot = before
    if not gateway.leases.alive(snapshot):
        snapshot = await gateway.leases.untiered(request.deadline)
        if namespace not in snapshot.listed and namespace not in snapshot.tierings:
            return None
        snapshot = await gateway.leases.current(request.deadline)
    tiering = snapshot.tiering(namespace)
    return None if tiering is None else tiering.coverage


async def _close(
    reply: Reply, batch: StreamBatch, request: Request, gateway: Gateway, cursor_id: int
) -> None:
    """Kill the cursor behind a reply that is thrown away. Best effort: it would time out anyway."""
    gateway.streams.forget(cursor_id)
    if batch.cursor_id == 0:
        return
    database, _, collection = batch.namespace.partition(".")
    command = Command(
        bson.encode(
            {"killCursors": collection, "cursors": [Int64(batch.cursor_id)], "$db": database}
        )
    )
    session = request.command.fields.get("lsid")
    if session is not None:
        command = command.changed({"lsid": raw_element("lsid", *session)})
    with contextlib.suppress(CommandError):
        await gateway.exchange.run(reply.tier, request.identity, command, member=reply.member)

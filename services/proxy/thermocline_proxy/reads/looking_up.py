"""Updated documents that a change stream looks up, brought back where they were evicted meanwhile.

The server looks a document up when the event is read, not when it happened. What the client's own
stages make of a missing one can't be seen in the answer, so for pipelines that could hide it, every
document updated since the stream's position is brought back before the server goes on. An event
younger than half an announcement's wait needs none of that: its document is still there.
"""

from typing import Final

from bson.int64 import Int64
from pymongo.errors import PyMongoError

from thermocline_common import copy_in
from thermocline_common.coverage import Coverage, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId, elements
from thermocline_common.timing import ANNOUNCE_SECONDS, KEEP_SECONDS
from thermocline_proxy.commands.change_streams import RESUMABLE
from thermocline_proxy.commands.command import Command, build, raw_element
from thermocline_proxy.commands.resume_tokens import parse_token
from thermocline_proxy.ports import Gateway, Reply, Request
from thermocline_proxy.reads.stream_replies import stream_batch

YOUNG_SECONDS: Final = ANNOUNCE_SECONDS / 2
READY_SECONDS: Final = KEEP_SECONDS
"""What was brought back stays for longer; within this, nothing needs to be done again."""
MOST_IDS: Final = 20_000


async def brought_back(gateway: Gateway, coverage: Coverage, ids: tuple[DocId, ...]) -> bool:
    """Whether any of these exists: then it is in F now, and stays for a while. Raises ``CommandError``."""
    try:
        kept = await copy_in.keep(gateway.tiers, coverage, ids)
    except copy_in.CannotCopy as error:
        raise CommandError(Code.OperationFailed, str(error)) from error
    except (copy_in.CollectionChanged, PyMongoError) as error:
        raise CommandError(
            Code.ExceededTimeLimit,
            f"documents that the change stream looks up can't be read: {error}",
            labels=(RESUMABLE,),
        ) from error
    return bool(kept.present)


async def make_ready(
    request: Request, gateway: Gateway, coverage: Coverage, scan: Command, start: int
) -> None:
    """Have every document in F that was updated from ``start`` (a time of F, 64 bits) on.

    ``scan``: the change stream that shows the updates since the client's position. Raises ``CommandError``.
    """
    reply = await gateway.exchange.run(Tier.FAST, request.identity, scan)
    now = 0 if reply.operation_time is None else reply.operation_time.time
    if now - (start >> 32) < YOUNG_SECONDS:
        await _end(request, gateway, reply)
        return
    ids: dict[DocId, None] = {}
    try:
        while True:
            batch = stream_batch(reply.raw) if reply.ok else None
            if batch is None or batch.invalidated:
                return  # the client's own stream meets the same
            for _, _, _, begin, end in elements(batch.events):
                ids[_key(batch.events[begin:end])] = None
            token = parse_token(batch.token)
            if token is None or (token.time >> 32) >= now or batch.cursor_id == 0:
                break
            if len(ids) > MOST_IDS:
                raise CommandError(
                    Code.OperationFailed,
                    f"more than {MOST_IDS} documents were updated since the position of a change stream "
                    "whose stages use the looked-up documents: open it without such stages",
                )
            reply = await gateway.exchange.run(
                Tier.FAST, request.identity, _more(scan, batch.cursor_id), member=reply.member
            )
    finally:
        await _end(request, gateway, reply)
    await brought_back(gateway, coverage, tuple(ids))


def _key(event: bytes) -> DocId:
    for name, _, _, start, end in elements(event):
        if name == b"documentKey":
            return DocId.of_document(event[start:end])
    raise KeyError("documentKey")


def _more(scan: Command, cursor_id: int) -> Command:
    fields = {
        "getMore": Int64(cursor_id),
        "collection": scan.collection,
        "maxTimeMS": 1,
        "$db": scan.database,
    }
    return build(fields, _session(scan))


async def _end(request: Request, gateway: Gateway, reply: Reply) -> None:
    batch = stream_batch(reply.raw) if reply.ok else None
    if batch is None or batch.cursor_id == 0:
        return
    database, _, collection = batch.namespace.partition(".")
    fields = {"killCursors": collection, "cursors": [Int64(batch.cursor_id)], "$db": database}
    await gateway.exchange.run(
        Tier.FAST, request.identity, build(fields, _session(request.command)), member=reply.member
    )


def _session(command: Command) -> list[bytes]:
    session = command.fields.get("lsid")
    return [] if session is None else [raw_element("lsid", *session)]

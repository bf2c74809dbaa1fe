"""Reads in a transaction on F: those that F alone is proven to answer as of the transaction's time."""

from thermocline_proxy.commands.command import element
from thermocline_proxy.ports import Reply
from thermocline_proxy.reads.replies import first_batch
from thermocline_proxy.routing import newest
from thermocline_proxy.routing.decide import decide
from thermocline_proxy.routing.questions import ask
from thermocline_proxy.routing.routes import (
    AnyRead,
    FastRead,
    IdsRead,
    NewestRead,
    PointRead,
    Reason,
    UniqueRead,
)
from thermocline_proxy.transactions.refusals import needs_archive
from thermocline_proxy.transactions.statement import Statement


async def read(statement: Statement) -> Reply:
    """Answer one read. Raises ``Cold``, ``Failed``, or ``CommandError`` 263."""
    concern = {"level": "snapshot", "atClusterTime": statement.pin.at}
    judged = statement.command.changed({"readConcern": element("readConcern", concern)})
    route = decide(judged, statement.snapshot)
    match route:
        case FastRead():
            return await statement.inside.send(statement.command)
        case PointRead():
            return await _point(statement, route)
        case IdsRead():
            await statement.expect_seen(route.ids)
            return await statement.inside.send(statement.command)
        case UniqueRead():
            return await _unique(statement, route)
        case NewestRead():
            return await _newest(statement, route)
        case AnyRead():
            reply = await statement.inside.send(statement.command)
            if not _found(reply):
                query = ask(statement.command).filter
                assert query is not None
                await statement.expect_no_cold(query, {}, most=1)
            return reply
        case _:
            raise _refused(statement, route.reason)


async def _point(statement: Statement, route: PointRead) -> Reply:
    """A snapshot answers the same twice: what it lacks may be asked for afterwards."""
    if statement.command.name != "find":
        await statement.expect_seen([route.id])
        return await statement.inside.send(statement.command)
    reply = await statement.inside.send(statement.command)
    if not _found(reply):
        if route.whole:
            await statement.expect_absent([route.id])
        else:
            await statement.expect_seen([route.id])
    return reply


async def _unique(statement: Statement, route: UniqueRead) -> Reply:
    reply = await statement.inside.send(statement.command)
    if not _found(reply):
        holder = await statement.inside.matches(statement.namespace, route.key, limit=1)
        if not holder:
            await statement.expect_no_cold(route.key, {}, most=1)
    return reply


async def _newest(statement: Statement, route: NewestRead) -> Reply:
    command = statement.command
    if route.batch_size is not None:
        command = command.changed({"batchSize": element("batchSize", route.batch_size)})
    reply = await statement.inside.send(command)
    batch = first_batch(reply.raw)
    if (
        batch is not None
        and batch.cursor_id == 0
        and newest.proves(batch.documents, route.count, route.path, route.floor)
    ):
        return reply
    raise _refused(statement, Reason.FAST_INCOMPLETE)


def _found(reply: Reply) -> bool:
    batch = first_batch(reply.raw)
    return batch is None or bool(batch.documents)


def _refused(statement: Statement, reason: Reason) -> Exception:
    return needs_archive(statement.namespace, reason.value)

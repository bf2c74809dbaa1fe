"""The entry point for writes on tiered namespaces: which procedure serves a command, and its errors."""

from typing import Final

from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
)

from thermocline_common.errors import NOT_PRIMARY, Code, CommandError
from thermocline_proxy.answered import as_answered
from thermocline_proxy.ports import Gateway, Reply, Request
from thermocline_proxy.routing.snapshot import Snapshot
from thermocline_proxy.writes import schema
from thermocline_proxy.writes.batches import write_batch
from thermocline_proxy.writes.look_back import executed_find_and_modify
from thermocline_proxy.writes.run import ATTEMPTS, Moved, Run
from thermocline_proxy.writes.singles import delete_one, update_one
from thermocline_proxy.writes.statements import KINDS, parse_batch
from thermocline_proxy.writes.targets import FindAndModifyTarget

FIND_AND_MODIFY: Final = frozenset({"findAndModify", "findandmodify"})
RETRYABLE_CODES: Final = NOT_PRIMARY | {
    Code.HostUnreachable,
    Code.NetworkTimeout,
    Code.ExceededTimeLimit,
}
_RETRYABLE_LABEL: Final = "RetryableWriteError"


async def handle(request: Request, gateway: Gateway, snapshot: Snapshot) -> Reply:
    """Serve one write on a namespace that is tiered, pausing, or was left by a switch not long ago.

    Raises ``CommandError``, as it is to be answered.
    """
    run = Run(request, gateway, snapshot)
    try:
        return await _serve(run)
    except CommandError as error:
        raise _labelled(error, request) from error
    except PyMongoError as error:
        failed = _of_lookup(error, limited=request.deadline is not None)
        raise _labelled(failed, request) from error


async def _serve(run: Run) -> Reply:
    command = run.request.command
    if "autocommit" in command.fields:
        raise CommandError(
            Code.OperationNotSupportedInTransaction,
            f"{run.namespace} is tiered: it can't be written in a transaction",
        )
    if command.name in KINDS:
        batch = parse_batch(command)
        if batch is None:
            return await _refused_by_server(run)
        return await write_batch(run, batch)
    if command.name in FIND_AND_MODIFY:
        target = FindAndModifyTarget(command)
        if not target.well_formed:
            return await _refused_by_server(run)
        return await _find_and_modify(run, target)
    change = schema.CHANGES.get(command.name)
    if change is not None:
        return await schema.on_both(run, change)
    raise CommandError(
        Code.CommandNotSupported,
        f"{command.name} isn't supported on a tiered collection",
    )


async def _refused_by_server(run: Run) -> Reply:
    """For what a server refuses before it executes anything: its own words."""
    for _ in range(ATTEMPTS):
        coverage = await run.coverage()
        try:
            if coverage is None:
                return await run.send_archive(run.request.command)
            return await run.send(coverage, run.request.command)
        except Moved:
            continue
    raise _too_slow(run)


async def _find_and_modify(run: Run, target: FindAndModifyTarget) -> Reply:
    for _ in range(ATTEMPTS):
        coverage = await run.coverage()
        tiering = run.tiering
        try:
            if tiering is not None and tiering.coverage.look_back is not None:
                known = await executed_find_and_modify(run, tiering.coverage.look_back, target)
                if known is not None:
                    return known
            if coverage is None:
                return await run.send_archive(target.original)
            if target.remove:
                return await delete_one(run, coverage, target)
            return await update_one(run, coverage, target)
        except Moved:
            continue
    raise _too_slow(run)


def _too_slow(run: Run) -> CommandError:
    return CommandError(
        Code.ExceededTimeLimit,
        f"{run.namespace}: the documents of this write couldn't be made ready in time",
    )


def _of_lookup(error: PyMongoError, *, limited: bool) -> CommandError:
    """What a look-up of the proxy's own ran into, as the client is told."""
    if isinstance(error, AutoReconnect | ConnectionFailure):
        return CommandError(Code.HostUnreachable, f"a look-up for this write failed: {error}")
    if isinstance(error, OperationFailure) and error.code is not None:
        return as_answered(error, limited=limited)
    return CommandError(Code.HostUnreachable, f"a look-up for this write failed: {error}")


def _labelled(error: CommandError, request: Request) -> CommandError:
    """A driver repeats a retryable write where the answer says so by a label."""
    retryable = "txnNumber" in request.command.fields and error.code in RETRYABLE_CODES
    if retryable and _RETRYABLE_LABEL not in error.labels:
        return CommandError(
            error.code,
            error.message,
            code_name=error.code_name,
            labels=(*error.labels, _RETRYABLE_LABEL),
        )
    return error

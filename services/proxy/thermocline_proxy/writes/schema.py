"""``create``, ``createIndexes``, ``dropIndexes`` and ``collMod`` that both tiers can do: A first, then F.

Unique indexes aren't among them: whoever calls this sees to that. What a crash leaves between the two
tiers is mended by the warmer's parity check.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, CommandError
from thermocline_common.indexes import list_indexes
from thermocline_common.tiers import PLAIN
from thermocline_proxy.commands.command import Command, build, raw_element
from thermocline_proxy.ports import Reply
from thermocline_proxy.writes import schema_parts as parts
from thermocline_proxy.writes.replies import succeeded
from thermocline_proxy.writes.run import ATTEMPTS, Moved, Run
from thermocline_proxy.writes.statements import fields_of, number

_KEPT: Final = ("lsid", "writeConcern", "$clusterTime", "$db")


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of command.

    ``check`` raises ``Refused`` for what can't be tiered. ``before`` looks at A for what ``undo`` needs.
    ``for_fast`` is what F gets; None: nothing. ``undo`` makes the command that takes the change back
    in A: of the command, A's reply and what ``before`` saw; None: nothing can be, or is to be, undone.
    ``harmless``: codes of F that mean that F is as wanted.
    """

    check: Callable[[Command], None]
    before: Callable[[Run], Awaitable[Any]]
    for_fast: Callable[[Command], Command | None]
    undo: Callable[[Command, bytes, Any], Command | None]
    harmless: frozenset[int]


async def on_both(run: Run, change: Change) -> Reply:
    """Run the command in both tiers, or in neither."""
    command = run.request.command
    change.check(command)
    for _ in range(ATTEMPTS):
        coverage = await run.coverage()
        try:
            if coverage is None:
                return await run.send_archive(command)
            await run.behind_barrier()
            seen = await change.before(run)
            await run.on_same_footing(coverage)
            reply = await run.send_archive(command)
        except Moved:
            continue  # nothing was done yet
        if not succeeded(reply.raw):
            return reply
        return await _follow(run, change, coverage, reply, seen)
    raise CommandError(
        Code.ExceededTimeLimit, f"{command.name}: {run.namespace} kept changing; try again"
    )


async def _follow(run: Run, change: Change, coverage: Coverage, reply: Reply, seen: Any) -> Reply:
    """F's part, after A's ``reply``. A namespace that is switched meanwhile gets it from A."""
    command = change.for_fast(run.request.command)
    now: Coverage | None = coverage
    while command is not None and now is not None:
        try:
            fast = await run.send(now, command)
        except Moved:
            now = await run.coverage()
            continue
        code = number(fields_of(fast.raw).get(b"code"))
        if succeeded(fast.raw) or code in change.harmless:
            return Reply(reply.raw, fast.tier, fast.member, fast.operation_time)
        back = change.undo(run.request.command, reply.raw, seen)
        if back is not None and await _may_undo(run, back):
            await _take_back(run, back)
        return fast
    return reply


async def _take_back(run: Run, back: Command) -> None:
    for _ in range(ATTEMPTS):
        await run.coverage()
        with contextlib.suppress(Moved):
            await run.send_archive(back)
            return


async def _may_undo(run: Run, back: Command) -> bool:
    """A collection made just now by this very command is dropped again only while it is empty."""
    if back.name != "drop":
        return True
    collection = run.gateway.tiers.archive[run.database][run.collection]
    return await collection.find_one({}, {"_id": 1}) is None


async def _nothing(run: Run) -> None:
    return None


async def _indexes(run: Run) -> list[dict[str, Any]]:
    return await list_indexes(run.gateway.tiers.archive, run.namespace)


async def _options(run: Run) -> Mapping[str, Any]:
    database = run.gateway.tiers.archive.get_database(run.database, codec_options=PLAIN)
    reply = await database.command(
        {"listCollections": 1, "filter": {"name": run.collection}}, codec_options=PLAIN
    )
    batch = reply["cursor"]["firstBatch"]
    return dict(batch[0].get("options", {})) if batch else {}


def _undoing(command: Command, fields: Mapping[str, Any]) -> Command:
    """A command on the same collection, in the same session, with the same write concern."""
    kept = [raw_element(n, *command.fields[n]) for n in _KEPT if n in command.fields]
    return build(fields, kept)


def _drop(command: Command, reply: bytes, seen: Any) -> Command | None:
    return _undoing(command, {"drop": command.collection})


def _drop_indexes(command: Command, reply: bytes, seen: Any) -> Command | None:
    """Only if none of the indexes had been there before; parity reports any other difference."""
    names = parts.built_by(command, reply)
    return _undoing(command, {"dropIndexes": command.collection, "index": names}) if names else None


def _rebuild_indexes(command: Command, reply: bytes, seen: Any) -> Command | None:
    specs = parts.dropped_by(command, seen)
    if not specs:
        return None
    return _undoing(command, {"createIndexes": command.collection, "indexes": specs})


def _restore_options(command: Command, reply: bytes, seen: Any) -> Command | None:
    fields = parts.former_options(command, reply, seen)
    return _undoing(command, {"collMod": command.collection, **fields}) if fields else None


_DROP_INDEXES: Final = Change(
    parts.no_check,
    _indexes,
    parts.same,
    _rebuild_indexes,
    frozenset({Code.IndexNotFound, Code.NamespaceNotFound}),
)
CHANGES: Final[Mapping[str, Change]] = {
    "create": Change(
        parts.refuse_untierable, _nothing, parts.same, _drop, frozenset({Code.NamespaceExists})
    ),
    "createIndexes": Change(
        parts.no_check, _nothing, parts.indexes_without_expiry, _drop_indexes, frozenset()
    ),
    "dropIndexes": _DROP_INDEXES,
    "deleteIndexes": _DROP_INDEXES,
    "collMod": Change(
        parts.no_check,
        _options,
        parts.options_without_expiry,
        _restore_options,
        frozenset({Code.NamespaceNotFound}),
    ),
}

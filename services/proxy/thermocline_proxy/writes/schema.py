"""``create`` and ``createIndexes`` on a tiered namespace: on A behind the barrier, then on F."""

from typing import Final

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code
from thermocline_common.ids import ARRAY, wrap
from thermocline_proxy.commands.command import Command, raw_element
from thermocline_proxy.ports import Reply
from thermocline_proxy.writes.filters import is_simple_collation
from thermocline_proxy.writes.refusal import Refused
from thermocline_proxy.writes.replies import succeeded
from thermocline_proxy.writes.run import Run
from thermocline_proxy.writes.statements import fields_of, number, replaced, truth

_NOT_TIERED: Final = {
    "capped": "capped collections",
    "timeseries": "time-series collections",
    "clusteredIndex": "clustered collections",
    "viewOn": "views under a tiered name",
    "encryptedFields": "encrypted collections",
    "expireAfterSeconds": "time-series collections",
}
_EXPIRE: Final = b"expireAfterSeconds"


async def create(run: Run) -> Reply:
    """Create the collection in both tiers. What can't be tiered is refused."""
    command = run.request.command
    refuse_untierable(command)
    coverage = await run.coverage()
    if coverage is None:
        return await run.send_archive(command)
    await run.behind_barrier()
    await run.on_same_footing(coverage)
    reply = await run.send_archive(command)
    if not succeeded(reply.raw):
        return reply
    fast = await run.send(coverage, command)
    if not succeeded(fast.raw) and _code(fast.raw) != Code.NamespaceExists:
        # Empty, and made just now by this very command: A must not keep what F refuses.
        await _undo_create(run)
        return fast
    return Reply(reply.raw, fast.tier, fast.member, fast.operation_time)


async def _undo_create(run: Run) -> None:
    collection = run.gateway.tiers.archive[run.database][run.collection]
    if await collection.find_one({}, {"_id": 1}) is None:
        command = run.request.command.changed({})
        drop = Command(_drop_body(command))
        await run.send_archive(drop)


def _drop_body(command: Command) -> bytes:
    kept = ("$db", "lsid", "writeConcern", "$clusterTime")
    parts = [raw_element("drop", *command.fields["create"])]
    parts += [raw_element(n, *command.fields[n]) for n in kept if n in command.fields]
    return wrap(*parts)


def refuse_untierable(command: Command) -> None:
    """Raise ``Refused`` for options of ``create`` that a tiered collection can't have."""
    for name, what in _NOT_TIERED.items():
        if name in command.fields and (name != "capped" or truth(command.fields[name])):
            raise Refused(f"{what} can't be tiered: take {command.namespace} out of the policies")
    collation = command.fields.get("collation")
    if collation is not None and not is_simple_collation(collation[1]):
        raise Refused(
            "a tiered collection can't have a default collation: give the collation with each "
            "statement, or to an index"
        )


async def create_indexes(run: Run) -> Reply:
    """Build indexes that aren't unique in both tiers, A first, without expiry in F."""
    command = run.request.command
    refuse_unique(command)
    coverage = await run.coverage()
    if coverage is None:
        return await run.send_archive(command)
    await run.behind_barrier()
    await run.on_same_footing(coverage)
    reply = await run.send_archive(command)
    if not succeeded(reply.raw):
        return reply
    fast = await _build_in_fast(run, coverage, command)
    if not succeeded(fast.raw):
        await _undo_indexes(run, command, reply.raw)
        return fast
    return Reply(reply.raw, fast.tier, fast.member, fast.operation_time)


async def _build_in_fast(run: Run, coverage: Coverage, command: Command) -> Reply:
    specs = [
        replaced(raw, {_EXPIRE: None}) if _EXPIRE in fields_of(raw) else raw
        for raw in command.documents("indexes")
    ]
    listed = wrap(*(b"\x03" + str(i).encode() + b"\0" + raw for i, raw in enumerate(specs)))
    return await run.send(
        coverage, command.changed({"indexes": raw_element("indexes", ARRAY, listed)})
    )


async def _undo_indexes(run: Run, command: Command, reply: bytes) -> None:
    """Drop in A what this command built there: only if none of its indexes had been there before."""
    fields = fields_of(reply)
    specs = command.documents("indexes")
    built = number(fields.get(b"numIndexesAfter")) - number(fields.get(b"numIndexesBefore"))
    if built != len(specs):
        return  # some were there before; the warmer's parity check reports the difference
    names = [fields_of(raw)[b"name"] for raw in specs]
    listed = wrap(
        *(bytes((k,)) + str(i).encode() + b"\0" + value for i, (k, value) in enumerate(names))
    )
    kept = ("$db", "lsid", "writeConcern", "$clusterTime")
    parts = [
        raw_element("dropIndexes", *command.fields[command.name]),
        raw_element("index", ARRAY, listed),
    ]
    parts += [raw_element(n, *command.fields[n]) for n in kept if n in command.fields]
    await run.send_archive(Command(wrap(*parts)))


def refuse_unique(command: Command) -> None:
    """Raise ``Refused`` for unique indexes, which need every document of both tiers at once."""
    for raw in command.documents("indexes"):
        fields = fields_of(raw)
        if truth(fields.get(b"unique")) or truth(fields.get(b"prepareUnique")):
            raise Refused(
                "a unique index can't be built on a collection while it is tiered: set the mode "
                "Passthrough, build it, and set Active again"
            )


def _code(raw: bytes) -> int:
    return number(fields_of(raw).get(b"code"))

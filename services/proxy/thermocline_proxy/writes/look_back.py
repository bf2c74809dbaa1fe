"""Retryable writes after a switch of the tier that takes writes: were they executed on the other one?

Only the tier that executed a statement knows; executed again on the other tier it would count twice.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import bson
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.ids import DOCUMENT, wrap
from thermocline_proxy.commands.command import Command, element, raw_element
from thermocline_proxy.ports import Reply
from thermocline_proxy.writes.filters import NOTHING, both
from thermocline_proxy.writes.replies import parse_outcome, succeeded
from thermocline_proxy.writes.run import Run
from thermocline_proxy.writes.statements import Batch, Kind, fields_of, number
from thermocline_proxy.writes.targets import FindAndModifyTarget

_LOOKUP_MS = 5_000
_NO_COLLECTION = b"\x05collectionUUID\0\x10\0\0\0\x04" + b"\0" * 16


@dataclass(frozen=True, slots=True)
class Executed:
    """What the tier left behind knows: ``indexes`` of the statements that it executed, and its
    ``reply`` (whose own indexes count the statements that it was asked about)."""

    indexes: tuple[int, ...]
    reply: Reply


class Sessions:
    """Sessions whose writes from before a switch are over: the lowest ``txnNumber`` that was looked up
    in vain, by switch, user and session.

    A session does one thing after the other with growing numbers, so a higher one is newer than that
    look-up, which came after the switch. Forgetting one only costs another look-up.
    """

    def __init__(self, limit: int = 50_000) -> None:
        self._limit = limit
        self._vain: dict[Hashable, int] = {}

    def newer(self, key: Hashable, txn_number: int) -> bool:
        """Whether a command with this number can't have been executed before the switch."""
        found = self._vain.get(key)
        return found is not None and txn_number >= found

    def note(self, key: Hashable, txn_number: int) -> None:
        """The tier left behind doesn't know this number, nor a later one."""
        if len(self._vain) >= self._limit:
            del self._vain[next(iter(self._vain))]
        self._vain[key] = min(txn_number, self._vain.get(key, txn_number))


_sessions = Sessions()


def _switch(coverage: Coverage) -> Hashable:
    """Tells this switch of the namespace from all others.

    Each activation makes F's collection anew; ``raised`` doesn't change in ``Passthrough`` and does
    with each change of state.
    """
    if coverage.state is State.ACTIVE:
        return (coverage.namespace, coverage.fast_uuid)
    return (coverage.namespace, coverage.state, coverage.raised)


async def known_elsewhere(run: Run, tier: Tier) -> bool:
    """Whether the other tier has heard of the command's ``txnNumber`` (or a later one) in its session."""
    command = run.request.command
    lsid = command.get("lsid")
    if lsid is None or "txnNumber" not in command.fields:
        return False
    txn_number = number(command.fields["txnNumber"])
    key = None
    if run.held is not None:
        key = (tier, _switch(run.held), run.request.identity, bytes(lsid.raw))
        if _sessions.newer(key, txn_number):
            return False
    known = await _ask(run, tier, lsid, txn_number)
    if key is not None and not known:
        _sessions.note(key, txn_number)
    return known


async def _ask(run: Run, tier: Tier, lsid: RawBSONDocument, txn_number: int) -> bool:
    session = fields_of(bytes(lsid.raw))
    if b"id" not in session:
        return False
    low = wrap(raw_element("id", *session[b"id"]))
    high = wrap(raw_element("id", *session[b"id"]), bytes(bson.encode({"uid": MaxKey()})[4:-1]))
    between = wrap(raw_element("$gte", DOCUMENT, low), raw_element("$lt", DOCUMENT, high))
    query: dict[str, Any] = {
        "_id": RawBSONDocument(between),
        "txnNum": {"$gte": bson.Int64(txn_number)},
    }
    tiers = run.gateway.tiers
    client = tiers.fast if tier is Tier.FAST else tiers.archive
    async with run.bounded():
        reply = await client["config"].command(
            {
                "find": "transactions",
                "filter": query,
                "projection": {"_id": 1},
                "limit": 1,
                "singleBatch": True,
                "readConcern": {"level": "linearizable"},
                "maxTimeMS": _LOOKUP_MS,
            },
            read_preference=ReadPreference.PRIMARY,
        )
    return bool(reply["cursor"]["firstBatch"])


async def executed_statements(
    run: Run, tier: Tier, batch: Batch, indexes: Sequence[int]
) -> Executed | None:
    """Which of these statements the tier left behind has executed, with the reply for them.

    A reply that isn't ``ok`` is the command's answer. None: it has executed none of them.
    """
    if not batch.retryable or not await known_elsewhere(run, tier):
        return None
    reply = await run.ask(tier, question(batch, indexes))
    if not succeeded(reply.raw):
        return Executed(tuple(indexes), reply)
    outcome = parse_outcome(reply.raw)
    assert batch.stmt_ids is not None
    known = set(outcome.retried)
    done = tuple(i for i in indexes if batch.stmt_ids[i] in known)
    if not done:
        return None
    run.gateway.count("write-executed-before-switch", tier.value)
    return Executed(done, Reply(_without_errors(reply.raw), tier, reply.member))


def question(batch: Batch, indexes: Sequence[int]) -> Command:
    """The statements in a form in which none can be executed; those that were are answered for."""
    if batch.kind is Kind.INSERT:
        command = batch.part(indexes)
        changes: dict[str, bytes | None] = {
            "collectionUUID": _NO_COLLECTION,
            "ordered": element("ordered", False),
        }
        if "apiStrict" in command.fields:
            changes["apiStrict"] = None  # which knows no collectionUUID
        return command.changed(changes)
    statements = [batch.statements[i] for i in indexes]
    harmless = [s.changed(query=both(s.query, NOTHING), upsert=False) for s in statements]
    return batch.part(indexes, harmless)


def _without_errors(raw: bytes) -> bytes:
    """The reply without what the question itself ran into."""
    return wrap(
        *(
            raw_element(name.decode(), *field)
            for name, field in fields_of(raw).items()
            if name != b"writeErrors"
        )
    )


async def executed_find_and_modify(
    run: Run, tier: Tier, target: FindAndModifyTarget
) -> Reply | None:
    """The recorded reply of the tier left behind; None: it hasn't executed this."""
    if not await known_elsewhere(run, tier):
        return None
    harmless = target.command(query=both(target.query, NOTHING))
    reply = await run.ask(tier, harmless)
    if target.inserted_before(reply.raw):
        reply = await run.ask(tier, target.original)
    if not succeeded(reply.raw) or b"retriedStmtId" in fields_of(reply.raw):
        run.gateway.count("write-executed-before-switch", tier.value)
        return reply
    return None

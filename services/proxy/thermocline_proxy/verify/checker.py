"""Checks one answer of the fast tier: against the archive, and what differs at points common to both tiers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import bson
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from thermocline_common.coverage import Coverage, Tier
from thermocline_common.errors import CommandError, ThermoclineError
from thermocline_common.ids import DOCUMENT, DocId, elements
from thermocline_proxy.commands.command import Command, build
from thermocline_proxy.commands.readconcern import for_archive
from thermocline_proxy.ports import Gateway, Identity, Reply
from thermocline_proxy.reads.replies import first_batch
from thermocline_proxy.routing.questions import Question, ask
from thermocline_proxy.verify.answers import Comparison, by_id, compare, digest
from thermocline_proxy.verify.points import (
    Found,
    NotComparable,
    Point,
    common_point,
    coverage_at,
    differences,
)
from thermocline_proxy.verify.questions import Asked, ask_again, at_time, scan

POINTS: Final = 3
"""At so many points, each with a barrier before it, a document must differ."""
PAUSE_SECONDS: Final = 1.0
"""Between them."""
MAX_SCANNED: Final = 5_000
"""Documents of each tier that are looked at where an answer doesn't show what it was made of."""
SCAN_REST_SECONDS: Final = 5.0
"""Between two such looks: some answers differ by right each time (the order in ``$push``, sums of fractions)."""


class Outcome(StrEnum):
    """What became of a sample; counted by these names."""

    SAME = "same"
    MOVED = "moved"
    """The answers differ, the tiers don't: something was written in between, or either answer is right."""
    DIFFERENT = "different"
    UNEXPLAINED = "unexplained"
    """The answers differ at one point too, but no document that they could be about does."""
    UNDECIDED = "undecided"
    """It couldn't be checked: the archive didn't answer in time, or the documents kept changing."""
    UNSUITED = "unsuited"
    """No two answers to this could be compared."""
    DROPPED = "dropped"
    """Too many waited."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer of the fast tier. ``command``: as the client sent it. ``reply``: the raw document."""

    command: Command
    identity: Identity | None
    reply: bytes


Differing = tuple[Coverage, Mapping[DocId, Found]]
"""A namespace's differences, with its coverage document as it was at the point where they were found."""
Suspects = Mapping[str, tuple[DocId, ...]]


@dataclass(frozen=True, slots=True)
class Result:
    """``differences``: by namespace, as at the last point."""

    outcome: Outcome
    differences: Mapping[str, Differing] = field(default_factory=dict)


@dataclass(slots=True)
class Checker:
    """Everything is asked on primaries, as the client's own user what is the client's question."""

    gateway: Gateway
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    _scanned_at: float = float("-inf")

    async def check(self, sample: Sample) -> Result:
        """Check one answer. Never raises for what the tiers do; it ends within a minute."""
        try:
            async with asyncio.timeout(60):
                return await _Check(self, sample, ask(sample.command)).run()
        except (CommandError, PyMongoError, ThermoclineError, TimeoutError):
            return Result(Outcome.UNDECIDED)

    def may_scan(self) -> bool:
        """Whether it is time for another look at many documents; True begins one."""
        now = self.gateway.clock()
        if now - self._scanned_at < SCAN_REST_SECONDS:
            return False
        self._scanned_at = now
        return True


@dataclass(slots=True)
class _Check:
    checker: Checker
    sample: Sample
    question: Question

    async def run(self) -> Result:
        asked = ask_again(self.sample.command, self.sample.reply)
        if asked is None:
            return Result(Outcome.UNSUITED)
        after = await self.checker.gateway.barrier.passed(None)
        answer = await self._ask(Tier.ARCHIVE, for_archive(asked.command, after), after)
        comparison = compare(asked.shape, self.sample.reply, answer.raw, simple=asked.simple)
        if comparison.equal:
            return Result(Outcome.SAME)
        return await self._look_again(asked, comparison)

    async def _look_again(self, asked: Asked, comparison: Comparison) -> Result:
        """The first comparison only raised a suspicion: the two answers are of different moments."""
        suspects = self._own(comparison)
        before: dict[str, Mapping[DocId, Found]] = {}
        found: dict[str, Differing] = {}
        for turn in range(POINTS):
            if turn:
                await self.checker.pause(PAUSE_SECONDS)
            await self.checker.gateway.barrier.passed(None)
            point = await common_point(self.checker.gateway.tiers)
            if suspects is None:
                comparison = await self._again_at(asked, point)
                if comparison.equal:
                    return Result(Outcome.MOVED)
                suspects = self._own(comparison)
            if suspects is None:
                if not self.checker.may_scan():
                    return Result(Outcome.UNDECIDED)
                suspects = await self._scan(point)
                if not suspects:
                    return Result(Outcome.UNEXPLAINED)
            found = await self._differences(suspects, point)
            if not found:
                return Result(Outcome.MOVED)
            if turn:
                found = _standing(found, before)
                if not found:
                    return Result(Outcome.UNDECIDED)
            before = {namespace: documents for namespace, (_, documents) in found.items()}
            suspects = {namespace: tuple(documents) for namespace, documents in before.items()}
        return Result(Outcome.DIFFERENT, found)

    def _own(self, comparison: Comparison) -> Suspects | None:
        if comparison.suspects is None:
            return None
        return {self.question.namespace: comparison.suspects}

    async def _differences(self, suspects: Suspects, point: Point) -> dict[str, Differing]:
        found: dict[str, Differing] = {}
        tiers = self.checker.gateway.tiers
        for namespace, ids in suspects.items():
            coverage = await coverage_at(tiers, namespace, point)
            documents = await differences(tiers, coverage, ids, point)
            if documents:
                found[namespace] = (coverage, documents)
        return found

    async def _again_at(self, asked: Asked, point: Point) -> Comparison:
        """The client's question on both tiers, at one point."""
        here = await self._ask(Tier.FAST, at_time(asked, point.fast).command, point.fast)
        there = await self._ask(Tier.ARCHIVE, at_time(asked, point.archive).command, point.archive)
        return compare(asked.shape, here.raw, there.raw, simple=asked.simple)

    async def _scan(self, point: Point) -> dict[str, tuple[DocId, ...]]:
        """Which of the documents that the question is about differ."""
        pipeline = self.question.pipeline
        joined = frozenset() if pipeline is None else pipeline.joined
        found = {}
        for namespace in sorted({self.question.namespace} | joined):
            here, here_whole = await self._digests(
                Tier.FAST, scan(self.question, namespace, point.fast), point.fast
            )
            there, there_whole = await self._digests(
                Tier.ARCHIVE, scan(self.question, namespace, point.archive), point.archive
            )
            if not there_whole:
                here = {i: content for i, content in here.items() if i in there}
            if not here_whole:
                there = {i: content for i, content in there.items() if i in here}
            suspects = by_id(here, there).suspects
            if suspects:
                found[namespace] = suspects
        return found

    async def _digests(
        self, tier: Tier, command: Command, time: Timestamp
    ) -> tuple[dict[DocId, bytes], bool]:
        """The digests of a find's documents, by id, and whether it was all of them."""
        found: dict[DocId, bytes] = {}
        reply = await self._ask(tier, command, time, keep=True)
        batch = first_batch(reply.raw)
        cursor_id, documents = (0, ()) if batch is None else (batch.cursor_id, batch.documents)
        try:
            while True:
                found |= {DocId.of_document(document): digest(document) for document in documents}
                if not cursor_id or len(found) >= MAX_SCANNED:
                    return found, not cursor_id
                more = {"getMore": Int64(cursor_id), "collection": command.collection}
                fields = {**more, "batchSize": 500, "$db": command.database}
                answer = await self._send(tier, build(fields), None, reply.member)
                cursor_id, documents = _next_batch(answer.raw)
        finally:
            await self._kill(tier, command, reply, cursor_id)

    async def _ask(
        self, tier: Tier, command: Command, after: Timestamp, *, keep: bool = False
    ) -> Reply:
        """One question to a primary; its cursor is closed at once, or ``keep``. Raises :class:`NotComparable`."""
        reply = await self._send(tier, command, after, None)
        if not keep:
            batch = first_batch(reply.raw)
            await self._kill(tier, command, reply, 0 if batch is None else batch.cursor_id)
        return reply

    async def _send(
        self, tier: Tier, command: Command, after: Timestamp | None, member: str | None
    ) -> Reply:
        reply = await self.checker.gateway.exchange.run(
            tier, self.sample.identity, command, after=after, member=member
        )
        if not reply.ok:
            raise NotComparable(f"the {tier.value} tier answered {reply.decode().get('codeName')}")
        return reply

    async def _kill(self, tier: Tier, command: Command, reply: Reply, cursor_id: int) -> None:
        """An open cursor would hold up evictions."""
        if cursor_id:
            fields = {"killCursors": command.collection, "cursors": [Int64(cursor_id)]}
            with contextlib.suppress(CommandError, ThermoclineError):
                kill = Command(bson.encode({**fields, "$db": command.database}))
                await self._send(tier, kill, None, reply.member)


def _standing(
    found: Mapping[str, Differing],
    before: Mapping[str, Mapping[DocId, Found]],
) -> dict[str, Differing]:
    """The differences that were there at the point before, with the same content in F.

    A transaction that is too large for one batch reaches the archive in parts, ahead of the checkpoint;
    by the next point it is whole, and a document that others write has another content in F by then.
    """
    left: dict[str, Differing] = {}
    for namespace, (coverage, documents) in found.items():
        known = before.get(namespace, {})
        same = {i: f for i, f in documents.items() if i in known and known[i].content == f.content}
        if same:
            left[namespace] = (coverage, same)
    return left


def _next_batch(reply: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Cursor id and documents of a getMore's reply."""
    for name, kind, _, start, end in elements(reply):
        if name == b"cursor" and kind == DOCUMENT:
            cursor = reply[start:end]
            cursor_id = 0
            documents: tuple[bytes, ...] = ()
            for key, _, _, begin, stop in elements(cursor):
                if key == b"id":
                    cursor_id = int.from_bytes(cursor[begin:stop], "little", signed=True)
                elif key == b"nextBatch":
                    array = cursor[begin:stop]
                    documents = tuple(array[one:two] for _, _, _, one, two in elements(array))
            return cursor_id, documents
    return 0, ()

"""Applies one batch's verdicts, whatever the archive refuses: conflicts, sizes, quarantine."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymongo.errors import OperationFailure, PyMongoError

from thermocline_common.errors import Code, ThermoclineError
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import Client, find_raw
from thermocline_feeder import writer
from thermocline_feeder.checkpoint import Quarantined, quarantine_field
from thermocline_feeder.plan.batches import (
    MAX_BATCH_BYTES,
    Unwritable,
    commands,
    parts,
    total_bytes,
)
from thermocline_feeder.plan.failures import Writing, after_writing
from thermocline_feeder.plan.known import Known, plain_ids
from thermocline_feeder.plan.verdicts import Verdict

log = logging.getLogger(__name__)

RETRIES = 8
CONFLICT_ROUNDS = 20
CONFLICT_DOCUMENTS = 50

Key = tuple[str, DocId]
Judge = Callable[[str, list[DocId]], Awaitable[list[Verdict]]]
"""Verdicts on more ids of a namespace, at the same cluster time as the batch."""


class TooManyRefused(ThermoclineError):
    """More documents are refused than are an exception: the checkpoint stops here."""


class CollectionReplaced(ThermoclineError):
    """The archive's collection isn't the one that was activated."""

    def __init__(self, namespace: str, error: Exception) -> None:
        super().__init__(
            f"{namespace}: the archive's collection was dropped or replaced from outside ({error}); replay "
            "stops until it is restored there"
        )
        self.namespace = namespace


@dataclass(slots=True)
class Prepared:
    """A batch with F's state at one time, ready to be applied."""

    verdicts: list[Verdict]
    touched: Mapping[str, Collection[DocId]]
    """Every id of the batch by namespace, also those without a verdict."""
    fields: Mapping[str, Any]
    """The checkpoint's fields that this batch brings: its time and what goes with it."""
    judge: Judge
    changes: int = 0
    read_at: float = 0.0
    reading: float = 0.0
    """Seconds that the archive read ahead for it."""
    later: bool = False
    fresh: Mapping[str, set[DocId]] = field(default_factory=dict)
    """Ids by namespace that A probably lacks."""
    pairs: Mapping[str, Hashable] = field(default_factory=dict)
    """By namespace what names the present pair of collections; without it nothing is known or learned."""
    plain: Mapping[str, set[DocId]] | None = None
    """:func:`plain_ids` of the verdicts, worked out while the archive had the batch before; None: not yet."""


@dataclass(slots=True)
class _Attempt:
    verdicts: list[Verdict]
    refused: dict[Key, Quarantined] = field(default_factory=dict)
    anew: set[str] = field(default_factory=set)
    reinsert: set[Key] = field(default_factory=set)
    most_bytes: int = MAX_BATCH_BYTES
    rounds: int = 0
    plain: Mapping[str, set[DocId]] = field(default_factory=dict)
    fresh: Mapping[str, set[DocId]] = field(default_factory=dict)
    alike: Mapping[str, set[DocId]] = field(default_factory=dict)

    def guess_no_more(self) -> bool:
        """Write in the way that rests on nothing. Whether there was a guess that A lacks something."""
        guessed = any(self.fresh.values())
        self.fresh, self.alike = {}, {}
        return guessed

    def drop(self, keys: set[Key]) -> None:
        self.verdicts = [v for v in self.verdicts if (v.namespace, v.id) not in keys]


class Applier:
    """Owns the list of quarantined documents while this process owns replay."""

    def __init__(self, archive: Client, me: uuid.UUID, quarantine_limit: int) -> None:
        self._archive = archive
        self._me = me
        self._limit = quarantine_limit
        self.quarantine: dict[Key, Quarantined] = {}
        self.known = Known()
        self.parts_applied = 0
        self.conflicts = 0

    def reset(self, quarantine: Sequence[Quarantined]) -> None:
        """Take over what the checkpoint lists."""
        self.quarantine = {entry.key: entry for entry in quarantine}
        self.known.clear()

    async def apply(self, prepared: Prepared) -> None:
        """Apply a batch and move the checkpoint with it.

        Raises :class:`writer.Fenced`, :class:`TooManyRefused`, :class:`CollectionReplaced`, or
        PyMongo's errors after some attempts; then nothing of the batch's checkpoint was written.
        """
        attempt = self._begin(prepared)
        try:
            await self._until_applied(prepared, attempt)
        except BaseException:
            self.known.clear()  # whatever was committed of it
            raise
        self._settle(prepared, attempt)

    def _begin(self, prepared: Prepared) -> _Attempt:
        """What can be known of the batch beforehand."""
        plain = plain_ids(prepared.verdicts) if prepared.plain is None else prepared.plain
        attempt = _Attempt(list(prepared.verdicts), fresh=prepared.fresh, plain=plain)
        attempt.alike = {
            namespace: self.known.among(namespace, prepared.pairs[namespace], ids)
            for namespace, ids in attempt.plain.items()
            if namespace in prepared.pairs
        }
        return attempt

    async def _until_applied(self, prepared: Prepared, attempt: _Attempt) -> None:
        retries = 0
        while True:
            try:
                await self._once(prepared, attempt)
            except Unwritable as refusal:
                attempt.guess_no_more()
                self._refuse(attempt, (refusal.namespace, refusal.id), 0, str(refusal))
            except writer.Unexpected:
                attempt.guess_no_more()
            except writer.Refused as refusal:
                if attempt.guess_no_more() and after_writing(refusal.code) is Writing.CONFLICT:
                    continue
                retries = await self._after_refusal(prepared, attempt, refusal, retries)
            except writer.RefusedWhole as refusal:
                attempt.guess_no_more()
                retries = await self._after_whole(attempt, refusal, retries)
            except OperationFailure as error:
                attempt.guess_no_more()
                self.known.clear()
                labels = (error.details or {}).get("errorLabels", ())
                what = after_writing(error.code, labels, str(error))
                if error.code in (Code.TransactionTooLargeForCache, 290):
                    what = Writing.PARTS
                if what is Writing.PARTS and self._halve(attempt):
                    continue
                if what is not Writing.RETRY:
                    raise
                retries = await self._pause(retries, error)
            except PyMongoError as error:
                attempt.guess_no_more()
                self.known.clear()
                retries = await self._pause(retries, error)
            else:
                return

    async def _once(self, prepared: Prepared, attempt: _Attempt) -> None:
        quarantine = self._quarantine_after(prepared, attempt)
        if len(quarantine) > self._limit:
            raise TooManyRefused(
                f"the archive refuses more than {self._limit} documents; replay stops until that is mended"
            )
        fields = dict(prepared.fields)
        if quarantine != self.quarantine:
            fields["quarantine"] = quarantine_field(quarantine.values())
        groups = parts(attempt.verdicts, attempt.most_bytes) or [[]]
        how = (
            frozenset(attempt.reinsert),
            frozenset(attempt.anew),
            attempt.fresh,
            attempt.alike,
        )
        for group in groups[:-1]:
            await writer.apply(self._archive, self._me, commands(group, *how), {})
            self.parts_applied += 1
        await writer.apply(self._archive, self._me, commands(groups[-1], *how), fields)

    def _quarantine_after(self, prepared: Prepared, attempt: _Attempt) -> dict[Key, Quarantined]:
        touched = prepared.touched
        kept = {k: q for k, q in self.quarantine.items() if k[1] not in touched.get(k[0], ())}
        return kept | attempt.refused

    def _settle(self, prepared: Prepared, attempt: _Attempt) -> None:
        after = self._quarantine_after(prepared, attempt)
        for key in after.keys() - self.quarantine.keys():
            log.warning(
                "the archive refuses a document; it is kept in the fast tier",
                extra={"namespace": key[0], "code": after[key].code, "reason": after[key].reason},
            )
        self.quarantine = after
        self._learn(prepared, attempt)

    def _learn(self, prepared: Prepared, attempt: _Attempt) -> None:
        written: dict[str, set[DocId]] = {}
        for verdict in attempt.verdicts:
            written.setdefault(verdict.namespace, set()).add(verdict.id)
        for namespace, ids in written.items():
            if namespace in prepared.pairs:
                plain = attempt.plain.get(namespace, set()) & ids
                self.known.learn(namespace, prepared.pairs[namespace], plain, ids - plain)
            else:
                self.known.forget(namespace)

    def _refuse(self, attempt: _Attempt, key: Key, code: int, reason: str) -> None:
        attempt.refused[key] = Quarantined(key[0], key[1], code, reason[:500])
        attempt.drop({key})
        # What was refused before is likely to be so again; its own turn comes every minute, alone.
        present = {(v.namespace, v.id) for v in attempt.verdicts}
        again = {k: q for k, q in self.quarantine.items() if k in present}
        if again:
            attempt.refused.update(again)
            attempt.drop(set(again))

    async def _after_refusal(
        self, prepared: Prepared, attempt: _Attempt, refusal: writer.Refused, retries: int
    ) -> int:
        what = after_writing(refusal.code, text=str(refusal))
        key = refusal.key
        if what is Writing.RETRY:
            return await self._pause(retries, refusal)
        if what is Writing.CONFLICT:
            await self._resolve_conflict(prepared, attempt, refusal)
        elif what is Writing.REINSERT and key not in attempt.reinsert:
            attempt.reinsert.add(key)
        elif what is Writing.PARTS and self._halve(attempt):
            pass
        elif what is Writing.CHANGED:
            raise CollectionReplaced(refusal.command.namespace, refusal) from refusal
        else:
            self._refuse(attempt, key, refusal.code, str(refusal))
        return retries

    async def _after_whole(
        self, attempt: _Attempt, refusal: writer.RefusedWhole, retries: int
    ) -> int:
        error = refusal.error
        labels = (error.details or {}).get("errorLabels", ())
        what = after_writing(error.code, labels, str(error))
        if error.code in (Code.TransactionTooLargeForCache, 290):
            what = Writing.PARTS
        if what is Writing.PARTS and self._halve(attempt):
            return retries
        if what in (Writing.RETRY, Writing.PARTS, Writing.STOP):
            return await self._pause(retries, error)
        if what is Writing.CHANGED:
            raise CollectionReplaced(refusal.command.namespace, error) from error
        await self._narrow_down(attempt, refusal)
        return retries

    async def _narrow_down(self, attempt: _Attempt, refusal: writer.RefusedWhole) -> None:
        """Find the documents that a command is refused for by halving it, in transactions of their own."""
        attempt.rounds += 1
        suspects = set(refusal.command.ids)
        namespace = refusal.command.namespace
        mine = [v for v in attempt.verdicts if v.namespace == namespace and v.id in suspects]
        pending = [mine]
        while pending:
            group = pending.pop()
            if not group:
                continue
            try:
                await writer.apply(
                    self._archive,
                    self._me,
                    commands(group, frozenset(attempt.reinsert), frozenset(attempt.anew)),
                    {},
                )
            except (writer.RefusedWhole, writer.Refused) as error:
                if len(group) > 1:
                    half = len(group) // 2
                    pending += [group[:half], group[half:]]
                    continue
                code = (
                    error.code if isinstance(error, writer.Refused) else int(error.error.code or 0)
                )
                given_up = attempt.rounds > CONFLICT_ROUNDS
                what = after_writing(code, text=str(error))
                if what is Writing.QUARANTINE or (given_up and what is not Writing.RETRY):
                    self._refuse(attempt, (namespace, group[0].id), code, str(error))

    async def _resolve_conflict(
        self, prepared: Prepared, attempt: _Attempt, refusal: writer.Refused
    ) -> None:
        self.conflicts += 1
        namespace = refusal.command.namespace
        if namespace not in attempt.anew:
            attempt.anew.add(namespace)
            return
        attempt.rounds += 1
        known = {v.id for v in attempt.verdicts if v.namespace == namespace}
        holders: list[DocId] = []
        if attempt.rounds <= CONFLICT_ROUNDS:
            holders = [i for i in await self._holders(refusal) if i not in known]
        verdicts = await prepared.judge(namespace, holders) if holders else []
        refused = {key for key in attempt.refused if key[0] == namespace}
        verdicts = [v for v in verdicts if (v.namespace, v.id) not in refused]
        if verdicts:
            attempt.verdicts = attempt.verdicts + verdicts
        else:
            self._refuse(attempt, refusal.key, refusal.code, str(refusal))

    async def _holders(self, refusal: writer.Refused) -> list[DocId]:
        """Ids of the archive's documents that hold the unique key which the refused document needs."""
        pattern, value = refusal.details.get("keyPattern"), refusal.details.get("keyValue")
        if pattern is None or value is None:
            return []
        namespace = refusal.command.namespace
        database, collection = namespace.split(".", 1)
        command: dict[str, Any] = {
            "find": collection,
            "filter": {name: {"$eq": value[name]} for name in pattern},
            "projection": {"_id": 1},
            "limit": CONFLICT_DOCUMENTS,
            "readConcern": {"level": "majority"},
        }
        collation = refusal.details.get("collation")
        if collation is not None:
            command["collation"] = collation
        return [
            DocId.of_document(bytes(document.raw))
            async for document in find_raw(self._archive, database, command)
        ]

    def _halve(self, attempt: _Attempt) -> bool:
        size = total_bytes(attempt.verdicts)
        if len(attempt.verdicts) < 2 or attempt.most_bytes <= 1:
            return False
        attempt.most_bytes = max(1, min(attempt.most_bytes, size) // 2)
        log.warning(
            "a transaction is too large for the archive and is applied in parts",
            extra={"bytes": size},
        )
        return True

    async def _pause(self, retries: int, error: Exception) -> int:
        if retries >= RETRIES:
            raise (
                error
                if isinstance(error, PyMongoError)
                else OperationFailure(str(error), getattr(error, "code", None))
            )
        await asyncio.sleep(min(1.0, 0.005 * 2**retries))
        return retries + 1

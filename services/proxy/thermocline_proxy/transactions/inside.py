"""Sends commands within the client's own transaction on F, as the client."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Tier
from thermocline_common.errors import INTERRUPTIONS, Code
from thermocline_common.ids import DocId, elements, in_filter
from thermocline_common.portions import portions
from thermocline_proxy.commands.command import Command, build, element, raw_element
from thermocline_proxy.exchange import LeaseLapsed
from thermocline_proxy.ports import Identity, Reply, Request
from thermocline_proxy.transactions.pins import Pin
from thermocline_proxy.transactions.refusals import no_such_transaction
from thermocline_proxy.writes.replies import succeeded
from thermocline_proxy.writes.statements import fields_of, number

_OWN = ("lsid", "txnNumber", "autocommit")
_BARE = (*_OWN, "startTransaction", "readConcern", "stmtId", "stmtIds", "$clusterTime")


class Sending(Protocol):
    """The part of the exchange that transactions use."""

    async def run(
        self,
        tier: Tier,
        identity: Identity | None,
        command: Command,
        *,
        deadline: float | None = None,
        may_send: Callable[[], bool] | None = None,
    ) -> Reply:
        """See :class:`~thermocline_proxy.exchange.TierExchange`."""
        ...


class Failed(Exception):
    """F refused a command, which ended the transaction there: its reply is the client's answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply

    @property
    def final(self) -> bool:
        """Whether the statement was tried, and a repetition as it is would fail again."""
        fields = fields_of(self.reply.raw)
        return b"errorLabels" not in fields and number(fields.get(b"code")) != Code.Unauthorized


class LookUpFailed(Failed):
    """What F refused is not the client's command, but a look for the documents that it is about."""

    @property
    def of_statement(self) -> bool:
        """Whether the statement's filter is at fault, so that one MongoDB would answer with a write error."""
        return self.final and number(fields_of(self.reply.raw).get(b"code")) not in INTERRUPTIONS


def bare(command: Command) -> Command:
    """The command without what makes it part of a session and a transaction."""
    return command.changed({name: None for name in _BARE if name in command.fields})


class Inside:
    """One statement's way into its transaction. ``may_send``: whether a transaction may begin now."""

    def __init__(
        self, exchange: Sending, request: Request, pin: Pin, may_send: Callable[[], bool]
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._pin = pin
        self._may_send = may_send
        fields = request.command.fields
        self._own: dict[str, bytes | None] = {n: raw_element(n, *fields[n]) for n in _OWN}

    async def send(self, command: Command) -> Reply:
        """Send a bare command; the first one begins the transaction, at the pin's time.

        Raises :class:`Failed`, and what the exchange raises: ``LeaseLapsed`` before the first was sent.
        """
        pin = self._pin
        if pin.over:
            raise no_such_transaction(pin.number)
        changes = dict(self._own)
        begins = not pin.started
        if begins:
            changes["startTransaction"] = element("startTransaction", True)
            concern = {"level": "snapshot", "atClusterTime": pin.at}
            changes["readConcern"] = element("readConcern", concern)
        pin.started = True
        try:
            reply = await self._exchange.run(
                Tier.FAST,
                self._request.identity,
                command.changed(changes),
                deadline=self._request.deadline,
                may_send=self._may_send if begins else None,
            )
        except LeaseLapsed:
            pin.started = not begins
            raise
        if not succeeded(reply.raw):
            raise Failed(reply)
        return reply

    async def find(
        self,
        namespace: str,
        query: bytes,
        fields: Mapping[str, Any] | None = None,
        *,
        limit: int = 0,
    ) -> list[bytes]:
        """Raw documents that the transaction sees; ``fields``: more fields of the find command.

        Raises :class:`LookUpFailed`.
        """
        database, _, collection = namespace.partition(".")
        parts: dict[str, Any] = {
            "find": collection,
            "filter": RawBSONDocument(query),
            **(fields or {}),
        }
        parts["batchSize"] = limit or 100_000
        if limit:
            parts |= {"limit": limit, "singleBatch": True}
        parts["$db"] = database
        try:
            documents, cursor_id = _batch(await self.send(build(parts, self._pin.api)))
            while cursor_id:
                more = {"getMore": Int64(cursor_id), "collection": collection, "$db": database}
                batch, cursor_id = _batch(await self.send(build(more, self._pin.api)))
                documents += batch
        except Failed as failed:
            raise LookUpFailed(failed.reply) from None
        return documents

    async def matches(
        self,
        namespace: str,
        query: bytes,
        fields: Mapping[str, Any] | None = None,
        *,
        limit: int = 0,
    ) -> list[DocId]:
        """Ids of the documents that the transaction sees."""
        fields = {"projection": {"_id": 1}, **(fields or {})}
        found = await self.find(namespace, query, fields, limit=limit)
        return [DocId.of_document(document) for document in found]

    async def present(self, namespace: str, ids: Iterable[DocId]) -> frozenset[DocId]:
        """Which of these ids the transaction sees."""
        found: set[DocId] = set()
        for portion in portions(dict.fromkeys(ids)):
            found |= set(await self.matches(namespace, in_filter(portion)))
        return frozenset(found)

    async def documents(self, namespace: str, ids: Sequence[DocId]) -> list[bytes]:
        """The documents of these ids, as the transaction sees them."""
        found: list[bytes] = []
        for portion in portions(ids):
            found += await self.find(namespace, in_filter(portion))
        return found


def _batch(reply: Reply) -> tuple[list[bytes], int]:
    cursor = reply.decode()["cursor"]
    raw = bytes(cursor.raw)
    for name, _, _, start, end in elements(raw):
        if name in (b"firstBatch", b"nextBatch"):
            listed = raw[start:end]
            return [listed[s:e] for _, _, _, s, e in elements(listed)], int(cursor["id"])
    return [], 0

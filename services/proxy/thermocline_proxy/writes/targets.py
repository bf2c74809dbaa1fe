"""A write that is about one document at a time: an update or delete statement, or a findAndModify. Pure."""

from functools import cached_property
from typing import Any, Protocol

from bson.raw_bson import RawBSONDocument

from thermocline_common.ids import ARRAY, DOCUMENT, DocId
from thermocline_proxy.commands.command import CODEC, Command, raw_element
from thermocline_proxy.writes.filters import id_equality, implies_order, is_simple_collation
from thermocline_proxy.writes.replies import find_and_modify_settled, parse_outcome
from thermocline_proxy.writes.statements import EMPTY, Batch, fields_of, is_flag, number, truth

Field = tuple[int, bytes]
_RECORDED_AN_INSERT = 40608
"""A retried findAndModify isn't an upsert, but the recorded one inserted."""


class Target(Protocol):
    """What to find, and how to say it to F in the client's own words."""

    @property
    def query(self) -> bytes:
        """The client's filter."""

    @property
    def doc_id(self) -> DocId | None:
        """The one ``_id`` it is about, where the filter says so."""

    @property
    def collated(self) -> bool:
        """Whether a collation other than the simple one is in force."""

    @property
    def sort(self) -> bytes | None:
        """The order in which the first match is the one; None: any match will do."""

    @property
    def ordered(self) -> bool:
        """Whether not any match will do, but the first: by ``sort``, or by an order of the filter's own."""

    @property
    def upsert(self) -> bool:
        """Whether it inserts where nothing matches."""

    @property
    def update(self) -> Field | None:
        """BSON type and value of the update: a document or a pipeline."""

    def command(
        self, *, query: bytes | None = None, upsert: bool = False, update: Field | None = None
    ) -> Command:
        """The client's command, with another filter or update where one is given; never an upsert unless asked."""

    def settled(self, reply: bytes) -> bool:
        """Whether the reply leaves nothing to look for."""

    def inserted_before(self, reply: bytes) -> bool:
        """Whether the reply to the command without ``upsert`` says that, as an upsert, it was executed
        before and inserted: then only the client's own command gets its recorded reply."""

    def lookup(self) -> dict[str, Any]:
        """Fields of a ``find`` with the same filter (without the filter itself)."""


class StatementTarget:
    """One statement of a batch."""

    def __init__(self, batch: Batch, index: int) -> None:
        self.batch = batch
        self.index = index
        self.statement = batch.statements[index]

    @property
    def query(self) -> bytes:
        return self.statement.query

    @property
    def doc_id(self) -> DocId | None:
        return self.statement.doc_id

    @property
    def collated(self) -> bool:
        return self.statement.collated

    @property
    def sort(self) -> bytes | None:
        return None

    @property
    def ordered(self) -> bool:
        return implies_order(self.query)

    @property
    def upsert(self) -> bool:
        return self.statement.upsert

    @property
    def update(self) -> Field | None:
        return self.statement.fields.get(b"u")

    def command(
        self, *, query: bytes | None = None, upsert: bool = False, update: Field | None = None
    ) -> Command:
        raw = self.statement.changed(query=query, upsert=None if upsert else False, update=update)
        return self.batch.part([self.index], None if raw is self.statement.raw else [raw])

    def settled(self, reply: bytes) -> bool:
        return parse_outcome(reply).settled

    def inserted_before(self, reply: bytes) -> bool:
        return False  # an update statement gets its recorded reply with or without the flag

    def lookup(self) -> dict[str, Any]:
        document = RawBSONDocument(self.statement.raw, CODEC)
        found = {name: document[name] for name in ("collation", "hint") if name in document}
        constants: dict[str, Any] = {}
        for given in (self.batch.command.get("let"), document.get("c")):
            if isinstance(given, RawBSONDocument):
                constants |= dict(given)
        return {**found, "let": constants} if constants else found


class FindAndModifyTarget:
    """A findAndModify command."""

    def __init__(self, command: Command) -> None:
        self.original = command

    def _document(self, name: str) -> bytes | None:
        field = self.original.fields.get(name)
        return field[1] if field is not None and field[0] == DOCUMENT else None

    @property
    def well_formed(self) -> bool:
        """Whether the server wouldn't refuse it before it looks for anything."""
        fields = self.original.fields
        return (
            all(fields[n][0] in (DOCUMENT, 0x0A) for n in ("query", "sort") if n in fields)
            and all(is_flag(fields.get(name)) for name in ("upsert", "remove", "new"))
            and self.remove != ("update" in fields)
            and not (self.remove and (self.upsert or truth(fields.get("new"))))
        )

    @property
    def remove(self) -> bool:
        """Whether it deletes what it finds."""
        return truth(self.original.fields.get("remove"))

    @property
    def query(self) -> bytes:
        return self._document("query") or EMPTY

    @cached_property
    def doc_id(self) -> DocId | None:
        return id_equality(self.query, collated=self.collated)

    @property
    def collated(self) -> bool:
        return not is_simple_collation(self._document("collation"))

    @property
    def sort(self) -> bytes | None:
        sort = self._document("sort")
        return None if sort == EMPTY else sort

    @property
    def ordered(self) -> bool:
        return self.sort is not None or implies_order(self.query)

    @property
    def upsert(self) -> bool:
        return truth(self.original.fields.get("upsert"))

    @property
    def update(self) -> Field | None:
        field = self.original.fields.get("update")
        return field if field is not None and field[0] in (DOCUMENT, ARRAY) else None

    def command(
        self, *, query: bytes | None = None, upsert: bool = False, update: Field | None = None
    ) -> Command:
        changes: dict[str, bytes | None] = {}
        if update is not None:
            changes["update"] = raw_element("update", *update)
        if query is not None:
            changes["query"] = raw_element("query", DOCUMENT, query)
        if not upsert and "upsert" in self.original.fields:
            changes["upsert"] = None
        return self.original.changed(changes) if changes else self.original

    def settled(self, reply: bytes) -> bool:
        return find_and_modify_settled(reply)

    def inserted_before(self, reply: bytes) -> bool:
        return self.upsert and number(fields_of(reply).get(b"code")) == _RECORDED_AN_INSERT

    def lookup(self) -> dict[str, Any]:
        names = ("collation", "hint", "let")
        return {n: self.original.get(n) for n in names if n in self.original.fields}


class NarrowedTarget(StatementTarget):
    """A statement that is meant for every match, for one of the documents. ``query``: its filter for that one."""

    def __init__(self, target: StatementTarget, doc_id: DocId, query: bytes) -> None:
        super().__init__(target.batch, target.index)
        self._narrowed = query
        self._id = doc_id

    @property
    def query(self) -> bytes:
        return self._narrowed

    @property
    def doc_id(self) -> DocId | None:
        return self._id

    @property
    def upsert(self) -> bool:
        return False

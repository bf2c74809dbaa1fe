"""What the archive is asked in place of a client's read. Pure.

The same question, in a form of its own: no session, no read preference, no cursor that stays open. Where
a limit without an order lets a server choose, the archive is asked about the documents that the fast tier
chose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from thermocline_common.ids import ARRAY, DOCUMENT, DocId, array, elements, in_filter, wrap
from thermocline_proxy.commands.command import Command, build, element, raw_element
from thermocline_proxy.commands.readconcern import SNAPSHOT
from thermocline_proxy.reads.replies import first_batch
from thermocline_proxy.routing.questions import EMPTY, Question, ask, number, raw_document
from thermocline_proxy.wire.decoding import decoded

MAX_TIME_MS: Final = 10_000
SCAN_BATCH: Final = 500
_COMMENT: Final = "thermocline: verify"
_KEPT: Final = {
    "find": (
        "filter", "sort", "projection", "skip", "limit", "collation", "hint", "let", "allowDiskUse",
    ),
    "aggregate": ("pipeline", "collation", "hint", "let", "allowDiskUse"),
    "count": ("query", "limit", "skip", "collation", "hint"),
    "distinct": ("key", "query", "collation"),
}  # fmt: skip


class Shape(Enum):
    """How two answers compare."""

    DOCUMENTS = auto()
    """A batch of documents that show their ids."""
    RESULTS = auto()
    """A batch of anything else."""
    COUNT = auto()
    VALUES = auto()


@dataclass(frozen=True, slots=True)
class Asked:
    """``command``: to send to the archive, still without a readConcern. ``simple``: its collation is."""

    command: Command
    shape: Shape
    simple: bool = True


def ask_again(command: Command, reply: bytes) -> Asked | None:
    """The question to the archive for a read and the fast tier's answer; None: there is nothing to compare."""
    question = ask(command)
    simple = question.simple_collation
    match command.name:
        case "find":
            return _find(question, reply)
        case "aggregate":
            return _aggregate(command, reply, simple=simple)
        case "count":
            return Asked(_plain(command, {}), Shape.COUNT, simple)
        case "distinct":
            return Asked(_plain(command, {}), Shape.VALUES, simple)
        case _:
            return None


def _aggregate(command: Command, reply: bytes, *, simple: bool) -> Asked | None:
    batch = first_batch(reply)
    if batch is None:
        return None
    part = bool(batch.cursor_id)
    ordered = b"$sort\0" in command.body
    if not ordered and (part or b"$limit\0" in command.body):
        return None  # any other part would be as right
    cursor = element("cursor", {"batchSize": len(batch.documents) + (0 if part else 1)})
    if part and not batch.documents:
        return None
    return Asked(_plain(command, {"cursor": cursor}), Shape.RESULTS, simple)


def _find(question: Question, reply: bytes) -> Asked | None:
    command = question.command
    batch = first_batch(reply)
    limit, skip, size = (number(command, name) for name in ("limit", "skip", "batchSize"))
    if batch is None or limit is None or skip is None or size is None:
        return None
    count = len(batch.documents)
    if count == 0 and (batch.cursor_id or skip):
        return None
    shape = Shape.DOCUMENTS if shows_ids(raw_document(command, "projection")) else Shape.RESULTS
    once = {"singleBatch": element("singleBatch", True)}
    if not _is_part(command, count, open_cursor=bool(batch.cursor_id)):
        # One more than there were: a document too many shows.
        fields = {**once, "batchSize": element("batchSize", count + 1)}
        return Asked(_plain(command, fields), shape, question.simple_collation)
    fields = {**once, "batchSize": element("batchSize", max(count, 1))}
    if raw_document(command, "sort") != EMPTY and not question.natural:
        return Asked(_plain(command, fields), shape, question.simple_collation)
    if shape is Shape.RESULTS:
        return None  # which documents the fast tier chose doesn't show
    ids = [DocId.of_document(document) for document in batch.documents]
    query = raw_document(command, "filter")
    narrowed = wrap(b"\x04$and\0" + array([(DOCUMENT, query), (DOCUMENT, in_filter(ids))]))
    changed: dict[str, bytes | None] = dict.fromkeys(("sort", "skip", "limit", "hint"))
    changed["filter"] = raw_element("filter", DOCUMENT, narrowed)
    return Asked(_plain(command, fields).changed(changed), shape, question.simple_collation)


def _is_part(command: Command, count: int, *, open_cursor: bool) -> bool:
    """Whether a first batch holds not all that matches, or may not."""
    limit, skip = number(command, "limit") or 0, number(command, "skip") or 0
    once = bool(command.get("singleBatch")) and count > 0
    return open_cursor or skip != 0 or once or (limit != 0 and count >= abs(limit))


def shows_ids(projection: bytes) -> bool:
    """Whether the ``_id`` in an answer is the document's own, under a raw find projection."""
    for name, kind, _, start, end in elements(projection):
        if name != b"_id":
            continue
        value = projection[start:end]
        if kind == 0x01:
            return bool(decoded(projection)["_id"])
        return kind in (0x08, 0x10, 0x12) and any(value)
    return True


def _plain(command: Command, fields: Mapping[str, bytes]) -> Command:
    """The question alone, and these elements."""
    kept = [
        raw_element(name, *command.fields[name])
        for name in (command.name, *_KEPT[command.name])
        if name in command.fields
    ]
    tail = {"maxTimeMS": MAX_TIME_MS, "comment": _COMMENT, "$db": command.database}
    body = wrap(*kept, *fields.values(), bytes(bson.encode(tail)[4:-1]))
    return Command(body, command.sequences)


def at_time(asked: Asked, time: Timestamp) -> Asked:
    """The same question at exactly this time of a tier; a count as the pipeline that snapshots allow."""
    command = asked.command
    if command.name == "count":
        command = _counting(command)
    concern = {"level": SNAPSHOT, "atClusterTime": time}
    return Asked(
        command.changed({"readConcern": element("readConcern", concern)}),
        asked.shape,
        asked.simple,
    )


def _counting(command: Command) -> Command:
    stages = [wrap(raw_element("$match", DOCUMENT, raw_document(command, "query")))]
    skip, limit = number(command, "skip") or 0, number(command, "limit") or 0
    if skip:
        stages.append(bytes(bson.encode({"$skip": skip})))
    if limit:
        stages.append(bytes(bson.encode({"$limit": abs(limit)})))
    stages.append(bytes(bson.encode({"$count": "n"})))
    pipeline = array((DOCUMENT, stage) for stage in stages)
    kept = [
        raw_element(name, *command.fields[name])
        for name in ("collation", "hint", "maxTimeMS", "comment", "$db")
        if name in command.fields
    ]
    fields: dict[str, Any] = {"aggregate": command.collection, "cursor": {}}
    return build(fields, [raw_element("pipeline", ARRAY, pipeline), *kept])


def scan(question: Question, namespace: str, time: Timestamp) -> Command:
    """A find of all documents that a read looks at in one of its namespaces, at exactly this time.

    By its filter in its own namespace, and every one of a namespace that it joins.
    """
    database, _, collection = namespace.partition(".")
    own = namespace == question.namespace
    fields: dict[str, Any] = {"find": collection, "batchSize": SCAN_BATCH}
    fields |= {"maxTimeMS": MAX_TIME_MS, "comment": _COMMENT, "$db": database}
    fields["readConcern"] = {"level": SNAPSHOT, "atClusterTime": time}
    raw = []
    if own:
        raw.append(raw_element("filter", DOCUMENT, question.filter or EMPTY))
        raw += [
            raw_element(name, *question.command.fields[name])
            for name in ("collation", "let")
            if name in question.command.fields
        ]
    return build(fields, raw)

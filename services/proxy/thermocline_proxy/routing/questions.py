"""What a read command asks: its filter, its order, and what else it touches. Pure views of the command."""

import struct
from dataclasses import dataclass
from typing import Any, Final

from thermocline_common.ids import ARRAY, DOCUMENT
from thermocline_proxy.commands.command import Command, element
from thermocline_proxy.commands.pipelines import Pipeline, read_pipeline, whole_number
from thermocline_proxy.commands.touched import foreign

EMPTY: Final = b"\x05\0\0\0\0"

_GENERIC: Final = frozenset(
    (
        "$db", "$readPreference", "$clusterTime", "lsid", "readConcern", "maxTimeMS", "comment",
        "collation", "hint", "let", "apiVersion", "apiStrict", "apiDeprecationErrors",
    )
)  # fmt: skip
_KNOWN: Final = {
    "find": _GENERIC
    | {"find", "filter", "sort", "projection", "skip", "limit", "batchSize", "singleBatch"}
    | {"noCursorTimeout", "allowPartialResults", "allowDiskUse", "oplogReplay", "min", "max"}
    | {"returnKey", "showRecordId", "tailable", "awaitData"},
    "aggregate": _GENERIC
    | {"aggregate", "pipeline", "cursor", "allowDiskUse", "bypassDocumentValidation", "explain"},
    "count": _GENERIC | {"count", "query", "limit", "skip", "fields"},
    "distinct": _GENERIC | {"distinct", "key", "query"},
}
# Their answers depend on the server that gives them, or they name an index's own bounds.
_TIER_BOUND: Final = ("min", "max", "returnKey", "showRecordId", "tailable", "awaitData")
_FILTER: Final = {"find": "filter", "count": "query", "distinct": "query"}

QUERIES: Final = frozenset(_KNOWN)
METADATA: Final = frozenset(
    (
        "listIndexes", "collStats", "collstats", "dataSize", "datasize", "dbStats", "dbstats",
        "validate", "listCollections", "planCacheClear", "planCacheClearFilters",
        "planCacheListFilters", "planCacheSetFilter",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """One read. ``command``: the explained one, where the client asked for an explanation.

    ``named``: every namespace that the pipeline could name, rather too many than too few (barriers
    go by it), where ``pipeline.joined`` is exact. ``filter`` None: there is none, or one that can't be read. ``suits_fast``: no option keeps the
    fast tier from answering it. ``plain``: nothing but filter, order, limit and projection: no
    hint, collation, ``$natural`` or skip.
    """

    command: Command
    explained: bool
    namespace: str
    pipeline: Pipeline | None = None
    named: frozenset[str] = frozenset()
    filter: bytes | None = None
    suits_fast: bool = False
    simple_collation: bool = True
    natural: bool = False
    plain: bool = False


def ask(command: Command) -> Question:
    """Read a command, or the one inside an ``explain``. Never raises."""
    explained = command.name == "explain"
    if explained:
        entry = command.fields.get("explain")
        if entry is None or entry[0] != DOCUMENT or entry[1] == EMPTY:
            return Question(command, True, command.namespace)
        inner = Command(entry[1], command.sequences)
        if "$db" not in inner.fields:
            inner = inner.changed({"$db": element("$db", command.database)})
        if inner.name == "explain":
            return Question(command, True, command.namespace)
        command = inner
    if command.name not in QUERIES:
        return Question(command, explained, command.namespace)
    return _query(command, explained or _chosen(command, "explain"))


def _query(command: Command, explained: bool) -> Question:
    pipeline = None
    named: frozenset[str] = frozenset()
    if command.name == "aggregate":
        entry = command.fields.get("pipeline")
        readable = entry is not None and entry[0] == ARRAY
        stages = command.documents("pipeline")
        pipeline = read_pipeline(stages, command.database) if readable else Pipeline(portable=False)
        named = pipeline.joined | _possibly_named(entry, command.database)
        query: bytes | None = pipeline.filter
    else:
        query = _document(command, _FILTER[command.name])
    known = _KNOWN[command.name]
    suits = all(name in known for name in command.fields)
    suits = suits and not any(_present(command, name) for name in _TIER_BOUND)
    natural = any(_names_natural(command, name) for name in ("sort", "hint"))
    simple = _simple_collation(command)
    plain = (
        simple and not natural and not _present(command, "hint") and number(command, "skip") == 0
    )
    return Question(
        command, explained, command.namespace, pipeline, named, query, suits, simple, natural, plain
    )


def _possibly_named(pipeline: tuple[int, bytes] | None, database: str) -> frozenset[str]:
    try:
        return foreign(pipeline[1], database) if pipeline and pipeline[0] == ARRAY else frozenset()
    except (ValueError, struct.error, IndexError):
        return frozenset()


def _document(command: Command, field: str) -> bytes | None:
    entry = command.fields.get(field)
    if entry is None or entry[0] in (0x0A, 0x06):
        return EMPTY
    return entry[1] if entry[0] == DOCUMENT else None


def raw_document(command: Command, field: str) -> bytes:
    """A raw document field; empty where it is absent or something else."""
    return _document(command, field) or EMPTY


def number(command: Command, field: str, default: int = 0) -> int | None:
    """A whole number field; ``default`` where it is absent or null, None where it is something else."""
    entry = command.fields.get(field)
    if entry is None or entry[0] == 0x0A:
        return default
    return whole_number(*entry)


def _present(command: Command, field: str) -> bool:
    entry = command.fields.get(field)
    if entry is None or entry[0] == 0x0A:
        return False
    return not (entry[0] == 0x08 and entry[1] == b"\0") and entry[1] != EMPTY


def _chosen(command: Command, field: str) -> bool:
    return command.name == "aggregate" and _present(command, field)


def _names_natural(command: Command, field: str) -> bool:
    entry = command.fields.get(field)
    return entry is not None and b"$natural\0" in entry[1]


def _simple_collation(command: Command) -> bool:
    value: Any = command.get("collation")
    if value is None or "collation" not in command.fields:
        return True
    try:
        return not value or value.get("locale") == "simple"
    except AttributeError:
        return False

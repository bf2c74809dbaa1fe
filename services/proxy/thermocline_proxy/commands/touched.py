"""Which namespaces a command reads and writes. In doubt, more rather than fewer."""

from collections.abc import Iterator
from dataclasses import dataclass

from thermocline_common.ids import ARRAY, DOCUMENT, STRING, elements
from thermocline_proxy.commands.catalog import Entry, Place, lookup
from thermocline_proxy.commands.command import Command

_JOINS = frozenset({b"from", b"coll", b"$unionWith", b"into"})
_OUTPUTS = frozenset({b"$out", b"$merge"})


@dataclass(frozen=True, slots=True)
class Touched:
    """``target``: the collection that the command is about, or None. ``joined``: others that it
    may read. ``written``: others that it writes to (``$out``, ``$merge``, ``mapReduce``, renames)."""

    target: str | None
    joined: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """All of them."""
        own = frozenset() if self.target is None else frozenset((self.target,))
        return own | self.joined | self.written


def touched(command: Command, entry: Entry) -> Touched:
    """The namespaces of a command that the catalog has."""
    database = command.database
    if entry.place is Place.NESTED:
        return _nested(command)
    target = _target(command, entry)
    if command.name == "aggregate":
        kind, raw = command.fields.get("pipeline", (0, b""))
        if kind != ARRAY:
            return Touched(target)
        return Touched(
            target, frozenset(_joined(raw, database)), frozenset(_outputs(raw, database))
        )
    if command.name in ("mapReduce", "mapreduce"):
        return Touched(target, written=frozenset(_map_reduce(command)))
    if command.name == "renameCollection":
        to = command.get("to")
        return Touched(target, written=frozenset((to,)) if isinstance(to, str) else frozenset())
    if command.name == "cloneCollectionAsCapped":
        to = command.get("toCollection")
        return Touched(target, written=frozenset((f"{database}.{to}",)))
    if command.name == "create" and "viewOn" in command.fields:
        # A view writes no documents, but what it reads decides how it is served.
        return Touched(target)
    return Touched(target)


def _target(command: Command, entry: Entry) -> str | None:
    if entry.place is Place.FIRST:
        return f"{command.database}.{command.collection}" if command.collection else None
    if entry.place is Place.FIRST_FULL:
        return command.collection
    if entry.place is Place.COLLECTION:
        name = command.get("collection")
        return f"{command.database}.{name}" if isinstance(name, str) else None
    return None


def _nested(command: Command) -> Touched:
    inner = inner_command(command)
    entry = None if inner is None else lookup(inner.name)
    if inner is None or entry is None or entry.place is Place.NESTED:
        return Touched(None)
    return touched(inner, entry)


def inner_command(command: Command) -> Command | None:
    """The command inside an ``explain``, with the outer ``$db``; None where it holds none."""
    kind, raw = command.fields.get(command.name, (0, b""))
    if kind != DOCUMENT or len(raw) < 8:
        return None
    database = command.fields.get("$db")
    element = b"" if database is None else bytes((database[0],)) + b"$db\0" + database[1]
    return Command(raw).changed({"$db": element})


def foreign(pipeline: bytes, database: str) -> frozenset[str]:
    """Every namespace that a raw pipeline names in a join, at any depth."""
    return frozenset(_joined(pipeline, database))


def _joined(raw: bytes, database: str) -> Iterator[str]:
    for name, kind, _, start, end in elements(raw):
        if kind == STRING and name in _JOINS:
            yield f"{database}.{_text(raw, start, end)}"
        elif kind in (DOCUMENT, ARRAY):
            inner = raw[start:end]
            if name in _JOINS and kind == DOCUMENT:
                yield from _pair(inner, database)
            if name not in _OUTPUTS:
                yield from _joined(inner, database)


def _outputs(pipeline: bytes, database: str) -> Iterator[str]:
    for _, kind, _, start, end in elements(pipeline):
        if kind != DOCUMENT:
            continue
        stage = pipeline[start:end]
        for name, stage_kind, _, value, stop in elements(stage):
            if name not in _OUTPUTS:
                continue
            if stage_kind == STRING:
                yield f"{database}.{_text(stage, value, stop)}"
            elif stage_kind == DOCUMENT:
                inner = stage[value:stop]
                yield from _pair(inner, database)
                for field, inner_kind, _, begin, finish in elements(inner):
                    if field == b"into" and inner_kind == STRING:
                        yield f"{database}.{_text(inner, begin, finish)}"
                    elif field == b"into" and inner_kind == DOCUMENT:
                        yield from _pair(inner[begin:finish], database)


def _pair(raw: bytes, database: str) -> Iterator[str]:
    """``{db, coll}``, where both are given or only the collection."""
    texts = {
        name: _text(raw, start, end)
        for name, kind, _, start, end in elements(raw)
        if kind == STRING
    }
    if b"coll" in texts:
        yield f"{texts.get(b'db', database)}.{texts[b'coll']}"


def _map_reduce(command: Command) -> Iterator[str]:
    out = command.get("out")
    if isinstance(out, str):
        yield f"{command.database}.{out}"
    elif out is not None and hasattr(out, "get"):
        for action in ("replace", "merge", "reduce"):
            name = out.get(action)
            if isinstance(name, str):
                yield f"{out.get('db', command.database)}.{name}"


def _text(raw: bytes, start: int, end: int) -> str:
    return raw[start + 4 : end - 1].decode("utf-8", "replace")

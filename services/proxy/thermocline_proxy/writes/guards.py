"""A last stage for pipelines that can change a unique key: it lets through only the keys that were asked for.

What a pipeline computes may depend on more than what a trial showed: on values that only compare equal,
on ``$$NOW``, on ``$rand``. So the pipeline itself checks its result, and fails if the keys are others. Pure.
"""

from collections.abc import Iterable
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import UniqueIndex
from thermocline_common.ids import DOCUMENT, array, elements, wrap
from thermocline_proxy.writes.replies import parse_outcome
from thermocline_proxy.writes.statements import fields_of, number

Field = tuple[int, bytes]
OTHER_KEYS: Final = 40228
"""The code of a ``$replaceWith`` whose value is no document, which the guard's is if the keys are others."""
_TEXT: Final = "the unique keys aren't those that were asked for"


def guarded(update: Field, after: bytes, indexes: Iterable[UniqueIndex]) -> Field:
    """The pipeline with a last stage that fails unless the top-level fields that the indexes' paths lead
    through are as in ``after`` (numbers of another type but the same value may pass: their keys are equal)."""
    kind, raw = update
    stages = [(k, raw[start:end]) for _, k, _, start, end in elements(raw)]
    found = fields_of(after)
    roots = {path.partition(".")[0] for index in indexes for path in index.paths}
    wanted = [_same(root, found.get(root.encode())) for root in sorted(roots)]
    kept = {"$cond": [{"$and": wanted}, "$$ROOT", {"$literal": _TEXT}]}
    stages.append((DOCUMENT, bytes(bson.encode({"$replaceWith": kept}))))
    return kind, array(stages)


def as_seen_at(document: bytes, roots: Iterable[bytes]) -> bytes:
    """The filter for a document whose top-level fields of these names are (up to numeric types) as in this one."""
    found = fields_of(document)
    same = [_same(root.decode(), found.get(root)) for root in roots]
    return bytes(bson.encode({"$expr": {"$and": same}}))


def _same(root: str, value: Field | None) -> dict[str, Any]:
    path = "$" + root
    if value is None:
        return {"$eq": [{"$type": path}, "missing"]}
    kind, raw = value
    inner = wrap(bytes((kind,)) + b"v\0" + raw)
    return {"$eq": [{"v": path}, RawBSONDocument(wrap(b"\x03$literal\0" + inner))]}


def stopped(reply: bytes) -> bool:
    """Whether the guard ended the statement. The trial had no such error of the client's own pipeline."""
    outcome = parse_outcome(reply)
    error = outcome.errors[0][1] if outcome.errors else reply
    return outcome.failed and number(fields_of(error).get(b"code")) == OTHER_KEYS

"""Whether two answers say the same, and which documents they differ in. Pure."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from thermocline_common.ids import ARRAY, DocId, elements, value_key
from thermocline_proxy.commands.pipelines import whole_number
from thermocline_proxy.reads.replies import first_batch
from thermocline_proxy.verify.questions import Shape

MAX_SUSPECTS: Final = 100
"""More documents than this aren't looked at for one answer."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``suspects``: documents that the answers differ in; None: they differ, but don't show in what."""

    equal: bool
    suspects: tuple[DocId, ...] | None = None


EQUAL: Final = Comparison(True, ())
UNKNOWN: Final = Comparison(False)


def compare(shape: Shape, fast: bytes, archive: bytes, *, simple: bool = True) -> Comparison:
    """Two raw replies to one question. ``simple``: under the simple collation.

    Order isn't looked at: where it matters, other documents come.
    """
    if shape is Shape.COUNT:
        return EQUAL if _count(fast) == _count(archive) else UNKNOWN
    if shape is Shape.VALUES:
        return EQUAL if _values(fast, simple) == _values(archive, simple) else UNKNOWN
    here, there = first_batch(fast), first_batch(archive)
    if here is None or there is None:
        return UNKNOWN
    if shape is Shape.DOCUMENTS:
        return by_id(_keyed(here.documents), _keyed(there.documents))
    return EQUAL if Counter(here.documents) == Counter(there.documents) else UNKNOWN


def by_id(here: Mapping[DocId, bytes], there: Mapping[DocId, bytes]) -> Comparison:
    """Compare contents (or digests of them) by id."""
    suspects = [i for i, content in here.items() if there.get(i) != content]
    suspects += [i for i in there if i not in here]
    return Comparison(False, tuple(suspects[:MAX_SUSPECTS])) if suspects else EQUAL


def digest(document: bytes) -> bytes:
    """Sixteen bytes that stand for a document's content."""
    return hashlib.blake2b(document, digest_size=16).digest()


def _keyed(documents: Iterable[bytes]) -> dict[DocId, bytes]:
    return {DocId.of_document(document): document for document in documents}


def _count(reply: bytes) -> int | None:
    """Of ``{n: 5}``, and of the pipeline that stands for it, which finds nothing where there is none."""
    batch = first_batch(reply)
    if batch is not None:
        return _count(batch.documents[0]) if batch.documents else 0
    for name, kind, _, start, end in elements(reply):
        if name == b"n":
            return whole_number(kind, reply[start:end])
    return None


def _values(reply: bytes, simple: bool) -> object:
    """Equal values may come in another type of number; under a collation, in another spelling."""
    for name, kind, _, start, end in elements(reply):
        if name == b"values" and kind == ARRAY:
            array = reply[start:end]
            keys = {
                value_key(inner, array[begin:stop]) for _, inner, _, begin, stop in elements(array)
            }
            return keys if simple else len(keys)
    return None

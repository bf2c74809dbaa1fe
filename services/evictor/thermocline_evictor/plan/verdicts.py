"""What becomes of a candidate, from F's and the archive's copies at one and the same point."""

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from thermocline_common.ages import scalar_date
from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record


class Verdict(StrEnum):
    """Counted by these names."""

    DELETABLE = "deletable"
    GONE = "not in the fast tier"
    NOT_DUE = "age isn't a date below the bound"
    QUARANTINED = "quarantined"
    MISSING = "not in the archive"
    DIFFERING = "differs in the archive"
    EXPIRING = "expired by a TTL index"
    RECORDED = "has a removal record"
    CHANGED = "changed since it was announced"


SUSPECT = frozenset({Verdict.MISSING, Verdict.DIFFERING})
"""A mismatch, if it is still so after the feeder has moved on: a batch that is too large for one
transaction reaches the archive in parts, before the checkpoint."""


def digest(document: bytes) -> bytes:
    """Sixteen bytes that stand for a document's content."""
    return hashlib.blake2b(document, digest_size=16).digest()


def judge(
    ids: Iterable[DocId],
    fast: Mapping[DocId, bytes],
    archive: Mapping[DocId, bytes],
    *,
    path: str,
    bound: int,
    quarantined: frozenset[DocId],
    expired: Callable[[bytes], bool] = lambda document: False,
) -> dict[DocId, Verdict]:
    """Each candidate's verdict.

    ``fast``: F's documents at exactly the feeder's checkpoint; ``archive``: the archive's in the
    snapshot that holds this checkpoint. ``bound`` in ms. ``expired``: whether a TTL index of the
    archive may have removed such a document.
    """
    return {
        i: _judge(fast.get(i), archive.get(i), path, bound, i in quarantined, expired) for i in ids
    }


def _judge(
    here: bytes | None,
    there: bytes | None,
    path: str,
    bound: int,
    quarantined: bool,
    expired: Callable[[bytes], bool],
) -> Verdict:
    if here is None:
        return Verdict.GONE
    age = scalar_date(here, path)
    if age is None or age >= bound:
        return Verdict.NOT_DUE
    if quarantined:
        return Verdict.QUARANTINED
    if there is None:
        return Verdict.EXPIRING if expired(here) else Verdict.MISSING
    return Verdict.DELETABLE if here == there else Verdict.DIFFERING


def final(
    verdicts: Mapping[DocId, Verdict],
    fast: Mapping[DocId, bytes],
    records: Mapping[DocId, Record],
    announced: Mapping[DocId, tuple[uuid.UUID, bytes]],
) -> dict[DocId, Verdict]:
    """The verdicts of the last look, in the transaction that deletes.

    ``announced``: the token of our ``leaving`` record, and the digest of what the archive held when
    it was written; since then every reader of the archive is bound to a time at which it held that.
    """
    decided = {}
    for doc_id, verdict in verdicts.items():
        token, content = announced[doc_id]
        record = records.get(doc_id)
        if verdict is Verdict.DELETABLE:
            if record is None or record.kind is not Kind.LEAVING or record.token != token:
                verdict = Verdict.RECORDED
            elif digest(fast[doc_id]) != content:
                verdict = Verdict.CHANGED
        decided[doc_id] = verdict
    return decided

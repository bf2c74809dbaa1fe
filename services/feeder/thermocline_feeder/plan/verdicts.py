"""F's document and removal record -> what the archive must hold: the authority rule, in one place."""

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record


class Verdict(NamedTuple):
    """What to do to one document of the archive. ``document``: the exact bytes, None = delete it."""

    namespace: str
    id: DocId
    document: bytes | None
    archive_uuid: uuid.UUID | None = None


def judge(
    namespace: str,
    ids: Iterable[DocId],
    documents: Mapping[DocId, bytes],
    records: Mapping[DocId, Record],
    archive_uuid: uuid.UUID | None = None,
) -> list[Verdict]:
    """One verdict for each id that the archive must change for; both maps are F's at one cluster time.

    F has it: those bytes. F has it not and a ``deleted`` record says so: delete. Anything else
    (evicted, expired by a TTL rule, deleted by hand in F) changes nothing in the archive. Documents
    come in the order of ``documents``, which is that of F's index: the archive then finds neighbours
    on the same pages.
    """
    verdicts = [
        Verdict(namespace, doc_id, document, archive_uuid) for doc_id, document in documents.items()
    ]
    for doc_id in ids:
        if doc_id in documents:
            continue
        record = records.get(doc_id)
        if record is not None and record.kind is Kind.DELETED:
            verdicts.append(Verdict(namespace, doc_id, None, archive_uuid))
    return verdicts


def unexplained(
    ids: Iterable[DocId], documents: Mapping[DocId, bytes], records: Mapping[DocId, Record]
) -> int:
    """How many ids are absent from F without any record: somebody deleted in F by hand.

    An upper bound: the record of a removal that was replayed before may be gone already.
    """
    return sum(1 for i in ids if i not in documents and i not in records)

"""The evictor's removal records: announcements, and their withdrawal."""

import uuid
from collections.abc import Iterable, Mapping, Sequence

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument

from thermocline_common import names
from thermocline_common.errors import Code
from thermocline_common.ids import DOCUMENT, DocId, record_id, wrap
from thermocline_common.portions import portions
from thermocline_common.raw_reads import run_raw
from thermocline_common.removals import Kind
from thermocline_common.tiers import Tiers
from thermocline_common.write_replies import require_written

MAJORITY = {"w": "majority", "wtimeout": 10_000}


def record_query(namespace: str, doc_id: DocId) -> RawBSONDocument:
    """``{_id: {ns, id}}``, raw."""
    key = record_id(namespace, doc_id)
    return RawBSONDocument(wrap(bytes((DOCUMENT,)) + b"_id\0" + key))


def token_query(namespace: str, doc_id: DocId, token: uuid.UUID) -> RawBSONDocument:
    """``{_id: {ns, id}, token}``, raw: the record as long as nobody has written it anew."""
    key = record_id(namespace, doc_id)
    value = b"\x05token\0" + (16).to_bytes(4, "little") + b"\x04" + token.bytes
    return RawBSONDocument(wrap(bytes((DOCUMENT,)) + b"_id\0" + key, value))


async def announce(tiers: Tiers, namespace: str, ids: Iterable[DocId]) -> dict[DocId, uuid.UUID]:
    """Write ``leaving`` records at majority, only where there is no record; the tokens of those written.

    Raises PyMongo's errors; records may then have been written that nobody follows up, which the
    feeder removes.
    """
    tokens: dict[DocId, uuid.UUID] = {}
    for portion in portions(ids):
        tokens |= await _announce(tiers, namespace, portion)
    return tokens


async def _announce(tiers: Tiers, namespace: str, order: Sequence[DocId]) -> dict[DocId, uuid.UUID]:
    wanted = {doc_id: uuid.uuid4() for doc_id in order}
    updates = [
        {
            "q": record_query(namespace, doc_id),
            "u": {
                "$setOnInsert": {
                    "kind": Kind.LEAVING.value,
                    "token": Binary.from_uuid(token),
                }
            },
            "upsert": True,
        }
        for doc_id, token in wanted.items()
    ]
    command = {
        "update": names.REMOVED,
        "updates": updates,
        "ordered": False,
        "writeConcern": MAJORITY,
    }
    reply = await run_raw(tiers.fast, names.DATABASE, command)
    require_written(reply, expected=(Code.DuplicateKey,))  # another evictor was first
    written = [order[int(entry["index"])] for entry in reply.get("upserted") or ()]
    return {doc_id: wanted[doc_id] for doc_id in written}


async def withdraw(tiers: Tiers, namespace: str, tokens: Mapping[DocId, uuid.UUID]) -> None:
    """Remove ``leaving`` records of our own, so that the documents stay, or can be announced again."""
    for portion in portions(tokens):
        command = {
            "delete": names.REMOVED,
            "deletes": [{"q": token_query(namespace, i, tokens[i]), "limit": 1} for i in portion],
            "ordered": False,
            "writeConcern": MAJORITY,
        }
        await run_raw(tiers.fast, names.DATABASE, command)

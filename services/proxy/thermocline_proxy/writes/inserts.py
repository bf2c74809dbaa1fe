"""Inserts: whoever in A holds one of the ``_id``s or unique keys is kept in F, which then decides."""

import asyncio
from collections.abc import Iterable, Sequence

from bson.objectid import ObjectId

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import OBJECT_ID, DocId, in_filter, wrap
from thermocline_common.portions import portions
from thermocline_common.removals import Kind as RecordKind
from thermocline_proxy.commands.command import build, element
from thermocline_proxy.ports import Reply, Tier
from thermocline_proxy.writes.filters import storable
from thermocline_proxy.writes.replies import succeeded
from thermocline_proxy.writes.run import Run
from thermocline_proxy.writes.statements import Batch, fields_of, number
from thermocline_proxy.writes.unique import holders, unique_specs

_NO_SUCH_COLLECTION = b"\x05collectionUUID\0\x10\0\0\0\x04" + b"\0" * 16


def with_id(document: bytes) -> bytes:
    """The document with an ``_id``: a new ObjectId, first, where the client sent none."""
    if b"_id" in fields_of(document):
        return document
    return wrap(bytes((OBJECT_ID,)) + b"_id\0" + ObjectId().binary, document[4:-1])


async def insert(
    run: Run, coverage: Coverage, batch: Batch, indexes: Sequence[int], documents: Sequence[bytes]
) -> Reply:
    """Insert these documents of the batch (all with an ``_id``), as one command to F."""
    refused = await _not_accepted(run, coverage)
    if refused is not None:
        return refused
    since = run.gateway.clock()
    if coverage.keep_all and coverage.complete:
        run.gateway.count("write-insert-complete", Tier.FAST.value)
    else:
        await _make_sure(run, coverage, documents)
    same = all(d is batch.documents[i] for d, i in zip(documents, indexes, strict=True))
    command = batch.part(indexes, None if same else documents)
    return await run.send(coverage, command, since=since)


async def _not_accepted(run: Run, coverage: Coverage) -> Reply | None:
    """F's refusal of this user's inserts; None: it takes them.

    Asked with an insert that can't be executed, for a collection UUID that no collection has, so
    that nothing is looked up for somebody who may not insert here.
    """
    if run.accepted("insert"):
        return None
    question = build(
        {"insert": run.collection},
        [
            element("documents", [{"_id": 0}]),
            _NO_SUCH_COLLECTION,
            element("$db", run.database),
        ],
    )
    reply = await run.send(coverage, question)
    if succeeded(reply.raw):
        run.note_accepted("insert")
        return None
    if number(fields_of(reply.raw).get(b"code")) != Code.Unauthorized:
        return reply
    # The server's text shows the question, which isn't the client's.
    raise CommandError(
        Code.Unauthorized,
        f'not authorized on {run.database} to execute command {{ insert: "{run.collection}" }}',
    )


async def _make_sure(run: Run, coverage: Coverage, documents: Sequence[bytes]) -> None:
    ids = [i for i in map(DocId.of_document, documents) if storable(i)]
    specs = await unique_specs(run, coverage) if coverage.unique else ()
    records, known, rivals = await asyncio.gather(
        run.records(ids),
        _in_archive(run, coverage, ids),
        holders(run, coverage, documents, specs),
    )
    wanted = {i for i in known if i not in records or not records[i].hides}
    wanted |= {i for i, record in records.items() if record.kind is RecordKind.LEAVING}
    wanted |= rivals
    await run.keep(coverage, wanted)
    run.gateway.count("write-insert", Tier.FAST.value)


async def _in_archive(run: Run, coverage: Coverage, ids: Iterable[DocId]) -> frozenset[DocId]:
    found: set[DocId] = set()
    for portion in portions(ids):
        # The reply is one batch, which holds a portion: what didn't fit would seem absent.
        found |= set(
            await run.archive_matches(coverage, in_filter(portion), {}, limit=len(portion))
        )
    return frozenset(found)

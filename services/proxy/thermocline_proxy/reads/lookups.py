"""Look-ups in both tiers as the proxy's own user: ids, removal records, unique keys. Primaries only."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from thermocline_common import names
from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_common.raw_reads import find_by_ids, find_raw, read_records
from thermocline_common.removals import Record
from thermocline_common.tiers import Tiers
from thermocline_proxy.answered import as_answered

LONGEST_SECONDS = 10.0


class Lookups:
    """Questions that the read protocol asks besides the client's own command.

    Every method raises ``CommandError``: 50 at ``deadline`` (monotonic seconds), else what the
    server answered or 6 (HostUnreachable).
    """

    def __init__(self, tiers: Tiers, clock: Callable[[], float]) -> None:
        self._tiers = tiers
        self._clock = clock

    async def in_fast(
        self, namespace: str, ids: Iterable[DocId], deadline: float | None
    ) -> frozenset[DocId]:
        """Which of these ids F holds."""
        async with self._limited(deadline):
            found = await find_by_ids(
                self._tiers.fast, namespace, ids, fields={"projection": {"_id": 1}}
            )
            return frozenset(found)

    async def fast_has_key(self, namespace: str, key: bytes, deadline: float | None) -> bool:
        """Whether F holds any document that matches a raw filter on a unique key."""
        database, collection = namespace.split(".", 1)
        command = {
            "find": collection,
            "filter": RawBSONDocument(key),
            "projection": {"_id": 1},
            "limit": 1,
            "singleBatch": True,
        }
        async with self._limited(deadline):
            return bool(
                [document async for document in find_raw(self._tiers.fast, database, command)]
            )

    async def records(
        self, namespace: str, ids: Iterable[DocId], deadline: float | None
    ) -> dict[DocId, Record]:
        """The removal records of these ids."""
        async with self._limited(deadline):
            return await read_records(self._tiers.fast, namespace, ids)

    async def archive_ids(
        self, coverage: Coverage, key: bytes, deadline: float | None
    ) -> list[DocId]:
        """Ids in A, not before its ``archive_time``, of documents that match a unique key (two at most)."""
        database, collection = coverage.namespace.split(".", 1)
        concern: dict[str, object] = {"level": "majority"}
        if coverage.archive_time is not None:
            concern["afterClusterTime"] = coverage.archive_time
        command = {
            "find": collection,
            "filter": RawBSONDocument(key),
            "projection": {"_id": 1},
            "limit": 2,
            "singleBatch": True,
            "readConcern": concern,
        }
        async with self._limited(deadline):
            documents = find_raw(
                self._tiers.archive,
                database,
                command,
                cluster_time=coverage.archive_cluster_time,
            )
            return [DocId.of_document(bytes(document.raw)) async for document in documents]

    async def quarantined(self, at: Timestamp | None, deadline: float | None) -> frozenset[str]:
        """The namespaces of which A lacked documents at a time of its own (None: now)."""
        concern: dict[str, object] = {"level": "majority"}
        if at is not None:
            concern = {"level": "snapshot", "atClusterTime": at}
        command = {
            "find": names.CHECKPOINT,
            "filter": {"_id": names.CHECKPOINT_ID},
            "projection": {"quarantine.ns": 1},
            "limit": 1,
            "singleBatch": True,
            "readConcern": concern,
        }
        async with self._limited(deadline):
            found = find_raw(self._tiers.archive, names.DATABASE, command)
            return frozenset(
                [
                    entry["ns"]
                    async for document in found
                    for entry in document.get("quarantine") or ()
                ]
            )

    @asynccontextmanager
    async def _limited(self, deadline: float | None) -> AsyncIterator[None]:
        seconds = LONGEST_SECONDS
        if deadline is not None:
            seconds = min(seconds, deadline - self._clock())
        try:
            async with asyncio.timeout(max(seconds, 0)):
                yield
        except TimeoutError:
            if deadline is not None and seconds < LONGEST_SECONDS:
                raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit") from None
            raise CommandError(Code.ExceededTimeLimit, "a look-up took too long") from None
        except OperationFailure as error:
            raise as_answered(error, "a look-up failed: ") from error
        except ConnectionFailure as error:
            raise CommandError(Code.HostUnreachable, f"a look-up failed: {error}") from error
        except PyMongoError as error:
            raise CommandError(Code.OperationFailed, f"a look-up failed: {error}") from error

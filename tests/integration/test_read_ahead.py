"""Reading ahead makes the archive fetch the documents, not only look them up."""

import pytest
from bson import encode

from support.mongod import ReplicaSet
from thermocline_common.clock import monotonic
from thermocline_common.ids import DocId
from thermocline_feeder.ahead import ReadAhead
from thermocline_feeder.plan.ahead import SLOW_SECONDS, Cost
from thermocline_feeder.plan.verdicts import Verdict

pytestmark = pytest.mark.integration


async def fetched(archive: ReplicaSet) -> int:
    async with archive.async_client() as client:
        status = await client.admin.command("serverStatus")
    return int(status["metrics"]["queryExecutor"]["scannedObjects"])


async def test_documents_are_fetched_and_absent_ones_are_no_harm(archive: ReplicaSet) -> None:
    numbers = range(0, 400, 2)
    async with archive.async_client() as client:
        await client["shop"]["o"].insert_many([{"_id": n, "x": "y"} for n in numbers])
        wanted = [
            Verdict("shop.o", DocId.of_document(encode({"_id": n})), None) for n in range(400)
        ]
        wanted += [
            Verdict("shop.none", DocId.of_document(encode({"_id": n})), None) for n in range(10)
        ]
        ahead = ReadAhead(client, monotonic, Cost(SLOW_SECONDS / 2))
        assert await ahead.read(wanted) == 0.0  # it has them in memory
        ahead.cost = Cost(2 * SLOW_SECONDS)
        before = await fetched(archive)
        assert await ahead.read(wanted) > 0.0
        assert await fetched(archive) - before >= len(numbers)

"""The finished indexes of a collection."""

from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from thermocline_common.errors import Code
from thermocline_common.tiers import PLAIN


async def list_indexes(
    client: AsyncMongoClient[dict[str, Any]], namespace: str
) -> list[dict[str, Any]]:
    """Specs as ``listIndexes`` gives them, from the primary; none where there is no collection.

    Indexes that are being built are left out. Raises PyMongo's errors.
    """
    database, collection = namespace.split(".", 1)
    command = {
        "listIndexes": collection,
        "includeBuildUUIDs": True,
        "cursor": {"batchSize": 1_000},
    }
    try:
        reply = await client.get_database(database).command(command, codec_options=PLAIN)
    except OperationFailure as error:
        if error.code == Code.NamespaceNotFound:
            return []
        raise
    # One that is being built is {spec, buildUUID}.
    return [index for index in reply["cursor"]["firstBatch"] if "buildUUID" not in index]

"""Collections of either tier: what there is, and making, dropping or setting one aside."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from thermocline_common import names
from thermocline_common.coverage import UniqueIndex
from thermocline_common.coverage_store import MAJORITY
from thermocline_common.errors import Code
from thermocline_common.tiers import PLAIN
from thermocline_common.write_replies import require_written

Client = AsyncMongoClient[dict[str, Any]]

COPIED_OPTIONS = frozenset(
    {
        "validator",
        "validationLevel",
        "validationAction",
        "changeStreamPreAndPostImages",
        "indexOptionDefaults",
    }
)
"""Options of a collection that F's gets too; what else there is, is refused before activation."""
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection, or view, as ``listCollections`` shows it."""

    namespace: str
    uuid: uuid.UUID | None
    kind: str
    options: Mapping[str, Any]


async def find_collection(client: Client, namespace: str) -> Collection | None:
    """From the primary; None: there is none of that name."""
    database, name = namespace.split(".", 1)
    reply = await client.get_database(database, codec_options=PLAIN).command(
        {"listCollections": 1, "filter": {"name": name}}, codec_options=PLAIN
    )
    for found in reply["cursor"]["firstBatch"]:
        return Collection(
            namespace,
            found.get("info", {}).get("uuid"),
            found.get("type", "collection"),
            found.get("options", {}),
        )
    return None


async def builds_index(client: Client, namespace: str) -> bool:
    """Whether an index of the collection is being built."""
    database, name = namespace.split(".", 1)
    command = {"listIndexes": name, "includeBuildUUIDs": True, "cursor": {"batchSize": 1_000}}
    try:
        reply = await client[database].command(command)
    except OperationFailure as error:
        if error.code == Code.NamespaceNotFound:
            return False
        raise
    return any("buildUUID" in index for index in reply["cursor"]["firstBatch"])


def index_for_fast_tier(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same index without expiry: TTL rules run in the archive, and the evictor service expires F."""
    return {
        k: v
        for k, v in spec.items()
        if k not in ("expireAfterSeconds", "ns", "buildUUID", "background")
    }


def unique_indexes(specs: list[dict[str, Any]]) -> list[UniqueIndex]:
    """The unique indexes besides ``_id``'s, sorted by name.

    A partial one's paths are those of its filter too: a change there brings a document's key into it.
    """
    found = []
    for spec in specs:
        if not spec.get("unique") or list(spec["key"]) == ["_id"]:
            continue
        collation = spec.get("collation")
        plain = (
            not spec.get("sparse")
            and "partialFilterExpression" not in spec
            and (collation is None or collation.get("locale") == "simple")
            and all(direction in (1, -1) for direction in spec["key"].values())
        )
        paths = dict.fromkeys(
            [*spec["key"], *_filter_paths(spec.get("partialFilterExpression", {}))]
        )
        found.append(UniqueIndex(spec["name"], tuple(paths), plain))
    return sorted(found, key=lambda index: index.name)


def _filter_paths(expression: Mapping[str, Any]) -> Iterator[str]:
    for name, value in expression.items():
        if name.startswith("$"):
            for branch in value:
                yield from _filter_paths(branch)
        else:
            yield name


async def create_like(
    client: Client, namespace: str, options: Mapping[str, Any], indexes: list[dict[str, Any]]
) -> uuid.UUID:
    """Create a collection with these options and indexes, ``w: majority``; its UUID.

    Raises ``OperationFailure``: 48 if the name is taken (somebody else works on it).
    """
    database, name = namespace.split(".", 1)
    db = client.get_database(database, codec_options=PLAIN)
    wanted = {k: v for k, v in options.items() if k in COPIED_OPTIONS}
    require_written(await db.command({"create": name, **wanted, "writeConcern": MAJORITY}))
    made = await find_collection(client, namespace)
    if made is None or made.uuid is None:
        raise OperationFailure(
            f"{namespace} was dropped while it was being created", Code.NamespaceNotFound
        )
    await create_indexes(client, namespace, made.uuid, indexes)
    return made.uuid


async def create_missing(client: Client, collections: Sequence[str]) -> None:
    """Create those collections of the coordination database that aren't there, ``w: majority``.

    A transaction that meets a collection which is younger than its snapshot ends with 246.
    """
    for name in collections:
        try:
            reply = await client[names.DATABASE].command({"create": name, "writeConcern": MAJORITY})
            require_written(reply)
        except OperationFailure as error:
            if error.code != Code.NamespaceExists:
                raise


async def create_indexes(
    client: Client, namespace: str, collection: uuid.UUID, indexes: list[dict[str, Any]]
) -> None:
    """Build indexes (not ``_id``'s) on that very collection, ``w: majority``."""
    specs = [index_for_fast_tier(spec) for spec in indexes if list(spec["key"]) != ["_id"]]
    if not specs:
        return
    database, name = namespace.split(".", 1)
    reply = await client.get_database(database, codec_options=PLAIN).command(
        {
            "createIndexes": name,
            "indexes": specs,
            "collectionUUID": Binary.from_uuid(collection),
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)


async def drop(client: Client, namespace: str, collection: uuid.UUID) -> None:
    """Drop that very collection, ``w: majority``; nothing if it is gone or another one has the name."""
    database, name = namespace.split(".", 1)
    try:
        reply = await client[database].command(
            {"drop": name, "collectionUUID": Binary.from_uuid(collection), "writeConcern": MAJORITY}
        )
        require_written(reply)
    except OperationFailure as error:
        if error.code not in (Code.NamespaceNotFound, Code.CollectionUUIDMismatch):
            raise


async def is_empty(client: Client, namespace: str) -> bool:
    """Whether the primary shows no document."""
    database, name = namespace.split(".", 1)
    reply = await client[database].command(
        {"find": name, "limit": 1, "singleBatch": True, "projection": {"_id": 1}}
    )
    return not reply["cursor"]["firstBatch"]


def aside_name(namespace: str, collection: uuid.UUID) -> str:
    """Where a collection is set aside to: within its database, so that it is a matter of metadata."""
    database, name = namespace.split(".", 1)
    room = MAX_NAME_BYTES - len(database.encode())
    short = name.encode()[:room].decode(errors="ignore")
    return f"{database}.{names.SET_ASIDE_DATABASE}.{short}.{collection.hex[:12]}"


async def set_aside(client: Client, namespace: str, collection: uuid.UUID) -> str:
    """Rename that very collection out of the way, ``w: majority``; the new name. Nothing is lost."""
    target = aside_name(namespace, collection)
    try:
        reply = await client.admin.command(
            {
                "renameCollection": namespace,
                "to": target,
                "collectionUUID": Binary.from_uuid(collection),
                "writeConcern": MAJORITY,
            }
        )
        require_written(reply)
    except OperationFailure as error:
        if error.code not in (Code.NamespaceNotFound, Code.CollectionUUIDMismatch):
            raise
    return target


async def replica_set_id(client: Client) -> Any:
    """The replica set's own id. Raises ``KeyError`` on what isn't a replica set."""
    reply = await client.admin.command({"replSetGetConfig": 1})
    return reply["config"]["settings"]["replicaSetId"]

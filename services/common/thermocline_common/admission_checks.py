"""Observes tiers and collections for :mod:`thermocline_common.spec.admission`."""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import OperationFailure, PyMongoError

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code
from thermocline_common.namespace import split_namespace
from thermocline_common.spec.admission import (
    CollectionObservation,
    IndexObservation,
    MemberObservation,
    SeedObservation,
    TierObservation,
    check_collection,
    check_seeds,
    check_tiers,
)
from thermocline_common.spec.models import Manifest
from thermocline_common.spec.problems import Problem
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place

Client = AsyncMongoClient[dict[str, Any]]
OpenMember = Callable[[Tier, str], Client]
"""Opens a direct connection to ``host:port`` of a tier; ``clients.member_opener`` makes one."""

_LIMIT_MS = 5_000


async def refusals(
    tiers: Tiers, manifest: Manifest, namespace: str, open_member: OpenMember | None = None
) -> list[Problem]:
    """Why ``namespace`` may not become active now; empty: nothing speaks against it.

    Without ``open_member`` only the primaries are asked for what each member has of its own.
    Raises PyMongo's errors where a tier doesn't answer: then nothing is known, and nothing may start.
    """
    fast, archive = await observe_tiers(tiers, open_member)
    problems = check_tiers(fast, archive)
    for i, policy in enumerate(manifest.spec.collections):
        if policy.namespace == namespace:
            found = await observe_collection(tiers, namespace)
            problems += check_collection(f"spec.collections[{i}]", policy, found)
    return problems


async def observe_tiers(
    tiers: Tiers, open_member: OpenMember | None = None
) -> tuple[TierObservation, TierObservation]:
    """Both tiers: the fast one, the archive. Raises PyMongo's errors where one doesn't answer."""
    fast, archive = await asyncio.gather(
        _observe_tier(Tier.FAST, tiers.fast, open_member),
        _observe_tier(Tier.ARCHIVE, tiers.archive, open_member),
    )
    return fast, archive


async def _observe_tier(
    tier: Tier, client: Client, open_member: OpenMember | None
) -> TierObservation:
    hello = await client.admin.command("hello", maxTimeMS=_LIMIT_MS)
    mongos = hello.get("msg") == "isdbgrid"
    set_name = hello.get("setName")
    if mongos or set_name is None:
        return TierObservation(tier, set_name, None, mongos, None, ())
    config = (await client.admin.command("replSetGetConfig"))["config"]
    parameters = await client.admin.command(
        {"getParameter": 1, "featureCompatibilityVersion": 1}, maxTimeMS=_LIMIT_MS
    )
    addresses = [m["host"] for m in config["members"] if not m.get("arbiterOnly")]
    if open_member is None:
        members = [await _observe_member(client, str(hello.get("me")))]
    else:
        found = await asyncio.gather(*(_observe_directly(tier, a, open_member) for a in addresses))
        members = [member for member in found if member is not None]
    return TierObservation(
        tier,
        set_name,
        str(config["settings"]["replicaSetId"]),
        is_mongos=False,
        feature_version=str(parameters["featureCompatibilityVersion"]["version"]),
        members=tuple(members),
        majority_journaled=bool(config.get("writeConcernMajorityJournalDefault", True)),
    )


async def _observe_member(client: Client, address: str) -> MemberObservation:
    admin = client.get_database("admin", read_preference=ReadPreference.PRIMARY_PREFERRED)
    build = await admin.command("buildInfo", maxTimeMS=_LIMIT_MS)
    parameters = await admin.command(
        {"getParameter": 1, "transactionLifetimeLimitSeconds": 1}, maxTimeMS=_LIMIT_MS
    )
    version = tuple(int(part) for part in re.findall(r"\d+", build["version"])[:3])
    return MemberObservation(address, version, int(parameters["transactionLifetimeLimitSeconds"]))


async def _observe_directly(
    tier: Tier, address: str, open_member: OpenMember
) -> MemberObservation | None:
    """One member; None where it is down: it is looked at again before the next activation."""
    async with open_member(tier, address) as client:
        try:
            return await _observe_member(client, address)
        except OperationFailure:
            raise
        except PyMongoError:
            return None


async def diagnose(tier: Tier, manifest: Manifest, open_member: OpenMember) -> list[Problem]:
    """Why a driver finds no replica set behind a tier's URI; empty where the servers don't tell.

    ``open_member`` need not log in. Takes as long as connecting may take.
    """
    spec = manifest.spec.fast_tier if tier is Tier.FAST else manifest.spec.archive
    connection = check(spec.uri, Place.MANIFEST)
    if connection.uri.srv:
        return []  # DNS has the hosts; the driver's own message names them
    addresses = [str(host) for host in connection.uri.hosts]
    seeds = await asyncio.gather(*(_observe_seed(tier, a, open_member) for a in addresses))
    return check_seeds(tier, connection.replica_set, seeds)


async def _observe_seed(tier: Tier, address: str, open_member: OpenMember) -> SeedObservation:
    async with open_member(tier, address) as client:
        try:
            hello = await client.admin.command("hello", maxTimeMS=_LIMIT_MS)
        except PyMongoError:
            return SeedObservation(address, reached=False)
    return SeedObservation(
        address,
        reached=True,
        set_name=hello.get("setName"),
        is_mongos=hello.get("msg") == "isdbgrid",
    )


async def observe_collection(tiers: Tiers, namespace: str) -> CollectionObservation:
    """The namespace on the archive's primary. Raises PyMongo's errors."""
    split = split_namespace(namespace)
    database = tiers.archive.get_database(split.database, codec_options=PLAIN)
    reply = await database.command(
        {"listCollections": 1, "filter": {"name": split.collection}}, maxTimeMS=_LIMIT_MS
    )
    batch = reply["cursor"]["firstBatch"]
    if not batch:
        return CollectionObservation(namespace, None)
    kind = str(batch[0].get("type", "collection"))
    options: Mapping[str, Any] = batch[0].get("options", {})
    indexes: list[IndexObservation] = []
    if kind == "collection":
        indexes = await _observe_indexes(tiers, split.database, split.collection)
    return CollectionObservation(
        namespace,
        kind,
        capped=bool(options.get("capped")),
        clustered="clusteredIndex" in options,
        encrypted="encryptedFields" in options,
        simple_collation=_is_simple(options.get("collation")),
        indexes=tuple(indexes),
    )


async def _observe_indexes(tiers: Tiers, database: str, collection: str) -> list[IndexObservation]:
    """All indexes, unfinished ones too."""
    try:
        reply = await tiers.archive[database].command(
            {"listIndexes": collection, "includeBuildUUIDs": True, "cursor": {"batchSize": 1_000}},
            maxTimeMS=_LIMIT_MS,
        )
    except OperationFailure as error:
        if error.code == Code.NamespaceNotFound:
            return []
        raise
    found = []
    for entry in reply["cursor"]["firstBatch"]:
        building = "buildUUID" in entry
        spec = entry.get("spec", entry)
        found.append(
            IndexObservation(
                str(spec["name"]),
                tuple(spec["key"].items()),
                sparse=bool(spec.get("sparse")),
                partial="partialFilterExpression" in spec,
                hidden=bool(spec.get("hidden")),
                simple_collation=_is_simple(spec.get("collation")),
                building=building,
            )
        )
    return found


def _is_simple(collation: Mapping[str, Any] | None) -> bool:
    return collation is None or collation.get("locale") == "simple"

"""Admission on real servers: each kind of collection, index and tier that is refused, and the remedies run."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import AsyncMongoClient, IndexModel, MongoClient

from support import accounts
from support.mongod import ReplicaSet
from thermocline_common.access import Access
from thermocline_common.admission_checks import observe_collection, observe_tiers, refusals
from thermocline_common.clients import close_tiers, member_opener, open_tiers
from thermocline_common.spec.admission import check_tiers
from thermocline_common.spec.manifest import Manifest, parse_manifest
from thermocline_common.spec.problems import Problem

pytestmark = pytest.mark.integration
Db = Any


def manifest(fast: str, archive: str, *policies: dict[str, Any], **tier: Any) -> Manifest:
    return parse_manifest(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "shop"},
            "spec": {
                "archive": {"uri": archive, **tier},
                "fastTier": {"uri": fast, **tier},
                "collections": list(policies),
            },
        }
    )


BY_AGE = {"namespace": "shop.orders", "ageField": "at", "maxAge": "30d"}
ALL = {"namespace": "shop.orders", "keep": "All"}


async def ask(fast: ReplicaSet, archive: ReplicaSet, policy: dict[str, Any]) -> list[Problem]:
    resource = manifest(fast.uri, archive.uri, policy)
    tiers = open_tiers(resource, Access.load(resource, None), "test")
    try:
        opener = member_opener(resource, Access.load(resource, None), "test")
        return await refusals(tiers, resource, "shop.orders", opener)
    finally:
        await close_tiers(tiers)


def run_remedy(client: MongoClient[dict[str, Any]], remedy: str) -> None:
    """Run the mongosh command of a remedy, of the three forms that there are."""
    match = re.search(
        r'getSiblingDB\("(.*?)"\)\.getCollection\("(.*?)"\)\.(\w+)\((.*?)\)(;|$)', remedy
    )
    assert match, remedy
    database, name, verb, text, _ = match.groups()
    arguments = json.loads(f"[{text}]")
    if verb == "createIndex":
        options = arguments[1] if len(arguments) > 1 else {}
        client[database][name].create_indexes([IndexModel(arguments[0], **options)])
    elif verb == "unhideIndex":
        client[database].command("collMod", name, index={"name": arguments[0], "hidden": False})
    else:
        assert verb == "dropIndex"
        client[database][name].drop_index(arguments[0])


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda db: None, "no full index"),
        (lambda db: db.orders.insert_one({"at": 1}), "no full index"),
        (lambda db: db.orders.create_index("at", sparse=True), "is sparse"),
        (lambda db: db.orders.create_index("at", partialFilterExpression={"x": 1}), "is partial"),
        (lambda db: db.orders.create_index([("at", "hashed")]), "is hashed"),
        (lambda db: db.orders.create_index("at", collation={"locale": "en"}), "has a collation"),
        (lambda db: db.orders.create_index("at", hidden=True), "is hidden"),
        (lambda db: db.orders.create_index([("x", 1), ("at", 1)]), "no full index"),
        (lambda db: db.orders.create_index([("at", 1), ("p", "2dsphere")]), "has a part"),
        (lambda db: db.orders.create_index([("$**", 1)]), "no full index"),
    ],
)  # fmt: skip
async def test_without_a_full_index_on_the_age_field_the_remedy_makes_one(
    fast: ReplicaSet, archive: ReplicaSet, prepare: Callable[[Db], Any], reason: str
) -> None:
    with archive.client() as client:
        prepare(client["shop"])
        problems = await ask(fast, archive, BY_AGE)
        assert [p.path for p in problems] == ["spec.collections[0].ageField"]
        assert reason in problems[0].reason
        assert await ask(fast, archive, ALL) == []
        run_remedy(client, problems[0].remedy)
        assert await ask(fast, archive, BY_AGE) == []


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda db: db.create_collection("orders", capped=True, size=4096), "is capped"),
        (lambda db: db.create_collection("orders", timeseries={"timeField": "at"}), "time-series"),
        (lambda db: db.create_collection("orders", viewOn="base", pipeline=[]), "is a view"),
        (lambda db: db.create_collection("orders", collation={"locale": "en"}), "default collation"),
        (lambda db: db.create_collection("orders", clusteredIndex={"key": {"_id": 1}, "unique": True}),
         "clustered"),
    ],
)  # fmt: skip
async def test_collections_of_other_kinds(
    fast: ReplicaSet, archive: ReplicaSet, prepare: Callable[[Db], Any], reason: str
) -> None:
    with archive.client() as client:
        prepare(client["shop"])
    for policy in (BY_AGE, ALL):
        problems = await ask(fast, archive, policy)
        assert [p.path for p in problems] == ["spec.collections[0].namespace"]
        assert reason in problems[0].reason
        assert problems[0].remedy


async def test_a_ttl_index_speaks_against_nothing(fast: ReplicaSet, archive: ReplicaSet) -> None:
    """Not even one that is the index on the age field itself."""
    with archive.client() as client:
        client["shop"]["orders"].create_index("at", expireAfterSeconds=90 * 86_400)
        client["shop"]["orders"].create_index("until", expireAfterSeconds=0)
    for policy in (BY_AGE, ALL):
        assert await ask(fast, archive, policy) == []


async def test_a_multikey_index_serves(fast: ReplicaSet, archive: ReplicaSet) -> None:
    with archive.client() as client:
        client["shop"]["orders"].create_index("at")
        client["shop"]["orders"].insert_many([{"at": [1, 2]}, {"at": None}, {}])
    assert await ask(fast, archive, BY_AGE) == []


async def test_an_index_that_is_being_built_does_not_serve_yet(
    fast: ReplicaSet, make_replica_set: Callable[..., ReplicaSet]
) -> None:
    archive = make_replica_set("building", test_commands=True)
    failpoint = {"configureFailPoint": "hangAfterStartingIndexBuild"}
    with archive.client() as client:
        client["shop"]["orders"].insert_one({"at": 1})
        client.admin.command({**failpoint, "mode": "alwaysOn"})
        starter: AsyncMongoClient[dict[str, Any]] = archive.async_client()
        async with starter:
            build = asyncio.create_task(starter["shop"]["orders"].create_index("at"))
            try:
                problems = await ask(fast, archive, BY_AGE)
                for _ in range(100):
                    if "being built" in problems[0].reason:
                        break
                    await asyncio.sleep(0.1)
                    problems = await ask(fast, archive, BY_AGE)
                assert "is still being built" in problems[0].reason
                assert problems[0].remedy == "wait until it is built"
            finally:
                client.admin.command({**failpoint, "mode": "off"})
                await build
    assert await ask(fast, archive, BY_AGE) == []


async def test_the_same_set_under_another_name_is_refused(archive: ReplicaSet) -> None:
    resource = manifest(archive.uri.replace("127.0.0.1", "localhost"), archive.uri)
    tiers = open_tiers(resource, Access.load(resource, None), "test")
    try:
        problems = check_tiers(*await observe_tiers(tiers))
    finally:
        await close_tiers(tiers)
    assert [p.path for p in problems] == ["spec.fastTier.uri"]
    assert "is the archive's own replica set archive" in problems[0].reason


async def test_versions_and_parameters_of_every_member(
    fast: ReplicaSet, make_replica_set: Callable[..., ReplicaSet]
) -> None:
    archive = make_replica_set("three", members=3)
    with archive.client() as client:
        client.admin.command({"setFeatureCompatibilityVersion": "5.0"})
    secondary = next(m for m in archive.members if m is not archive.primary())
    with archive.member_client(secondary) as client:
        client.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": 90})
    problems = await ask(fast, archive, ALL)
    reasons = {p.path: p.reason for p in problems}
    assert f"transactionLifetimeLimitSeconds 90 on {secondary.address}" in reasons["spec.archive"]
    assert "featureCompatibilityVersion 6.0, and the archive 5.0" in reasons["spec.fastTier"]
    secondary.kill()
    problems = await ask(fast, archive, ALL)
    assert problems
    assert not any("90 on" in p.reason for p in problems)


async def test_works_with_the_least_privileges(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet, tmp_path: Any
) -> None:
    accounts.create_service_users(secure_fast, secure_archive, ["shop"])
    with secure_archive.client() as client:
        client["shop"]["orders"].create_index("at")
    resource = manifest(
        secure_fast.uri, secure_archive.uri, BY_AGE, credentialsSecretRef={"name": "x"}
    )
    directory = accounts.write_credentials(tmp_path)
    tiers = open_tiers(resource, Access.load(resource, directory), "test")
    try:
        opener = member_opener(resource, Access.load(resource, directory), "test")
        assert await refusals(tiers, resource, "shop.orders", opener) == []
        assert (await observe_collection(tiers, "shop.orders")).kind == "collection"
    finally:
        await close_tiers(tiers)

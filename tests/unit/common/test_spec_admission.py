"""What the servers can make impossible: one table for tiers, one for collections, one for indexes."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from thermocline_common.coverage import Tier
from thermocline_common.spec.admission import (
    CollectionObservation,
    IndexObservation,
    MemberObservation,
    SeedObservation,
    TierObservation,
    check_collection,
    check_seeds,
    check_tiers,
    create_index_command,
)
from thermocline_common.spec.models import CollectionPolicy, Keep

MEMBER = MemberObservation("h:1", (6, 0, 5), 60)
FAST = TierObservation(
    Tier.FAST, "fast", "f1", is_mongos=False, feature_version="6.0", members=(MEMBER,)
)
ARCHIVE = TierObservation(
    Tier.ARCHIVE, "archive", "a1", is_mongos=False, feature_version="6.0", members=(MEMBER,)
)
BY_AGE = CollectionPolicy(namespace="shop.orders", age_field="at", max_age=dt.timedelta(days=30))
ALL = CollectionPolicy(namespace="shop.orders", keep=Keep.ALL)
FULL = IndexObservation("at_1", (("at", 1),))
PLAIN = CollectionObservation("shop.orders", "collection", indexes=(FULL,))


def with_member(**fields: Any) -> dict[str, Any]:
    return {"members": (MEMBER, dataclasses.replace(MEMBER, address="h:2", **fields))}


def test_two_replica_sets_of_one_version_can_be_tiers() -> None:
    assert check_tiers(FAST, ARCHIVE) == []


@pytest.mark.parametrize(
    ("fast", "archive", "path", "reason", "remedy"),
    [
        ({"set_id": "a1"}, {}, "spec.fastTier.uri", "own replica set archive (id a1)", "of its own"),
        ({"set_id": None, "members": ()}, {}, "spec.fastTier.uri", "standalone", "rs.initiate()"),
        ({}, {"set_id": None, "members": ()}, "spec.archive.uri", "standalone", "rs.initiate()"),
        ({}, {"is_mongos": True, "members": ()}, "spec.archive.uri", "sharded", "replica set"),
        ({"members": (MemberObservation("h:1", (7, 0, 2), 60),)}, {}, "spec.fastTier",
         "runs MongoDB 7.0, and the archive 6.0", "same version"),
        (with_member(version=(7, 0, 2)), {}, "spec.fastTier", "runs MongoDB 6.0, 7.0", "same"),
        ({"feature_version": "5.0"}, {}, "spec.fastTier", "featureCompatibilityVersion 5.0",
         "setFeatureCompatibilityVersion"),
        ({}, with_member(version=(5, 0, 9)), "spec.archive", "5.0.9 on h:2", "upgrade"),
        (with_member(transaction_lifetime_s=61), {}, "spec.fastTier",
         "transactionLifetimeLimitSeconds 61 on h:2", "setParameter: 1, transactionLifetimeLimitSeconds: 60"),
        ({}, with_member(transaction_lifetime_s=3600), "spec.archive", "3600 on h:2", "setParameter"),
        ({}, {"majority_journaled": False}, "spec.archive", "before they are durable", "rs.reconfig()"),
    ],
)  # fmt: skip
def test_tiers_that_cannot_be(
    fast: dict[str, Any], archive: dict[str, Any], path: str, reason: str, remedy: str
) -> None:
    problems = check_tiers(
        dataclasses.replace(FAST, **fast), dataclasses.replace(ARCHIVE, **archive)
    )
    found = [p for p in problems if p.path == path and reason in p.reason]
    assert found, problems
    assert remedy in found[0].remedy


def test_patch_releases_may_differ_while_a_tier_is_upgraded() -> None:
    newer = dataclasses.replace(FAST, members=(MemberObservation("h:1", (6, 0, 14), 60),))
    assert check_tiers(newer, ARCHIVE) == []


@pytest.mark.parametrize(
    ("fields", "reason", "remedy"),
    [
        ({"kind": "view"}, "is a view", "collection that it reads"),
        ({"kind": "timeseries"}, "time-series", "take the policy out"),
        ({"capped": True}, "is capped", "take the policy out"),
        ({"clustered": True}, "clustered", "take the policy out"),
        ({"encrypted": True}, "encrypted", "take the policy out"),
        ({"simple_collation": False}, "default collation", "without one"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", [BY_AGE, ALL], ids=["age", "all"])
def test_collections_that_cannot_be_tiered(
    fields: dict[str, Any], reason: str, remedy: str, policy: CollectionPolicy
) -> None:
    found = dataclasses.replace(PLAIN, **fields)
    problems = check_collection("spec.collections[3]", policy, found)
    assert [p.path for p in problems] == ["spec.collections[3].namespace"]
    assert reason in problems[0].reason
    assert remedy in problems[0].remedy


def index(name: str, *key: tuple[str, Any], **fields: Any) -> IndexObservation:
    return IndexObservation(name, key, **fields)


@pytest.mark.parametrize(
    "good",
    [
        index("a", ("at", 1)),
        index("a", ("at", -1)),
        index("a", ("at", 1.0)),
        index("a", ("at", 1), ("customer", -1)),
    ],
    ids=lambda i: str(i.key),
)
def test_full_indexes_that_start_with_the_age_field(good: IndexObservation) -> None:
    found = dataclasses.replace(PLAIN, indexes=(index("_id_", ("_id", 1)), good))
    assert check_collection("p", BY_AGE, found) == []


CREATE = 'db.getSiblingDB("shop").getCollection("orders").createIndex({"at": 1}'


@pytest.mark.parametrize(
    ("bad", "reason", "remedy"),
    [
        (index("x", ("customer", 1), ("at", 1)), "starts with it", f"{CREATE})"),
        (index("x", ("at.x", 1)), "starts with it", f"{CREATE})"),
        (index("at_1", ("at", 1), sparse=True), "is sparse", f'{CREATE}, {{"name": "at_1_full"}})'),
        (
            index("at_1", ("at", 1), partial=True),
            "is partial",
            f'{CREATE}, {{"name": "at_1_full"}})',
        ),
        (index("x", ("at", 1), simple_collation=False), "has a collation", f"{CREATE})"),
        (index("at_hashed", ("at", "hashed")), "is hashed", f"{CREATE})"),
        (index("x", ("at", 1), ("place", "2dsphere")), "has a part", f"{CREATE})"),
        (index("x", ("at", 1), ("$**", 1)), "has a part", f"{CREATE})"),
        (index("x", ("at", "text")), "starts with it", f"{CREATE})"),
        (index("x", ("$**", 1)), "starts with it", f"{CREATE})"),
        (index("h", ("at", 1), hidden=True), "is hidden", 'unhideIndex("h")'),
        (index("b", ("at", 1), building=True), "is still being built", "wait until it is built"),
    ],
    ids=lambda value: value.name + str(value.key) if isinstance(value, IndexObservation) else "",
)
def test_indexes_that_do_not_serve(bad: IndexObservation, reason: str, remedy: str) -> None:
    found = dataclasses.replace(PLAIN, indexes=(index("_id_", ("_id", 1)), bad))
    problems = check_collection("spec.collections[0]", BY_AGE, found)
    assert [p.path for p in problems] == ["spec.collections[0].ageField"]
    assert reason in problems[0].reason
    assert remedy in problems[0].remedy
    assert check_collection("p", ALL, found) == []


def test_one_usable_index_is_enough() -> None:
    both = (index("at_1", ("at", 1), sparse=True), index("full", ("at", 1)))
    assert check_collection("p", BY_AGE, dataclasses.replace(PLAIN, indexes=both)) == []


def test_a_collection_that_is_not_there_yet_needs_its_index_first() -> None:
    missing = CollectionObservation("shop.orders", None)
    assert check_collection("p", ALL, missing) == []
    assert CREATE in check_collection("p", BY_AGE, missing)[0].remedy


def test_commands_quote_what_needs_it() -> None:
    assert create_index_command('shop.a"b.c', "meta.at") == (
        'db.getSiblingDB("shop").getCollection("a\\"b.c").createIndex({"meta.at": 1})'
    )


@pytest.mark.parametrize(
    ("seeds", "reasons"),
    [
        ([], []),
        ([SeedObservation("h:1", reached=False)], []),
        ([SeedObservation("h:1", reached=True, set_name="rs0")], []),
        ([SeedObservation("h:1", reached=True)], ["h:1 is a standalone"]),
        ([SeedObservation("h:1", reached=True, is_mongos=True)], ["h:1 is a mongos"]),
        ([SeedObservation("h:1", reached=True, set_name="rs1")], ["replica set rs1, not of rs0"]),
        ([SeedObservation("h:1", reached=True, set_name="rs0"), SeedObservation("h:2", reached=True)], []),
        ([SeedObservation("h:1", reached=False), SeedObservation("h:2", reached=True)], ["h:2 is a standalone"]),
    ],
)  # fmt: skip
def test_why_no_replica_set_is_found(seeds: list[SeedObservation], reasons: list[str]) -> None:
    problems = check_seeds(Tier.ARCHIVE, "rs0", seeds)
    assert len(problems) == len(reasons)
    for problem, reason in zip(problems, reasons, strict=True):
        assert problem.path == "spec.archive.uri"
        assert reason in problem.reason

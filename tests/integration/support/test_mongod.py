"""The runner itself: what other tests take for granted."""

from collections.abc import Callable

import pytest

from support.fixtures import ARCHIVE_KEY
from support.mongod import ReplicaSet

pytestmark = pytest.mark.integration


def test_survives_a_restart_on_the_same_port(make_replica_set: Callable[..., ReplicaSet]) -> None:
    tier = make_replica_set("fast", test_commands=True)
    with tier.client() as client:
        client.shop.orders.insert_one({"_id": 1})
    uri = tier.uri
    tier.members[0].restart()
    with tier.client() as client:
        assert tier.uri == uri
        assert client.shop.orders.find_one() == {"_id": 1}


def test_the_archive_of_the_pair_with_logins_is_ahead(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    with secure_fast.client() as fast, secure_archive.client() as archive:
        difference = (
            archive.admin.command("ping")["operationTime"].time
            - fast.admin.command("ping")["operationTime"].time
        )
    assert 500 < difference <= 1_001


def test_nobody_gets_in_without_a_login(secure_archive: ReplicaSet) -> None:
    with (
        secure_archive.members[0].direct_client() as client,
        pytest.raises(Exception, match="requires auth"),
    ):
        client.shop.orders.find_one()


def test_fails_over_within_seconds(make_replica_set: Callable[..., ReplicaSet]) -> None:
    tier = make_replica_set("archive", members=3, keyfile=ARCHIVE_KEY)
    first = tier.primary()
    assert first is not None
    first.kill()
    with tier.client() as client:
        client.shop.orders.insert_one({"_id": 1})
    assert tier.primary() not in (None, first)

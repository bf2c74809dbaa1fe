"""Users and roles that are changed through a proxy, or beside it, count on both tiers at once.

No warmer runs here: what F learns, it learns from the proxy.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from support.accounts import Login
from support.login_world import HOT, MANAGER, LoginWorld, code_of, login_world, raw_accounts
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.scram import Scram, log_in
from support.wire import Closed, Wire

pytestmark = pytest.mark.integration
FIND = {"find": "plain", "$db": "shop"}
FIND_HOT = {"find": "orders", "filter": {"_id": HOT}, "$db": "shop"}


@pytest.fixture(scope="module")
def world(_secure_sets: tuple[ReplicaSet, ReplicaSet]) -> Iterator[LoginWorld]:
    with login_world(_secure_sets) as started:
        yield started


def test_every_command_on_users_and_roles_counts_on_both_tiers_at_once(
    world: LoginWorld,
) -> None:
    def equal() -> None:
        assert raw_accounts(world.fast) == raw_accounts(world.archive)

    resource = {"db": "shop", "collection": "orders"}
    reading = [{"resource": resource, "actions": ["find"]}]
    writing = [{"resource": resource, "actions": ["update"]}]
    with world.connect(MANAGER) as manager:
        shop = manager.shop
        shop.command("createRole", "clerk", privileges=reading, roles=[])
        shop.command("createUser", "anna", pwd="one", roles=["clerk"])
        equal()
        with world.connect(Login("anna", "one"), "shop") as anna:
            orders = anna.shop.orders

            def update(number: int) -> int:
                return code_of(lambda: orders.update_one({"_id": number}, {"$inc": {"v": 1}}))

            def may(expected: int) -> None:
                """On a hot and a cold document, on a connection that was there before."""
                equal()
                assert (update(HOT), update(HOT + 1)) == (expected, expected)

            assert orders.find_one({"_id": HOT}) == {"_id": HOT, "t": HOT, "v": 0}
            assert orders.find_one({"_id": 5}) == {"_id": 5, "t": 5}
            may(13)
            shop.command("grantPrivilegesToRole", "clerk", privileges=writing)
            may(0)
            shop.command("revokePrivilegesFromRole", "clerk", privileges=writing)
            may(13)
            shop.command("createRole", "boss", privileges=writing, roles=[])
            shop.command("grantRolesToRole", "clerk", roles=["boss"])
            may(0)
            shop.command("revokeRolesFromRole", "clerk", roles=["boss"])
            may(13)
            shop.command("grantRolesToUser", "anna", roles=["boss"])
            may(0)
            shop.command("revokeRolesFromUser", "anna", roles=["boss"])
            may(13)
            shop.command("updateRole", "clerk", privileges=reading + writing)
            may(0)
            shop.command("updateUser", "anna", roles=["boss"])
            may(0)
            assert code_of(lambda: orders.find_one({"_id": HOT})) == 13
            shop.command("dropRole", "boss")
            may(13)
            shop.command("updateUser", "anna", pwd="two", roles=["clerk"])
            may(0)
        for password, expected in (("one", 18), ("two", 0)):
            with world.connect(Login("anna", password), "shop") as anna:
                assert code_of(anna.shop.orders.find_one, {"_id": HOT}) == expected
        shop.command("createUser", "bert", pwd="one", roles=[])
        shop.command("dropUser", "bert")
        equal()
        with world.connect(Login("bert", "one"), "shop") as bert:
            assert code_of(lambda: bert.shop.orders.find_one()) == 18
        shop.command("dropAllRolesFromDatabase")
        equal()
        shop.command("dropAllUsersFromDatabase")
        equal()
        assert not any("shop" in name for name in raw_accounts(world.fast))
        refused = code_of(lambda: shop.command("createUser", "x", pwd="y", roles=["nosuch"]))
        assert refused == 31


def test_a_user_made_beside_the_proxy_can_be_used_at_once(
    world: LoginWorld,
) -> None:
    late = Login("late", "late-secret")
    with world.archive.client() as archive:
        archive.admin.command(
            "createUser", late.user, pwd=late.password, roles=["readWriteAnyDatabase"]
        )
    assert "system.users admin.late" not in raw_accounts(world.fast)
    with world.connect(late) as client:
        assert client.shop.orders.update_one({"_id": HOT}, {"$inc": {"v": 1}}).modified_count == 1
    assert raw_accounts(world.fast) == raw_accounts(world.archive)


def test_a_user_that_the_fast_tier_has_of_its_own_is_refused_there_and_told_why(
    world: LoginWorld,
) -> None:
    for replica_set, password in ((world.fast, "here"), (world.archive, "there")):
        with replica_set.client() as client:
            client.admin.command("createUser", "both", pwd=password, roles=["readAnyDatabase"])
    with world.connect(Login("both", "there")) as both:
        assert both.shop.plain.find_one() is not None
        with pytest.raises(OperationFailure, match="the fast tier refused the log-in") as caught:
            both.shop.orders.find_one({"_id": HOT})
        assert caught.value.code == 18
    with world.connect(Login("both", "here")) as both:
        assert code_of(lambda: both.shop.plain.find_one()) == 18
    # Dropped there by hand, it makes room for the archive's.
    with world.fast.client() as client:
        client.admin.command("dropUser", "both")
    with world.connect(Login("both", "there")) as both:
        assert both.shop.orders.find_one({"_id": HOT}) is not None


@pytest.mark.parametrize("again", [False, True], ids=["dropped", "dropped and made again"])
def test_who_was_dropped_is_out_and_who_was_made_again_logs_in_anew(
    world: LoginWorld, again: bool
) -> None:
    user = Login("again" if again else "gone", "short-secret")
    with world.archive.client() as archive, world.wire() as wire:

        def create() -> None:
            roles = ["readAnyDatabase"]
            archive.admin.command("createUser", user.user, pwd=user.password, roles=roles)

        create()
        with world.connect(user, retryReads=False) as client:
            assert client.shop.plain.find_one() is not None
            assert log_in(wire, Scram(user.user, user.password))[-1]["done"]
            assert wire.ask(FIND)["ok"] == 1
            archive.admin.command("dropUser", user.user)
            if again:
                create()
            # Whatever the open connection still gets, it is never served, and closed in the end.
            assert until_closed(wire) <= {13}

            def settled() -> bool:
                try:
                    client.shop.plain.find_one()
                except AutoReconnect:
                    return False
                except OperationFailure as error:
                    return not again and error.code == 18
                return again

            wait_until("the driver's own log-in", settled, 20)


def until_closed(wire: Wire) -> set[int]:
    """The codes of what is answered before the connection is closed."""
    codes = set()
    for _ in range(20):
        try:
            codes.add(wire.ask(FIND).get("code", 0))
        except Closed:
            return codes
    raise AssertionError(f"still open: {codes}")


def test_a_password_changed_beside_the_proxy(
    world: LoginWorld,
) -> None:
    """The old one ends with what was read of it; connections that are open stay, as on a mongod."""
    user = Login("changing", "old-secret")
    with world.archive.client() as archive:
        archive.admin.command("createUser", user.user, pwd=user.password, roles=["readAnyDatabase"])
        with world.wire() as wire:
            assert log_in(wire, Scram(user.user, user.password))[-1]["done"]
            assert wire.ask(FIND_HOT)["ok"] == 1
            archive.admin.command("updateUser", user.user, pwd="new-secret")
            assert wire.ask(FIND)["ok"] == 1

            def outcome(password: str) -> Any:
                with world.wire() as other:
                    return log_in(other, Scram(user.user, password))[-1].get("code", 0)

            wait_until("the new password", lambda: outcome("new-secret") == 0, 10)
            assert outcome("old-secret") == 18
            with world.wire() as other:
                assert log_in(other, Scram(user.user, "new-secret"))[-1]["done"]
                reply = other.ask(FIND_HOT)
                assert reply["ok"] == 1, reply


def test_restrictions_by_address_are_the_archives(
    world: LoginWorld,
) -> None:
    with world.archive.client() as archive:
        for user, source in (("near", "127.0.0.1"), ("far", "192.0.2.1")):
            archive.admin.command(
                "createUser", user, pwd="secret", roles=["readAnyDatabase"],
                authenticationRestrictions=[{"clientSource": [source]}],
            )  # fmt: skip
    for user, code in (("near", None), ("far", 18)):
        with world.wire() as wire:
            assert log_in(wire, Scram(user, "secret"))[-1].get("code") == code

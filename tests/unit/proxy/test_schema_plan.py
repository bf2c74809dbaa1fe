"""How commands that change collections or indexes are served, as tables."""

from typing import Any

import bson
import pytest

from thermocline_common.coverage import Coverage, State
from thermocline_proxy.commands.command import Command
from thermocline_proxy.ddl.plan import Way, concerned, is_tiered, refusal, way
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_proxy.writes import schema_parts

ID = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
PLAIN = {"v": 2, "key": {"t": 1}, "name": "t_1"}
UNIQUE = {"v": 2, "key": {"k": 1, "l": -1}, "name": "k_1", "unique": True}
PREPARED = {"v": 2, "key": {"p": 1}, "name": "p_1", "prepareUnique": True}
EXPIRING = {"v": 2, "key": {"e": 1}, "name": "e_1", "expireAfterSeconds": 60}
LISTED = [ID, PLAIN, UNIQUE, PREPARED, EXPIRING]


def expiry(seconds: Any, **which: Any) -> Command:
    return command("collMod", index={**which, "expireAfterSeconds": seconds})


def command(name: str, value: Any = "orders", **fields: Any) -> Command:
    return Command(bson.encode({name: value, **fields, "$db": "shop"}))


def building(*specs: dict[str, Any]) -> Command:
    return command("createIndexes", indexes=list(specs))


WAYS: dict[str, tuple[Command, Way]] = {
    "create": (command("create"), Way.BOTH),
    "drop": (command("drop"), Way.ALONE),
    "rename": (command("renameCollection", "shop.a", to="shop.b"), Way.ALONE),
    "drop database": (command("dropDatabase", 1), Way.ALONE),
    "plain index": (building({"key": {"a": 1}, "name": "a_1"}), Way.BOTH),
    "unique index": (building({"key": {"a": 1}, "name": "a_1", "unique": True}), Way.ALONE),
    "unique as a number": (building({"key": {"a": 1}, "name": "a_1", "unique": 1.0}), Way.ALONE),
    "unique false": (building({"key": {"a": 1}, "name": "a_1", "unique": False}), Way.BOTH),
    "prepared index": (building({"key": {"a": 1}, "name": "a", "prepareUnique": True}), Way.ALONE),
    "unique, there already": (
        building({"key": {"k": 1.0, "l": -1}, "name": "k_1", "unique": 1, "background": True}),
        Way.BOTH,
    ),
    "unique, other order": (
        building({"key": {"l": -1, "k": 1}, "name": "k_1", "unique": True}), Way.ALONE,
    ),
    "unique, other name": (
        building({"key": {"k": 1, "l": -1}, "name": "other", "unique": True}), Way.ALONE,
    ),
    "unique, now sparse": (
        building({"key": {"k": 1, "l": -1}, "name": "k_1", "unique": True, "sparse": True}), Way.ALONE,
    ),
    "one of two is new": (
        building({"key": {"k": 1, "l": -1}, "name": "k_1", "unique": True},
                 {"key": {"m": 1}, "name": "m_1", "unique": True}), Way.ALONE,
    ),
    "drop plain": (command("dropIndexes", index="t_1"), Way.BOTH),
    "drop by its old name": (command("deleteIndexes", index="t_1"), Way.BOTH),
    "drop unique": (command("dropIndexes", index="k_1"), Way.ALONE),
    "drop prepared": (command("dropIndexes", index="p_1"), Way.ALONE),
    "drop unique by key": (command("dropIndexes", index={"k": 1, "l": -1}), Way.ALONE),
    "drop by another key": (command("dropIndexes", index={"l": -1, "k": 1}), Way.BOTH),
    "drop several": (command("dropIndexes", index=["t_1", "k_1"]), Way.ALONE),
    "drop all": (command("dropIndexes", index="*"), Way.ALONE),
    "drop none": (command("dropIndexes"), Way.BOTH),
    "hide": (command("collMod", index={"name": "k_1", "hidden": True}), Way.BOTH),
    "make unique": (command("collMod", index={"name": "t_1", "unique": True}), Way.ALONE),
    "no longer prepare": (command("collMod", index={"name": "p_1", "prepareUnique": False}), Way.ALONE),
    "validator": (command("collMod", validator={"unique": 1}), Way.BOTH),
    "a rule by which documents expire": (
        building({"key": {"f": 1}, "name": "f_1", "expireAfterSeconds": 5}), Way.BOTH,
    ),
    "of an index that was there": (expiry(5, name="t_1"), Way.BOTH),
    "of one that isn't": (expiry(5, name="none"), Way.BOTH),
    "sooner": (expiry(59, name="e_1"), Way.BOTH),
    "as it was": (expiry(60.0, keyPattern={"e": 1}), Way.BOTH),
    "later": (expiry(61, name="e_1"), Way.ALONE),
    "later, by key": (expiry(60.5, keyPattern={"e": 1}), Way.ALONE),
    "never": (expiry(float("nan"), name="e_1"), Way.ALONE),
    "at no time": (expiry("off", name="e_1"), Way.ALONE),
    "later, and hidden": (
        command("collMod", index={"name": "e_1", "hidden": True, "expireAfterSeconds": 90}), Way.ALONE,
    ),
    "hidden alone": (command("collMod", index={"name": "e_1", "hidden": True}), Way.BOTH),
    "drop an expiring one": (command("dropIndexes", index="e_1"), Way.ALONE),
    "drop it by its key": (command("dropIndexes", index={"e": 1}), Way.ALONE),
    "drop it among others": (command("dropIndexes", index=["t_1", "e_1"]), Way.ALONE),
    "compact": (command("compact"), Way.ARCHIVE),
    "to capped": (command("convertToCapped", size=1), Way.REFUSED),
    "unheard of": (command("somethingNew"), Way.REFUSED),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), WAYS.values(), ids=WAYS.keys())
def test_way(given: Command, expected: Way) -> None:
    assert way(given, LISTED) is expected


def test_all_indexes_go_on_both_tiers_where_none_is_a_rule() -> None:
    assert way(command("dropIndexes", index="*"), [ID, PLAIN]) is Way.BOTH
    assert way(command("dropIndexes", index="*"), [ID, EXPIRING]) is Way.ALONE


def snapshot(listed: tuple[str, ...] = (), **states: State) -> Snapshot:
    tierings = {
        f"shop.{name}": Tiering(Coverage(f"shop.{name}", state, state))
        for name, state in states.items()
    }
    return Snapshot(1.0, 1.0, tierings, frozenset(listed))


def test_a_database_concerns_every_namespace_with_a_policy_in_it() -> None:
    seen = snapshot(("shopping.c", "shop.d"), a=State.ACTIVE, b=State.PASSTHROUGH)
    assert concerned(command("dropDatabase", 1), frozenset(), seen) == {
        "shop.a", "shop.b", "shop.d",
    }  # fmt: skip
    assert concerned(command("drop", "a"), frozenset({"shop.a"}), seen) == {"shop.a"}
    assert concerned(command("drop", "x"), frozenset({"shop.x"}), seen) == frozenset()
    tiered = {ns for ns in ("shop.a", "shop.b", "shop.d", "shop.x") if is_tiered(ns, seen)}
    assert tiered == {"shop.a", "shop.d"}, "what is only listed may be tiered"


@pytest.mark.parametrize(
    ("source", "target", "word"),
    [
        ("shop.a", "shop.b", None),
        ("shop.b", "shop.a", None),
        ("shop.a", "shop.untiered", "policy"),
        ("shop.untiered", "shop.a", "policy"),
        ("shop.a", "other.a", "database"),
    ],
)
def test_renames(source: str, target: str, word: str | None) -> None:
    seen = snapshot(a=State.ACTIVE, b=State.PASSTHROUGH)
    given = Command(bson.encode({"renameCollection": source, "to": target, "$db": "admin"}))
    found = refusal(given, frozenset({source, target}), seen)
    assert found is None if word is None else word in (found or "")


def decoded(given: Command | None) -> dict[str, Any]:
    fields = {} if given is None else bson.decode(given.body)
    return {k: v for k, v in fields.items() if not k.startswith("$")}


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"validator": {"a": 1}}, {"validator": {"a": 1}}),
        ({"index": {"name": "t", "expireAfterSeconds": 5}}, None),
        ({"index": {"keyPattern": {"t": 1}, "expireAfterSeconds": 5}, "comment": "x"}, None),
        (
            {"index": {"name": "t", "expireAfterSeconds": 5, "hidden": True}},
            {"index": {"name": "t", "hidden": True}},
        ),
        (
            {"index": {"name": "t", "expireAfterSeconds": 5}, "validationLevel": "off"},
            {"validationLevel": "off"},
        ),
    ],
)
def test_expiry_is_taken_out_for_the_fast_tier(
    fields: dict[str, Any], left: dict[str, Any] | None
) -> None:
    found = schema_parts.options_without_expiry(command("collMod", **fields))
    assert found is None if left is None else decoded(found) == {"collMod": "orders", **left}


def test_what_is_the_archives_alone_is_taken_out_of_an_index_for_the_fast_tier() -> None:
    specs = [{"key": {"e": 1}, "name": "e_1", "expireAfterSeconds": 5, "sparse": True}, PLAIN]
    given = command("createIndexes", indexes=specs, commitQuorum=3)
    found = decoded(schema_parts.indexes_without_expiry(given))
    del specs[0]["expireAfterSeconds"]
    assert found == {"createIndexes": "orders", "indexes": specs}


def test_what_a_coll_mod_had_changed_is_brought_back() -> None:
    given = command("collMod", validator={"a": 1}, index={"keyPattern": {"t": 1}, "hidden": True})
    reply = bson.encode({"hidden_old": False, "hidden_new": True, "ok": 1.0})
    assert schema_parts.former_options(given, reply, {"validator": {"b": 1}}) == {
        "validator": {"b": 1},
        "index": {"keyPattern": {"t": 1}, "hidden": False},
    }
    only = command("collMod", index={"name": "t", "hidden": True})
    assert schema_parts.former_options(only, bson.encode({"ok": 1.0}), {}) == {}


def test_dropped_indexes_can_be_built_again() -> None:
    def dropped(index: Any) -> list[str]:
        found = schema_parts.dropped_by(command("dropIndexes", index=index), LISTED)
        return [str(spec["name"]) for spec in found]

    assert dropped("*") == ["t_1", "k_1", "p_1", "e_1"]
    assert dropped("t_1") == ["t_1"]
    assert dropped(["t_1", "p_1", "x"]) == ["t_1", "p_1"]
    assert dropped({"k": 1, "l": -1}) == ["k_1"]

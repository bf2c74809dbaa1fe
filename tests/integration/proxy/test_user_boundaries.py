"""What one user may do and see through a proxy is what MongoDB lets that user do and see.

The archive's own mongod, asked as the same user, is the oracle.
"""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from support.accounts import Login
from support.login_world import HOT, MANAGER, LoginWorld, login_world
from support.mongod import ReplicaSet
from support.scram import Scram, log_in
from support.wire import Wire

pytestmark = pytest.mark.integration

COLD = 11
NOBODY = Login("nobody-much", "nobody-secret")
OTHER = Login("other", "other-secret")
INSERTER = Login("inserter", "inserter-secret")
"""May insert into ``shop.orders`` and do nothing else."""

KEEPER = Login("keeper", "keeper-secret")
"""May also write what a collection's rules forbid."""


@pytest.fixture(scope="module")
def world(_secure_sets: tuple[ReplicaSet, ReplicaSet]) -> Iterator[LoginWorld]:
    with login_world(_secure_sets) as started:
        with started.connect(MANAGER) as manager:
            orders = {"db": "shop", "collection": "orders"}
            manager.admin.command("createUser", NOBODY.user, pwd=NOBODY.password, roles=[])
            manager.admin.command(
                "createUser", OTHER.user, pwd=OTHER.password, roles=["readWriteAnyDatabase"]
            )
            manager.admin.command(
                "createRole", "inserter", roles=[], privileges=[{"resource": orders, "actions": ["insert"]}],
            )  # fmt: skip
            manager.admin.command(
                "createUser", INSERTER.user, pwd=INSERTER.password, roles=["inserter"]
            )
            manager.admin.command(
                "createUser",
                KEEPER.user,
                pwd=KEEPER.password,
                roles=["readWriteAnyDatabase", "dbAdminAnyDatabase"],
            )
        yield started


def as_user(wire: Wire, login: Login) -> Wire:
    assert log_in(wire, Scram(login.user, login.password))[-1]["done"]
    return wire


def lsid() -> dict[str, Any]:
    return {"id": Binary(uuid.uuid4().bytes, 4)}


def in_transaction(command: dict[str, Any]) -> dict[str, Any]:
    own = {"lsid": lsid(), "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
    return {**command, **own}


def by_id(number: int) -> dict[str, dict[str, Any]]:
    """Commands that are about one document."""
    q = {"_id": number}
    change = {"$set": {"v": 1}}
    return {
        "find": {"find": "orders", "filter": q},
        "find and more": {"find": "orders", "filter": {**q, "t": number}},
        "update": {"update": "orders", "updates": [{"q": q, "u": change}]},
        "upsert": {"update": "orders", "updates": [{"q": q, "u": change, "upsert": True}]},
        "batch": {"update": "orders", "updates": [{"q": q, "u": change}, {"q": {"_id": 1}, "u": change}]},
        "delete": {"delete": "orders", "deletes": [{"q": q, "limit": 1}]},
        "find and modify": {"findAndModify": "orders", "query": q, "update": change},
        "find and remove": {"findAndModify": "orders", "query": q, "remove": True},
        "insert": {"insert": "orders", "documents": [{"_id": number}]},
        "explain": {"explain": {"find": "orders", "filter": q}},
    }  # fmt: skip


GENERAL: dict[str, dict[str, Any]] = {
    "all": {"find": "orders"},
    "by age": {"find": "orders", "filter": {"t": {"$gt": 3}}},
    "newest": {"find": "orders", "sort": {"t": -1}, "limit": 2},
    "aggregate": {"aggregate": "orders", "pipeline": [{"$match": {"t": 3}}], "cursor": {}},
    "join": {
        "aggregate": "plain",
        "pipeline": [{"$lookup": {"from": "orders", "localField": "t", "foreignField": "t", "as": "o"}}],
        "cursor": {},
    },
    "out": {"aggregate": "plain", "pipeline": [{"$out": "elsewhere"}], "cursor": {}},
    "watch": {"aggregate": "orders", "pipeline": [{"$changeStream": {}}], "cursor": {}},
    "count": {"count": "orders", "query": {"t": 3}},
    "distinct": {"distinct": "orders", "key": "t"},
    "update many": {"update": "orders", "updates": [{"q": {}, "u": {"$set": {"v": 1}}, "multi": True}]},
    "delete many": {"delete": "orders", "deletes": [{"q": {}, "limit": 0}]},
    "insert without rules": {"insert": "orders", "documents": [{"_id": 1}], "bypassDocumentValidation": True},
    "indexes": {"createIndexes": "orders", "indexes": [{"key": {"x": 1}, "name": "x"}]},
    "unique": {"createIndexes": "orders", "indexes": [{"key": {"x": 1}, "name": "x", "unique": True}]},
    "no indexes": {"dropIndexes": "orders", "index": "x"},
    "rules": {"collMod": "orders", "validationLevel": "off"},
    "drop": {"drop": "orders"},
    "drop all": {"dropDatabase": 1},
    "create": {"create": "elsewhere"},
    "statistics": {"collStats": "orders"},
    "listing": {"listIndexes": "orders"},
    "map": {"mapReduce": "orders", "map": "x", "reduce": "y", "out": {"inline": 1}},
}  # fmt: skip
ADMINISTRATION: dict[str, dict[str, Any]] = {
    "rename": {"renameCollection": "shop.orders", "to": "shop.elsewhere"},
    "users": {"usersInfo": 1},
    "user": {"createUser": "x", "pwd": "y", "roles": []},
    "role": {"createRole": "x", "privileges": [], "roles": []},
    "server": {"serverStatus": 1},
    "parameters": {"getParameter": 1, "logLevel": 1},
    "log": {"getLog": "global"},
    "end": {"killAllSessions": []},
}


def wording(reply: dict[str, Any]) -> tuple[Any, ...]:
    """Code and text; of the command that the text repeats, its name and collection."""
    text = re.sub(r"(\{ \w+: [^,}]+).*", r"\1", str(reply.get("errmsg", "")))
    return reply["ok"], reply.get("code"), reply.get("codeName"), text.strip()


def commands() -> dict[str, dict[str, Any]]:
    found = {f"{name}, hot": command for name, command in by_id(HOT).items()}
    found |= {f"{name}, cold": command for name, command in by_id(COLD).items()}
    found |= {f"{name}, absent": command for name, command in by_id(99).items()}
    found |= GENERAL
    inside = ("find, hot", "find, cold", "update, hot", "update, cold", "insert, cold", "all")
    found |= {f"{name}, in a transaction": in_transaction(found[name]) for name in inside}
    found = {name: {**command, "$db": "shop"} for name, command in found.items()}
    return found | {name: {**c, "$db": "admin"} for name, c in ADMINISTRATION.items()}


@pytest.mark.parametrize("login", [NOBODY, INSERTER], ids=["no rights", "only insert"])
def test_who_may_not_is_refused_in_mongods_words_whichever_tier_it_is_about(
    world: LoginWorld, login: Login
) -> None:
    differing, texts = {}, []
    with as_user(world.wire(), login) as through, as_user(world.direct(), login) as direct:
        for name, command in commands().items():
            if login is INSERTER and "insert" in command:
                continue
            mine, theirs = through.ask(command), direct.ask(command)
            texts.append(str(mine.get("errmsg")))
            if wording(mine) != wording(theirs):
                differing[name] = wording(mine), wording(theirs)
    assert not differing
    # What the proxy put into a command shows in no text.
    shown = [t for t in texts if re.search("lusterTime|collectionUUID|lsid", t)]
    assert not shown


def test_what_is_refused_moves_nothing(world: LoginWorld) -> None:
    with world.fast.client() as fast:
        before = (
            sorted(fast.shop.orders.distinct("_id")),
            fast.thermocline.removed.count_documents({}),
        )
        assert before[0] == [HOT]
        with as_user(world.wire(), NOBODY) as wire:
            for command in commands().values():
                wire.ask(command)
        after = (
            sorted(fast.shop.orders.distinct("_id")),
            fast.thermocline.removed.count_documents({}),
        )
    assert after == before


@pytest.mark.parametrize("login", [MANAGER, KEEPER], ids=["may not", "may"])
def test_going_round_the_rules_is_a_right_of_its_own(world: LoginWorld, login: Login) -> None:
    """A hot, a cold and a new document; who has the right gets the duplicate key that there is."""
    answers = []
    for connect, collection in ((world.wire, "orders"), (world.direct, "plain")):
        with as_user(connect(), login) as wire:
            for number in (HOT, COLD, f"new {login.user}"):
                documents = [{"_id": number, "t": 1}]
                insert = {"insert": collection, "documents": documents, "$db": "shop"}
                reply = wire.ask({**insert, "bypassDocumentValidation": True})
                errors = [error["code"] for error in reply.get("writeErrors", ())]
                answers.append((reply["ok"], reply.get("code"), reply.get("n"), errors))
    assert answers[:3] == answers[3:]
    assert [a[1] for a in answers[:3]] == ([13] * 3 if login is MANAGER else [None] * 3)


def opened(wire: Wire, command: dict[str, Any]) -> Int64:
    return Int64(wire.ask({**command, "batchSize": 2, "$db": "shop"})["cursor"]["id"])


FINDS: dict[str, dict[str, Any]] = {
    "untiered": {"find": "plain"},
    "archive": {"find": "orders"},
    "fast": {"aggregate": "orders", "pipeline": [{"$changeStream": {}}], "cursor": {}},
}


def boundaries(mine: Wire, theirs: Wire, find: dict[str, Any]) -> list[Any]:
    """What another user may do with a cursor, with a session and within a transaction of mine."""
    collection = find.get("find", find.get("aggregate"))
    if "cursor" in find:
        reply = mine.ask({**find, "$db": "shop"})
        cursor = Int64(reply["cursor"]["id"])
    else:
        cursor = opened(mine, find)
    more = {"getMore": cursor, "collection": collection, "$db": "shop"}
    kill = {"killCursors": collection, "cursors": [cursor], "$db": "shop"}
    answers = [
        theirs.ask(more),
        theirs.ask(kill),
        mine.ask({**more, "batchSize": 1}),
        mine.ask(kill),
    ]
    return [
        (a["ok"], a.get("code"), a.get("codeName"), sorted(k for k in a if k.startswith("cursors")))
        for a in answers
    ]


@pytest.mark.parametrize("place", FINDS)
def test_a_cursor_of_one_user_is_closed_to_another(world: LoginWorld, place: str) -> None:
    answers = []
    for connect in (world.wire, world.direct):
        with as_user(connect(), MANAGER) as mine, as_user(connect(), OTHER) as theirs:
            answers.append(boundaries(mine, theirs, FINDS[place]))
    assert answers[0] == answers[1]
    assert answers[0][0][1] == 13


def sessions(mine: Wire, theirs: Wire, collection: str, number: int) -> list[Any]:
    """The same session id and transaction number, used by two users: they are two sessions."""
    shared = lsid()
    own = {"lsid": shared, "txnNumber": Int64(5), "autocommit": False, "$db": "shop"}
    read = {"find": collection, "filter": {"_id": number}}
    write = {"update": collection, "updates": [{"q": {"_id": number}, "u": {"$inc": {"w": 1}}}]}
    commit = {"commitTransaction": 1, **own, "$db": "admin"}
    abort = {"abortTransaction": 1, **own, "$db": "admin"}
    answers = [
        mine.ask({**write, **own, "startTransaction": True}),
        theirs.ask({**read, **own}),
        theirs.ask({**write, **own}),
        theirs.ask(commit),
        theirs.ask(abort),
        theirs.ask({"killSessions": [shared], "$db": "admin"}),
        theirs.ask({"endSessions": [shared], "$db": "admin"}),
        mine.ask({**read, **own}),
        mine.ask(commit),
    ]
    cursor = opened(mine, {"find": "plain", "lsid": shared})
    more = {"getMore": cursor, "collection": "plain", "$db": "shop"}
    answers += [theirs.ask({**more, "lsid": shared}), theirs.ask(more)]
    retried = {**write, "lsid": shared, "txnNumber": Int64(6), "$db": "shop"}
    answers += [mine.ask(retried), theirs.ask(retried), mine.ask(retried)]
    return [(a["ok"], a.get("code"), a.get("codeName"), a.get("n")) for a in answers]


@pytest.mark.parametrize("place", ["untiered", "fast"])
def test_sessions_and_transactions_of_one_user_are_closed_to_another(
    world: LoginWorld, place: str
) -> None:
    collection = "orders" if place == "fast" else "plain"
    answers = []
    for connect, name in ((world.wire, collection), (world.direct, "plain")):
        with as_user(connect(), MANAGER) as mine, as_user(connect(), OTHER) as theirs:
            answers.append(sessions(mine, theirs, name, HOT))
    assert answers[0] == answers[1]
    assert [code for _, code, *_ in answers[0]][1:5] == [251] * 4


@pytest.mark.parametrize("place", ["untiered", "fast"])
def test_only_the_first_statement_of_a_transaction_names_a_read_concern(
    world: LoginWorld, place: str
) -> None:
    collection = "orders" if place == "fast" else "plain"
    answers = []
    for connect, name in ((world.wire, collection), (world.direct, "plain")):
        own = {"lsid": lsid(), "txnNumber": Int64(1), "autocommit": False, "$db": "shop"}
        read = {"find": name, "filter": {"_id": HOT}, **own}
        concern = {"readConcern": {"level": "snapshot"}}
        with as_user(connect(), MANAGER) as wire:
            replies = [
                wire.ask({**read, **concern, "startTransaction": True}),
                wire.ask({**read, **concern}),
                wire.ask({"commitTransaction": 1, **own, "$db": "admin"}),
            ]
        answers.append([(r["ok"], r.get("code"), r.get("errorLabels")) for r in replies])
    assert answers[0] == answers[1]
    assert answers[0][1][1] == 72

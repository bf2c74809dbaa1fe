"""Clients log in through the proxy as themselves; the tiers sign with different keys, A's clock is ahead."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from support import accounts
from support.accounts import Login
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from support.wire import Wire

pytestmark = pytest.mark.integration


@pytest.fixture
def secure(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> Iterator[Thermocline]:
    thermocline = Thermocline(secure_fast, secure_archive, [], mode="Passthrough")
    thermocline.start(only=("proxy",))
    try:
        with thermocline.logs_on_failure():
            yield thermocline
    finally:
        thermocline.stop()


def connect(thermocline: Thermocline, login: Login, **options: Any) -> MongoClient[dict[str, Any]]:
    return MongoClient(
        "127.0.0.1",
        thermocline.port,
        username=login.user,
        password=login.password,
        serverSelectionTimeoutMS=10_000,
        **options,
    )


def test_commands_run_as_the_client(secure: Thermocline) -> None:
    mechanisms = (None, "SCRAM-SHA-256", "SCRAM-SHA-1")
    for mechanism, balanced in itertools.product(mechanisms, (False, True)):
        options: dict[str, Any] = {"loadBalanced": balanced}
        if mechanism:
            options["authMechanism"] = mechanism
        with connect(secure, accounts.APPLICATION, **options) as client:
            info = client.admin.command("connectionStatus")["authInfo"]
            assert info["authenticatedUsers"] == [{"user": "application", "db": "admin"}]
            client.t.c.delete_many({})
            client.t.c.insert_many([{"_id": n} for n in range(300)])
            assert len(list(client.t.c.find(batch_size=50))) == 300
            with pytest.raises(OperationFailure) as caught:
                client.t.command("createUser", "x", pwd="y", roles=[])
            assert caught.value.code == 13


def test_causal_sessions_meet_no_foreign_time(secure: Thermocline) -> None:
    with connect(secure, accounts.APPLICATION) as client, client.start_session() as session:
        for number in range(30):
            client.t.c.insert_one({"_id": number}, session=session)
            assert client.t.c.find_one({"_id": number}, session=session) == {"_id": number}
            assert len(list(client.t.c.aggregate([], session=session))) == number + 1
        with secure.fast.client() as fast:
            own = fast.admin.command("ping")["operationTime"]
        assert session.operation_time is not None
        assert session.operation_time.time <= own.time + 1, "the archive's clock is 1,000 s ahead"


def test_wrong_passwords_and_unknown_users_look_alike(secure: Thermocline) -> None:
    answers = []
    for login in (Login("application", "wrong"), Login("nobody", "wrong")):
        with connect(secure, login) as client, pytest.raises(OperationFailure) as caught:
            client.t.c.find_one()
        details = dict(caught.value.details or {})
        answers.append({k: details[k] for k in ("ok", "code", "codeName", "errmsg")})
    assert answers[0] == answers[1]
    assert answers[0]["code"] == 18
    first = [
        hello(secure, {"saslSupportedMechs": f"admin.{user}"}).get("saslSupportedMechs")
        for user in ("application", "nobody")
    ]
    assert first[0] == first[1]
    salts = [challenge(secure, user) for user in ("nobody", "nobody", "somebody")]
    assert salts[0] == salts[1] != salts[2]


def hello(thermocline: Thermocline, fields: dict[str, Any]) -> dict[str, Any]:
    with Wire(thermocline.port) as wire:
        return wire.ask({"hello": 1, **fields, "$db": "admin"})


def challenge(thermocline: Thermocline, user: str) -> bytes:
    start = {
        "saslStart": 1,
        "mechanism": "SCRAM-SHA-256",
        "payload": f"n,,n={user},r=abcd".encode(),
        "db": "admin",
    }
    payload: bytes = hello(thermocline, {"speculativeAuthenticate": start})[
        "speculativeAuthenticate"
    ]["payload"]
    return payload.partition(b",s=")[2]


def test_a_changed_password_counts_soon(secure: Thermocline) -> None:
    old = accounts.APPLICATION
    new = Login(old.user, "another secret")
    with connect(secure, old) as client:
        client.t.c.insert_one({})
    with secure.archive.client() as archive:
        archive.admin.command("updateUser", new.user, pwd=new.password)
    accounts.copy_users(secure.fast, secure.archive)
    time.sleep(2.5)
    with connect(secure, old) as client, pytest.raises(OperationFailure):
        client.t.c.find_one()
    with connect(secure, new) as client:
        assert client.t.c.find_one() is not None


def test_a_dropped_user_is_out(secure: Thermocline) -> None:
    with secure.archive.client() as archive:
        archive.admin.command("dropUser", accounts.APPLICATION.user)
    time.sleep(2.5)
    with connect(secure, accounts.APPLICATION) as client, pytest.raises(OperationFailure) as caught:
        client.t.c.find_one()
    assert caught.value.code == 18


def test_users_of_other_databases_and_odd_names(secure: Thermocline) -> None:
    odd = Login("o=d,d ünï", "p@ss:w/ord%")
    accounts.create_application_user(
        secure.fast, secure.archive, odd, [{"role": "readWrite", "db": "shop"}], database="shop"
    )
    with connect(secure, odd, authSource="shop") as client:
        client.shop.c.insert_one({"_id": 1})
        with pytest.raises(OperationFailure) as caught:
            client.t.c.find_one()
        assert caught.value.code == 13


def test_what_is_answered_before_a_login(secure: Thermocline) -> None:
    commands: dict[str, Any] = {
        name: {name: 1}
        for name in (
            "ping", "buildInfo", "hello", "connectionStatus", "whatsmyuri", "getnonce",
            "listCommands", "startSession", "logout", "bogus", "serverStatus", "listDatabases",
            "saslContinue",
        )
    }  # fmt: skip
    commands |= {
        "saslContinue": {"saslContinue": 1, "conversationId": 1, "payload": b""},
        "find": {"find": "c"},
        "insert": {"insert": "c", "documents": [{}]},
        "getMore": {"getMore": 1, "collection": "c"},
        "killCursors": {"killCursors": "c", "cursors": []},
        "endSessions": {"endSessions": []},
        "aggregate": {"aggregate": "c", "pipeline": [], "cursor": {}},
        "plain": {"saslStart": 1, "mechanism": "PLAIN", "payload": b"\0a\0b"},
        "x509": {"authenticate": 1, "mechanism": "MONGODB-X509"},
    }
    differing = {}
    with Wire(secure.port) as through, Wire(secure.archive.members[0].port) as direct:
        for name, command in commands.items():
            codes = [
                wire.ask({**command, "$db": "admin"}).get("code") for wire in (through, direct)
            ]
            if codes[0] != codes[1]:
                differing[name] = codes
    # mongod words a certificate's absence in its own way; the proxy ends TLS itself.
    differing.pop("x509", None)
    assert not differing


def test_cursors_of_one_user_are_closed_to_another(secure: Thermocline) -> None:
    other = Login("other", "other-secret")
    accounts.create_application_user(secure.fast, secure.archive, other)
    with connect(secure, accounts.APPLICATION) as mine, connect(secure, other) as theirs:
        mine.t.c.insert_many([{"_id": n} for n in range(10)])
        cursor = mine.t.command({"find": "c", "batchSize": 2})["cursor"]["id"]
        with pytest.raises(OperationFailure) as caught:
            theirs.t.command({"getMore": cursor, "collection": "c"})
        assert caught.value.code == 13


def test_no_secret_is_logged_or_shown(secure: Thermocline) -> None:
    with connect(secure, accounts.APPLICATION) as client:
        client.t.c.insert_one({})
    wrong = Login("application", "wrong-secret")
    with connect(secure, wrong) as client, pytest.raises(OperationFailure):
        client.t.c.find_one()
    service = secure.services["proxy"]
    shown = service.process.tail(10_000) + str(service.status()) + service.metrics()
    for secret in (accounts.APPLICATION.password, "wrong-secret", "services-secret"):
        assert secret not in shown


def test_tiered_statements_run_as_the_client_on_both_tiers(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet
) -> None:
    with secure_archive.client() as archive:
        archive.shop.orders.create_index("t")
        archive.shop.orders.insert_many([{"_id": n, "t": n} for n in range(20)])
    collections = [{"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"}]
    reader = Login("reader", "reader-secret")
    thermocline = Thermocline(secure_fast, secure_archive, collections)
    with thermocline, thermocline.logs_on_failure():
        thermocline.wait_state("Active")
        accounts.create_application_user(
            secure_fast, secure_archive, reader, [{"role": "read", "db": "shop"}]
        )
        with connect(thermocline, accounts.APPLICATION) as client:
            orders = client.shop.orders
            wait_until("served", lambda: orders.find_one({"_id": 3}) is not None, 20)
            assert orders.update_one({"_id": 3}, {"$set": {"v": 1}}).modified_count == 1
            with client.start_session() as session:
                for number in range(10):
                    orders.insert_one({"_id": 100 + number}, session=session)
                    assert orders.find_one({"_id": 100 + number}, session=session)
                    assert orders.count_documents({}, session=session) == 21 + number
                    client.shop.plain.insert_one({"_id": number}, session=session)
                    assert client.shop.plain.find_one({"_id": number}, session=session)
        with connect(thermocline, reader) as client:
            assert client.shop.orders.find_one({"_id": 3}) == {"_id": 3, "t": 3, "v": 1}
            assert client.shop.orders.count_documents({}) == 30
            for write in (
                lambda: client.shop.orders.insert_one({"_id": "x"}),
                lambda: client.shop.orders.update_one({"_id": 3}, {"$set": {"v": 2}}),
                lambda: client.shop.orders.update_one({"_id": 15}, {"$set": {"v": 2}}),
                lambda: client.shop.orders.delete_one({"_id": 3}),
                lambda: client.shop.orders.delete_one({"_id": 15}),
            ):
                with pytest.raises(OperationFailure) as caught:
                    write()
                assert caught.value.code == 13
        with connect(thermocline, accounts.APPLICATION) as client:
            assert client.shop.orders.count_documents({}) == 30

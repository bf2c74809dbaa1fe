"""Whose connections the proxy uses, what it keeps of passwords, and what a stranger can learn."""

import hashlib
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import accounts
from support.accounts import Login
from support.login_world import HOT, MANAGER, LoginWorld, login_world
from support.mongod import ReplicaSet
from support.scram import Scram, log_in
from support.wire import Wire
from thermocline_common.coverage import Tier

pytestmark = pytest.mark.integration

USERS = [Login(f"user-{number}", f"secret-of-{number}") for number in range(4)]
POINT = {"find": "orders", "filter": {"_id": HOT}, "$db": "shop"}
STATUS = {"connectionStatus": 1, "$db": "admin"}


@pytest.fixture(scope="module")
def world(_secure_sets: tuple[ReplicaSet, ReplicaSet]) -> Iterator[LoginWorld]:
    # Two users' connections don't fit at the same time: they have to make room for each other.
    with login_world(
        _secure_sets, {"proxy": {"lease": "500ms", "maxUpstreamConnections": 4}}
    ) as it:
        with it.connect(MANAGER) as manager:
            for user in USERS:
                roles = [{"role": "read", "db": "shop"}, {"role": "readWrite", "db": user.user}]
                manager.admin.command("createUser", user.user, pwd=user.password, roles=roles)
        yield it


def names(reply: dict[str, Any]) -> list[str]:
    return [user["user"] for user in reply["authInfo"]["authenticatedUsers"]]


def test_many_users_at_once_each_as_oneself(world: LoginWorld) -> None:
    """Each writes where nobody else may, on few connections that go from user to user."""
    failures: list[str] = []

    def work(user: Login, seed: int) -> None:
        chosen = random.Random(seed)
        others = [other for other in USERS if other is not user]
        try:
            with world.wire() as wire:
                mechanism = chosen.choice(["SCRAM-SHA-1", "SCRAM-SHA-256"])
                log_in(wire, Scram(user.user, user.password, mechanism, skip_empty=True))
                for number in range(6):
                    own = {"insert": "c", "documents": [{}], "$db": user.user}
                    foreign = {**own, "$db": chosen.choice(others).user}
                    answers = [wire.ask(own), wire.ask(foreign), wire.ask(POINT), wire.ask(STATUS)]
                    codes = [answer.get("code", 0) for answer in answers]
                    if codes != [0, 13, 0, 0] or names(answers[3]) != [user.user]:
                        failures.append(f"{user.user} {number}: {codes} {answers[3]}")
        except BaseException as error:
            failures.append(f"{user.user}: {error!r}")
            raise

    threads = [
        threading.Thread(target=work, args=(user, number * 10 + turn))
        for number, user in enumerate(USERS)
        for turn in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    # The members' own view: a connection of the proxy for clients is one client's, and nobody else's.
    seen = set()
    for replica_set in (world.fast, world.archive):
        stage = {"$currentOp": {"allUsers": True, "idleConnections": True}}
        with replica_set.client() as client:
            for operation in client.admin.aggregate([stage]):
                driver = operation.get("clientMetadata", {}).get("driver", {}).get("name")
                if driver == "thermocline-proxy" and operation.get("effectiveUsers"):
                    users = [user["user"] for user in operation["effectiveUsers"]]
                    assert len(users) == 1, operation
                    seen.add(users[0])
    assert seen <= {MANAGER.user, *(user.user for user in USERS)}
    assert seen & {user.user for user in USERS}


def test_users_one_after_the_other_on_one_connection(world: LoginWorld) -> None:
    """Nothing of the one stays for the next, not even a route that was found for the same command."""
    writes = {"insert": "c", "documents": [{}], "$db": USERS[0].user}
    with world.wire() as wire:
        for turn in range(3):
            for user in USERS:
                assert log_in(wire, Scram(user.user, user.password))[-1]["done"]
                assert [wire.ask(POINT)["ok"] for _ in range(3)] == [1, 1, 1], turn
                assert names(wire.ask(STATUS)) == [user.user]
                expected = 0 if user is USERS[0] else 13
                assert [wire.ask(writes).get("code", 0) for _ in range(3)] == [expected] * 3
                assert wire.ask({"logout": 1, "$db": "admin"})["ok"] == 1
                for command in (POINT, writes, {"find": "plain", "$db": "shop"}):
                    assert wire.ask(command)["code"] == 13
                assert names(wire.ask(STATUS)) == []


def memory(pid: int) -> Iterator[bytes]:
    """What a process can write to, piece by piece."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found is None or "[v" in line:
                continue
            start, end = (int(bound, 16) for bound in found.groups())
            file.seek(start)
            try:
                yield file.read(end - start)
            except OSError:
                continue


def test_the_proxy_holds_no_password(world: LoginWorld) -> None:
    """Neither as it was typed nor as SCRAM-SHA-1 takes it, in its memory, log, status, or metrics."""
    user = Login("private", "a password that nobody else has")
    with world.archive.client() as archive:
        archive.admin.command("createUser", user.user, pwd=user.password, roles=["read"])
    digest = hashlib.md5(f"{user.user}:mongo:{user.password}".encode()).hexdigest()
    wires = []
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
        wire = world.wire()
        assert log_in(wire, Scram(user.user, user.password, mechanism))[-1]["done"]
        assert wire.ask(STATUS)["ok"] == 1
        wires.append(wire)
    service = world.thermocline.services["proxy"]
    own = accounts.SERVICES[Tier.ARCHIVE].password
    looked_for = [user.password, digest, own]
    try:
        pieces = list(memory(service.process.pid))
    except PermissionError:
        pytest.skip("this machine lets nobody look into another process's memory")
    held = [text for text in looked_for if any(text.encode() in piece for piece in pieces)]
    assert held == [own], "its own is there, so the search finds what there is"
    shown = service.process.tail(10_000) + str(service.status()) + service.metrics()
    assert not [text for text in looked_for if text in shown]
    for wire in wires:
        wire.close()


def test_no_secret_reaches_the_log_even_where_commands_fail(world: LoginWorld) -> None:
    """Passwords in commands, payloads of log-ins, and proofs."""
    with world.wire() as wire:
        assert log_in(wire, Scram(MANAGER.user, MANAGER.password))[-1]["done"]
        secrets = ["pwd-in-createUser", "pwd-in-a-refusal", "payload-of-a-start"]
        wire.ask({"createUser": "x", "pwd": secrets[0], "roles": [{"role": 5}], "$db": "shop"})
        wire.ask({"updateUser": "nobody", "pwd": secrets[1], "roles": [], "$db": "shop"})
        wire.ask({"saslStart": 1, "mechanism": "PLAIN", "payload": secrets[2].encode(), "$db": "x"})
        scram = Scram(USERS[0].user, USERS[0].password)
        reply = wire.ask(scram.start)
        proof = scram.final(reply)["payload"].decode().partition("p=")[2]
        assert wire.ask({**scram.final(reply), "payload": {"a": 1}})["ok"] == 0
    service = world.thermocline.services["proxy"]
    shown = service.process.tail(10_000) + str(service.status()) + service.metrics()
    assert not [secret for secret in [*secrets, proof] if secret in shown]


def salt(wire: Wire, user: str, mechanism: str) -> bytes:
    payload: bytes = wire.ask(Scram(user, "x", mechanism).start)["payload"]
    return payload.partition(b",s=")[2]


def test_an_unknown_users_salt_is_the_same_from_every_proxy_and_after_a_restart(
    world: LoginWorld,
) -> None:
    second = world.thermocline.add_service("proxy", "another proxy")
    second.wait_ready()
    assert second.listen is not None
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
        found = {}
        for name in ("nobody", "nobody else", USERS[0].user):
            salts = set()
            for port in (world.thermocline.port, second.listen):
                with Wire(port, 30) as wire:
                    salts |= {salt(wire, name, mechanism) for _ in range(2)}
            assert len(salts) == 1, name
            found[name] = salts.pop()
        assert len(set(found.values())) == 3
        assert len({len(value) for value in found.values()}) == 1


def attempt(wire: Wire, user: str) -> float:
    """Seconds until a log-in with a wrong password has failed."""
    scram = Scram(user, "wrong")
    started = time.perf_counter()
    reply = wire.ask(scram.start)
    between = time.perf_counter()
    final = scram.final(reply)
    again = time.perf_counter()
    assert wire.ask(final)["code"] == 18
    return time.perf_counter() - again + between - started


def test_time_tells_nothing_of_whether_a_user_exists(world: LoginWorld) -> None:
    """The quickest tenth of many log-ins in turn, which other work on the machine disturbs least: what is left out
    for one kind of user (a question to the archive, a message, or the proof) takes a third of the time or more."""
    ratios = []
    for _ in range(10):
        times: dict[str, list[float]] = {"known": [], "unknown": []}
        with world.wire() as wire:
            for number in range(40):
                for kind, user in (
                    ("known", USERS[number % 4].user),
                    ("unknown", f"x{number % 4}"),
                ):
                    times[kind].append(attempt(wire, user))
        known, unknown = (sorted(times[kind])[4] for kind in ("known", "unknown"))
        ratios.append(round(unknown / known, 2))
        if 0.85 < ratios[-1] < 1.18:
            return
    raise AssertionError(f"never alike: {ratios}")

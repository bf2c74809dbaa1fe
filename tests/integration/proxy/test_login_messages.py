"""Each message of a log-in, right or wrong, is answered as a mongod answers it."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support import accounts
from support.accounts import Login
from support.mongod import ReplicaSet
from support.scram import Scram, log_in
from support.services import Thermocline
from support.wire import Wire

pytestmark = pytest.mark.integration

ONE = Login("one", "one-secret")
TWO = Login("two", "two-secret")
STATUS = {"connectionStatus": 1, "$db": "admin"}
FIND = {"find": "c", "$db": "shop"}

Replies = list[Any]


@pytest.fixture
def ports(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> Iterator[tuple[int, int]]:
    """Of the proxy and of the archive's mongod."""
    thermocline = Thermocline(secure_fast, secure_archive, [], mode="Passthrough")
    thermocline.start(only=("proxy",))
    try:
        with secure_archive.client() as client:
            for login in (ONE, TWO):
                client.admin.command(
                    "createUser", login.user, pwd=login.password, roles=["readAnyDatabase"]
                )
            client.shop.command("createUser", TWO.user, pwd="another", roles=["read"])
            for user, mechanism in (("new", "SCRAM-SHA-256"), ("old", "SCRAM-SHA-1")):
                client.admin.command(
                    "createUser", user, pwd="secret", roles=[], mechanisms=[mechanism]
                )
        with thermocline.logs_on_failure():
            yield thermocline.port, secure_archive.members[0].port
    finally:
        thermocline.stop()


def one(**options: Any) -> Scram:
    return Scram(ONE.user, ONE.password, **options)


def shape(reply: Any) -> Any:
    """What must be equal: everything but times, and of a payload its attributes and rounds."""
    if not isinstance(reply, dict):
        return reply
    kept = {k: v for k, v in reply.items() if k not in ("operationTime", "$clusterTime")}
    payload = kept.get("payload")
    if payload:
        parts = (base64.b64decode(payload) if isinstance(payload, str) else payload).decode()
        kept["payload"] = (
            type(payload).__name__,
            [part if part.startswith("i=") else part[:2] for part in parts.split(",")],
        )
    return kept


def hello(wire: Wire, **fields: Any) -> Replies:
    """What a hello answers to these fields alone."""
    reply = wire.ask({"hello": 1, **fields, "$db": "admin"})
    said = ("ok", "code", "codeName", "errmsg", "saslSupportedMechs")
    kept = {k: v for k, v in reply.items() if k in said}
    if "saslSupportedMechs" in kept:
        kept["saslSupportedMechs"].sort()  # mongod's order differs from start to start
    return [kept, shape(reply.get("speculativeAuthenticate"))]


def begun(wire: Wire) -> tuple[Scram, dict[str, Any]]:
    scram = one()
    return scram, wire.ask(scram.start)


def changed_end(**changes: Any) -> Callable[[Wire], Replies]:
    """A log-in whose last message is changed (None: without that field), then sent as it should be."""

    def run(wire: Wire) -> Replies:
        scram, reply = begun(wire)
        good = scram.final(reply)
        bad = {k: v for k, v in {**good, **changes}.items() if v is not None}
        return [wire.ask(bad), wire.ask(good)]

    return run


def with_text(wire: Wire) -> Replies:
    scram = one()
    start = scram.start
    start["payload"] = base64.b64encode(start["payload"]).decode()
    reply = wire.ask(start)
    final = scram.final({**reply, "payload": base64.b64decode(reply["payload"])})
    final["payload"] = base64.b64encode(final["payload"]).decode()
    return [reply, wire.ask(final), wire.ask({**scram.empty(reply), "payload": ""})]


def bad_proofs(wire: Wire) -> Replies:
    changes: list[Callable[[bytes], bytes]] = [
        lambda p: b"",
        lambda p: b"garbage",
        lambda p: b"\xff",
        lambda p: p + b",x=y",
        lambda p: p.replace(b"c=biws", b"c=eSws"),
        lambda p: p.replace(b",r=", b",r=x"),
    ]
    answers = []
    for change in changes:
        scram, reply = begun(wire)
        final = scram.final(reply)
        answers.append(wire.ask({**final, "payload": change(final["payload"])}))
    return answers


def twice(wire: Wire) -> Replies:
    scram, reply = Scram(ONE.user, "wrong"), None
    reply = wire.ask(scram.start)
    final = scram.final(reply)
    return [wire.ask(final), wire.ask(final), *log_in(wire, one())]


def two_begun(wire: Wire) -> Replies:
    first, reply = begun(wire)
    second, other = begun(wire)
    return [wire.ask(first.final(reply)), wire.ask(second.final(other))]


def interrupted(wire: Wire) -> Replies:
    scram, reply = begun(wire)
    between = [wire.ask({"ping": 1, "$db": "admin"}), wire.ask(FIND), wire.ask(STATUS)]
    return [*between, wire.ask(scram.final(reply)), wire.ask(FIND)]


def second_user(second: Scram, *between: dict[str, Any]) -> Callable[[Wire], Replies]:
    """One user after the other on one connection, with commands in between."""

    def run(wire: Wire) -> Replies:
        first = log_in(wire, one())
        answers = [wire.ask(command) for command in between]
        return [*first, *answers, *log_in(wire, second), wire.ask(STATUS)]

    return run


def speculative(wire: Wire) -> Replies:
    scram = one(skip_empty=True)
    reply = wire.ask({"hello": 1, "speculativeAuthenticate": scram.speculative, "$db": "admin"})
    wire.ask({"hello": 1, "$db": "admin"})
    done = wire.ask(scram.final(reply["speculativeAuthenticate"]))
    return [done, wire.ask(STATUS), hello(wire, speculativeAuthenticate=one().speculative)]


def speculative_in_vain(wire: Wire) -> Replies:
    scram = Scram(ONE.user, "wrong", skip_empty=True)
    reply = wire.ask({"hello": 1, "speculativeAuthenticate": scram.speculative, "$db": "admin"})
    failed = wire.ask(scram.final(reply["speculativeAuthenticate"]))
    wire.ask({"hello": 1, "speculativeAuthenticate": one().speculative, "$db": "admin"})
    return [failed, *log_in(wire, Scram(TWO.user, TWO.password)), wire.ask(STATUS)]


def start(**fields: Any) -> Callable[[Wire], Replies]:
    command = {**one().start, **fields}
    chosen = {k: v for k, v in command.items() if v != "absent"}
    return lambda wire: [wire.ask(chosen)]


LOGOUT = {"logout": 1, "$db": "admin"}
CASES: dict[str, Callable[[Wire], Replies]] = {
    "text": with_text,
    "bad proofs": bad_proofs,
    "the same proof twice": twice,
    "two begun": two_begun,
    "interrupted": interrupted,
    "nothing begun": lambda w: [w.ask(one().empty({"conversationId": 1}))],
    "another conversation": changed_end(conversationId=99),
    "no conversation": changed_end(conversationId=None),
    "no proof": changed_end(payload=None),
    "end on another database": changed_end(**{"$db": "shop"}),
    "the same user twice": second_user(one()),
    "another user": second_user(Scram(TWO.user, TWO.password)),
    "another user of another database": second_user(Scram(TWO.user, "another", database="shop")),
    "again with a wrong password": second_user(Scram(ONE.user, "wrong")),
    "another user after logout": second_user(Scram(TWO.user, TWO.password), LOGOUT, FIND, STATUS),
    "another database after logout": second_user(
        Scram(TWO.user, "another", database="shop"), LOGOUT, STATUS
    ),
    "after logout elsewhere": second_user(
        Scram(TWO.user, TWO.password), {"logout": 1, "$db": "shop"}, FIND, STATUS
    ),
    "logout of nobody": lambda w: [w.ask(LOGOUT)],
    "speculative": speculative,
    "speculative, wrong": speculative_in_vain,
    "no mechanism": start(mechanism="absent"),
    "mechanism null": start(mechanism=None),
    "mechanism 5": start(mechanism=5),
    "no payload": start(payload="absent"),
    "payload 5": start(payload=5),
    "payload null": start(payload=None),
    "payload no text": start(payload="!!"),
    "options 5": start(options=5),
    "external": start(**{"$db": "$external"}),
    "channel binding": lambda w: [*log_in(w, one(gs2="y,,"))],
    "as oneself": lambda w: [*log_in(w, one(gs2="n,a=one,"))],
    "as another": start(payload=b"n,a=two,n=one,r=nonce"),
}  # fmt: skip
for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
    for skip in (None, False, True):
        for word in ("right", "wrong"):
            secret = ONE.password if word == "right" else "wrong"
            scram = Scram(ONE.user, secret, mechanism, skip_empty=skip)
            CASES[f"{word} {mechanism}, skip {skip}"] = lambda w, s=scram: log_in(w, s)  # type: ignore[misc]
for user, mechanism in (("new", "SCRAM-SHA-256"), ("old", "SCRAM-SHA-1")):
    scram = Scram(user, "secret", mechanism)
    CASES[f"user of {mechanism}"] = lambda w, s=scram: log_in(w, s)  # type: ignore[misc]
PAYLOADS = (
    b"", b"n,,", b"n,,n=u", b"p=x,,n=one,r=nonce", b"n,,n=one,r=abc", b"n,,n=o=2Fne,r=nonce",
    b"n,,n=one,r=nonce,x=y", b"n,,r=nonce,n=one", b"n,,m=1,n=one,r=nonce", b"\xff", b"n,,n=,r=nonce",
)  # fmt: skip
for payload in PAYLOADS:
    CASES[f"payload {payload!r}"] = start(payload=payload)
SPECULATIONS: tuple[Any, ...] = (
    5, "x", {}, {"bogus": 1}, {"saslStart": 1}, one().start, {**one().speculative, "db": 5},
    {"authenticate": 1, "mechanism": "MONGODB-X509", "db": "$external"},
)  # fmt: skip
for value in SPECULATIONS:
    CASES[f"speculative {value!r}"] = lambda w, v=value: hello(w, speculativeAuthenticate=v)  # type: ignore[misc]
NAMES: tuple[Any, ...] = (
    5, None, "x", "", "admin.", ".one", "admin.one", "shop.two", "admin.new", "admin.old", ["admin.one"],
    {"user": "one", "db": "admin"}, {"user": "one"},
)  # fmt: skip
for value in NAMES:
    CASES[f"mechanisms of {value!r}"] = lambda w, v=value: hello(w, saslSupportedMechs=v)  # type: ignore[misc]


def test_every_message_is_answered_as_mongod_answers_it(ports: tuple[int, int]) -> None:
    differing = {}
    for name, case in CASES.items():
        answers = []
        for port in ports:
            with Wire(port, 20) as wire:
                answers.append([shape(reply) for reply in case(wire)])
        if answers[0] != answers[1]:
            differing[name] = answers
    assert not differing


MECHANISMS = ("MONGODB-X509", "PLAIN", "GSSAPI", "MONGODB-AWS", "MONGODB-OIDC", "MONGODB-CR")


def test_what_cannot_pass_is_refused_with_the_reason(ports: tuple[int, int]) -> None:
    for mechanism in MECHANISMS:
        begin = {"saslStart": 1, "mechanism": mechanism, "payload": b"\0u\0secret"}
        speculated = {**begin, "db": "$external"}
        with Wire(ports[0]) as wire, Wire(ports[1]) as direct:
            for database in ("$external", "admin"):
                mine = wire.ask({**begin, "$db": database})
                theirs = direct.ask({**begin, "$db": database})
                assert (mine["code"], mine["codeName"]) == (334, "MechanismUnavailable")
                assert theirs["code"] == 334
                assert mechanism in mine["errmsg"]
                assert "log in with SCRAM-SHA-256" in mine["errmsg"]
                assert "secret" not in mine["errmsg"]
            assert hello(wire, speculativeAuthenticate=speculated) == [{"ok": 1.0}, None]
            authenticate = {"authenticate": 1, "mechanism": mechanism, "$db": "$external"}
            assert wire.ask(authenticate)["code"] == 334


def test_a_mechanism_that_the_archive_does_not_offer(
    secure_fast: ReplicaSet, make_replica_set: Callable[..., ReplicaSet]
) -> None:
    """Then unknown users don't seem to have it either."""
    archive = make_replica_set(
        "strict",
        keyfile="c3RyaWN0LWtleWZpbGU=",
        parameters={
            "authenticationMechanisms": "SCRAM-SHA-256",
            "scramSHA256IterationCount": "6000",
        },
    )
    accounts.drop_users(secure_fast)
    thermocline = Thermocline(secure_fast, archive, [], mode="Passthrough")
    thermocline.start(only=("proxy",))
    try:
        with thermocline.logs_on_failure(), Wire(thermocline.port, 20) as wire:
            application = accounts.APPLICATION
            for user in (application.user, "nobody"):
                offered = hello(wire, saslSupportedMechs=f"admin.{user}")
                assert offered[0]["saslSupportedMechs"] == ["SCRAM-SHA-256"]
                refused = wire.ask(Scram(user, "x", "SCRAM-SHA-1").start)
                assert refused["code"] == 334
                payload = wire.ask(Scram(user, "x").start)["payload"]
                assert payload.endswith(b",i=6000")
            assert log_in(wire, Scram(application.user, application.password))[-1]["done"]
    finally:
        thermocline.stop()

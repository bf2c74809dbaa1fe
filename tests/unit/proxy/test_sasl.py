"""What log-in commands and hellos say; the codes and texts are those of a mongod 6.0.5."""

import base64
from typing import Any

import pytest

from thermocline_common.errors import CommandError
from thermocline_proxy import sasl

OFFERED = ("SCRAM-SHA-256", "SCRAM-SHA-1")


def start(**fields: Any) -> dict[str, Any]:
    return {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"x", **fields}


def test_a_start_is_read() -> None:
    said = sasl.parse_start(start(options={"skipEmptyExchange": True}))
    assert (said.mechanism, said.payload, said.text, said.skip_empty) == (
        "SCRAM-SHA-256",
        b"x",
        False,
        True,
    )
    assert not sasl.parse_start(start()).skip_empty
    assert "payload" not in repr(said)


def test_who_sends_text_gets_text() -> None:
    said = sasl.parse_start(start(payload=base64.b64encode(b"x").decode()))
    assert (said.payload, said.text) == (b"x", True)
    assert sasl.packed(b"x", text=True) == "eA=="
    assert sasl.packed(b"x", text=False) == b"x"


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ({"payload": b""}, 40414, "'saslStart.mechanism' is missing"),
        (start(mechanism=None), 40414, "'saslStart.mechanism' is missing"),
        (start(mechanism=5), 14, "wrong type 'int', expected type 'string'"),
        ({"mechanism": "SCRAM-SHA-1"}, 40414, "'saslStart.payload' is missing"),
        (start(payload=None), 2, "got: null"),
        (start(payload=5), 2, "got: int"),
        (start(payload="!!"), 10270, "invalid base64"),
        (start(options=5), 14, "'saslStart.options' is the wrong type 'int'"),
    ],
)
def test_wrong_starts(command: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(CommandError, match=text) as caught:
        sasl.parse_start(command)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"payload": b""}, 40414),
        ({"conversationId": 1}, 40414),
        ({"conversationId": "1", "payload": b""}, 14),
        ({"conversationId": True, "payload": b""}, 14),
    ],
)
def test_wrong_continuations(command: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as caught:
        sasl.parse_continue(command)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("admin.u", ("admin", "u")),
        ("a.b.c", ("a", "b.c")),
        ({"db": "admin", "user": "u"}, ("admin", "u")),
        ("admin.", None),
        (".u", None),
        ({"db": "admin"}, 2),
        ({"user": "u"}, 2),
        ("$external.u", None),
        ("x", 2),
        ("", 2),
        (5, 14),
        (None, 14),
        (["admin.u"], 14),
    ],
)
def test_names_of_users(value: Any, expected: Any) -> None:
    if isinstance(expected, int):
        with pytest.raises(CommandError) as caught:
            sasl.parse_user(value)
        assert caught.value.code == expected
    else:
        assert sasl.parse_user(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (start(db="shop"), "shop"),
        (start(), None),
        (start(db=5), None),
        ({"authenticate": 1, "mechanism": "MONGODB-X509", "db": "$external"}, None),
        ({}, 2),
        ({"bogus": 1}, 51769),
        (5, 14),
        ("x", 14),
    ],
)
def test_speculation(value: Any, expected: Any) -> None:
    if isinstance(expected, int):
        with pytest.raises(CommandError) as caught:
            sasl.parse_speculative(value)
        assert caught.value.code == expected
    else:
        found = sasl.parse_speculative(value)
        assert (found and found[0]) == expected


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        ("MONGODB-X509", "certificate ends at the proxy"),
        ("PLAIN", "the proxy takes none"),
        ("GSSAPI", "Kerberos ticket"),
        ("MONGODB-AWS", "signature"),
        ("MONGODB-OIDC", "token"),
        ("BOGUS", "not enabled; log in with SCRAM-SHA-256 or SCRAM-SHA-1"),
    ],
)
def test_other_mechanisms_are_refused_with_the_reason(mechanism: str, why: str) -> None:
    with pytest.raises(CommandError, match=why) as caught:
        sasl.require_scram(mechanism, "$external", OFFERED)
    assert (caught.value.code, caught.value.code_name) == (334, "MechanismUnavailable")
    assert caught.value.message.startswith(
        f"Received authentication for mechanism {mechanism} which is not enabled"
    )


def test_scram_where_the_archive_offers_it() -> None:
    sasl.require_scram("SCRAM-SHA-1", "admin", OFFERED)
    for mechanism, database, offered in (
        ("SCRAM-SHA-1", "admin", ("SCRAM-SHA-256",)),
        ("SCRAM-SHA-256", "$external", OFFERED),
    ):
        with pytest.raises(CommandError) as caught:
            sasl.require_scram(mechanism, database, offered)
        assert caught.value.code == 334


def test_authenticate_names_its_mechanism() -> None:
    assert sasl.parse_authenticate({"mechanism": "MONGODB-X509"}) == "MONGODB-X509"
    for command, code in (({}, 40414), ({"mechanism": ""}, 2), ({"mechanism": 5}, 14)):
        with pytest.raises(CommandError) as caught:
            sasl.parse_authenticate(command)
        assert caught.value.code == code

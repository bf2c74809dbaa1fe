"""SCRAM on both sides: the RFC's example, recovery of the client's key, and everything wrong."""

import base64
import hashlib
import hmac

import pytest

from thermocline_proxy import scram
from thermocline_proxy.scram import Credential, ScramError

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(mechanism: str, password: str) -> tuple[Credential, bytes]:
    digest = scram.DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored = hashlib.new(digest, client_key).digest()
    return Credential(
        mechanism, SALT, 4096, stored, hmac.digest(salted, b"Server Key", digest)
    ), client_key


def test_the_example_of_rfc_7677() -> None:
    stored, client_key = credential("SCRAM-SHA-256", "pencil")
    first = scram.parse_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    exchange = scram.server_first(first, stored, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.message == (
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    recovered, final = scram.verify(
        exchange,
        stored,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert recovered == client_key
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
@pytest.mark.parametrize("user", ["plain", "with,comma=and equals", "ünïcode"])
def test_a_recovered_key_logs_in_elsewhere(mechanism: str, user: str) -> None:
    stored, client_key = credential(mechanism, "secret")
    bare, payload = scram.client_first(user, "abc")
    first = scram.parse_client_first(payload)
    assert first.user == user
    exchange = scram.server_first(first, stored, "def")
    answer, expected = scram.client_final(
        bare, "abc", exchange.message.encode(), mechanism, client_key, stored.server_key
    )
    recovered, final = scram.verify(exchange, stored, answer)
    assert (recovered, final) == (client_key, expected)


def test_a_wrong_key_is_refused() -> None:
    stored, _ = credential("SCRAM-SHA-256", "secret")
    _, other = credential("SCRAM-SHA-256", "guess")
    bare, payload = scram.client_first("u", "abc")
    exchange = scram.server_first(scram.parse_client_first(payload), stored, "def")
    answer, _ = scram.client_final(
        bare, "abc", exchange.message.encode(), "SCRAM-SHA-256", other, stored.server_key
    )
    with pytest.raises(ScramError):
        scram.verify(exchange, stored, answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"c=biws",
        b"c=biws,r=abcdef",
        b"c=biws,r=abcdef,p=!!!",
        b"c=biws,r=abcdef,p=AAAA",
        b"c=eSws,r=abcdef,p=" + base64.b64encode(bytes(32)),
        b"c=biws,r=other,p=" + base64.b64encode(bytes(32)),
        b"p=" + base64.b64encode(bytes(32)) + b",c=biws,r=abcdef",
        b"c=biws,c=biws,r=abcdef,p=" + base64.b64encode(bytes(32)),
        b"\xff\xfe",
    ],
)
def test_malformed_proofs(answer: bytes) -> None:
    stored, _ = credential("SCRAM-SHA-256", "secret")
    exchange = scram.server_first(scram.parse_client_first(b"n,,n=u,r=abc"), stored, "def")
    with pytest.raises(ScramError):
        scram.verify(exchange, stored, answer)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"n,,",
        b"n,,n=u",
        b"n,,r=x",
        b"p=tls-unique,,n=u,r=x",
        b"n,a=admin,n=u,r=x",
        b"n,,m=1,n=u,r=x",
        b"\xff",
    ],
)
def test_malformed_first_messages(payload: bytes) -> None:
    with pytest.raises(ScramError):
        scram.parse_client_first(payload)


def test_a_server_that_answers_another_nonce_is_refused() -> None:
    with pytest.raises(ScramError):
        scram.client_final(
            "n=u,r=abc", "abc", b"r=xyz,s=AAAA,i=1", "SCRAM-SHA-256", b"k" * 32, b"s" * 32
        )
    with pytest.raises(ScramError):
        scram.client_final(
            "n=u,r=abc", "abc", b"r=abc,s=AAAA,i=1", "SCRAM-SHA-256", b"k" * 32, b"s" * 32
        )

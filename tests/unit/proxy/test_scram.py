"""SCRAM on both sides: the RFC's example, recovery of the client's key, and everything wrong."""

import base64
import hashlib
import hmac

import pytest

from thermocline_proxy import scram
from thermocline_proxy.ports import Identity
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
    bare, payload = scram.client_first(user, "abcd")
    first = scram.parse_client_first(payload)
    assert first.user == user
    exchange = scram.server_first(first, stored, "efgh")
    answer, expected = scram.client_final(
        bare, "abcd", exchange.message.encode(), mechanism, client_key, stored.server_key
    )
    recovered, final = scram.verify(exchange, stored, answer)
    assert (recovered, final) == (client_key, expected)


def test_a_wrong_key_is_refused() -> None:
    stored, _ = credential("SCRAM-SHA-256", "secret")
    _, other = credential("SCRAM-SHA-256", "guess")
    bare, payload = scram.client_first("u", "abcd")
    exchange = scram.server_first(scram.parse_client_first(payload), stored, "efgh")
    answer, _ = scram.client_final(
        bare, "abcd", exchange.message.encode(), "SCRAM-SHA-256", other, stored.server_key
    )
    with pytest.raises(ScramError):
        scram.verify(exchange, stored, answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"c=biws",
        b"c=biws,r=abcdefgh",
        b"c=biws,r=abcdefgh,p=!!!",
        b"c=biws,r=abcdefgh,p=AAAA",
        b"c=eSws,r=abcdefgh,p=" + base64.b64encode(bytes(32)),
        b"c=biws,r=other,p=" + base64.b64encode(bytes(32)),
        b"p=" + base64.b64encode(bytes(32)) + b",c=biws,r=abcdefgh",
        b"c=biws,c=biws,r=abcdefgh,p=" + base64.b64encode(bytes(32)),
        b"\xff\xfe",
    ],
)
def test_malformed_proofs(answer: bytes) -> None:
    stored, _ = credential("SCRAM-SHA-256", "secret")
    exchange = scram.server_first(scram.parse_client_first(b"n,,n=u,r=abcd"), stored, "efgh")
    with pytest.raises(ScramError):
        scram.verify(exchange, stored, answer)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"n,,",
        b"n,,n=u",
        b"n,,r=nonce",
        b"p=tls-unique,,n=u,r=nonce",
        b"n,a=admin,n=u,r=nonce",
        b"n,u,n=u,r=nonce",
        b"n,,m=1,n=u,r=nonce",
        b"n,,n=,r=nonce",
        b"n,,n=u,r=abc",
        b"n,,r=nonce,n=u",
        b"n,,n=u=2F,r=nonce",
        b"n,,n=u\0,r=nonce",
        b"\xff",
    ],
)
def test_malformed_first_messages(payload: bytes) -> None:
    with pytest.raises(ScramError):
        scram.parse_client_first(payload)


@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=u,", "n,a==3D,"])
def test_headers_that_change_nothing(gs2: str) -> None:
    user = "=" if "=3D" in gs2 else "u"
    bare = scram.client_first(user, "nonce")[0]
    first = scram.parse_client_first((gs2 + bare).encode())
    assert (first.user, first.nonce, first.gs2, first.bare) == (user, "nonce", gs2, bare)


def test_keys_show_nowhere() -> None:
    stored, client_key = credential("SCRAM-SHA-256", "secret")
    identity = Identity("admin", "u", "SCRAM-SHA-256", client_key, stored.server_key)
    shown = repr(stored) + repr(identity)
    for key in (stored.stored_key, stored.server_key, client_key):
        assert repr(key) not in shown


def test_a_server_that_answers_another_nonce_is_refused() -> None:
    with pytest.raises(ScramError):
        scram.client_final(
            "n=u,r=abc", "abc", b"r=xyz,s=AAAA,i=1", "SCRAM-SHA-256", b"k" * 32, b"s" * 32
        )
    with pytest.raises(ScramError):
        scram.client_final(
            "n=u,r=abc", "abc", b"r=abc,s=AAAA,i=1", "SCRAM-SHA-256", b"k" * 32, b"s" * 32
        )

"""SCRAM-SHA-1 and SCRAM-SHA-256 (RFC 5802, 7677) as server and, with a recovered key, as client.

A server that knows StoredKey gets ClientKey from a valid proof, ``ClientProof XOR
HMAC(StoredKey, AuthMessage)``, and can then log in elsewhere as the same user wherever the same
credential is stored. Pure but for :func:`nonce`.
"""

import base64
import binascii
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import Final

DIGESTS: Final = {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256"}
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-1")
SHORTEST_NONCE: Final = 4
"""Of a client; mongod takes no shorter one either."""


class ScramError(ValueError):
    """The other side's message or proof is wrong."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a server stores of a user's password for one mechanism. Its keys show nowhere."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message, parsed. ``bare``: without the GS2 header."""

    user: str
    nonce: str
    gs2: str
    bare: str


@dataclass(frozen=True, slots=True)
class ServerFirst:
    """The server's answer to the first message, with what the second needs."""

    client: ClientFirst
    nonce: str
    message: str


def _hmac(key: bytes, data: bytes, mechanism: str) -> bytes:
    return hmac.digest(key, data, DIGESTS[mechanism])


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _attributes(message: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in message.split(","):
        key, separator, value = part.partition("=")
        if not separator or len(key) != 1 or key in found:
            raise ScramError("a malformed SCRAM message")
        found[key] = value
    return found


def nonce() -> str:
    """A fresh one, for either side."""
    return base64.b64encode(os.urandom(24)).decode()


def parse_client_first(payload: bytes) -> ClientFirst:
    """Raises :class:`ScramError` for what mongod refuses, too."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise ScramError("a SCRAM message that is not UTF-8") from error
    flag, _, rest = text.partition(",")
    other, separator, bare = rest.partition(",")
    if flag not in ("n", "y") or not separator or "\0" in text:
        raise ScramError("channel binding is not supported")
    attributes = _attributes(bare)
    # Extensions behind the nonce are ignored, as mongod does.
    if list(attributes)[:2] != ["n", "r"] or len(attributes["r"]) < SHORTEST_NONCE:
        raise ScramError("a SCRAM message begins with a user and a nonce")
    user = _unescaped(attributes["n"])
    if not user or (other and (other[:2] != "a=" or _unescaped(other[2:]) != user)):
        raise ScramError("nobody logs in as somebody else")
    return ClientFirst(user, attributes["r"], text[: len(text) - len(bare)], bare)


def _unescaped(name: str) -> str:
    user = name.replace("=2C", ",").replace("=3D", "=")
    if user.replace("=", "=3D").replace(",", "=2C") != name:
        raise ScramError("a malformed name")
    return user


def server_first(first: ClientFirst, credential: Credential, nonce: str) -> ServerFirst:
    """The server's first message; ``nonce`` is the server's own part."""
    combined = first.nonce + nonce
    salt = base64.b64encode(credential.salt).decode()
    return ServerFirst(first, combined, f"r={combined},s={salt},i={credential.iterations}")


def verify(exchange: ServerFirst, credential: Credential, payload: bytes) -> tuple[bytes, bytes]:
    """Check the client's second message; the client's key and the server's last message.

    Raises :class:`ScramError` where the proof is wrong.
    """
    try:
        text = payload.decode()
        attributes = _attributes(text)
        proof = base64.b64decode(attributes["p"], validate=True)
        binding = base64.b64decode(attributes["c"], validate=True)
    except (UnicodeDecodeError, KeyError, binascii.Error) as error:
        raise ScramError("a malformed SCRAM message") from error
    without_proof, _, last = text.rpartition(",")
    if (
        not last.startswith("p=")
        or binding != exchange.client.gs2.encode()
        or attributes.get("r") != exchange.nonce
    ):
        raise ScramError("the exchange doesn't fit together")
    message = f"{exchange.client.bare},{exchange.message},{without_proof}".encode()
    mechanism = credential.mechanism
    signature = _hmac(credential.stored_key, message, mechanism)
    if len(proof) != len(signature):
        raise ScramError("the proof has the wrong length")
    client_key = _xor(proof, signature)
    if not hmac.compare_digest(
        hashlib.new(DIGESTS[mechanism], client_key).digest(), credential.stored_key
    ):
        raise ScramError("the proof is wrong")
    server_signature = _hmac(credential.server_key, message, mechanism)
    return client_key, b"v=" + base64.b64encode(server_signature)


def client_first(user: str, nonce: str) -> tuple[str, bytes]:
    """As a client: the bare first message and the payload to send."""
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    return bare, b"n,," + bare.encode()


def client_final(
    bare: str,
    nonce: str,
    server_message: bytes,
    mechanism: str,
    client_key: bytes,
    server_key: bytes,
) -> tuple[bytes, bytes]:
    """As a client with the user's keys: the payload to send and the answer that must come back.

    Raises :class:`ScramError` where the server's message is wrong.
    """
    text = server_message.decode()
    combined = _attributes(text).get("r", "")
    if not combined.startswith(nonce) or len(combined) <= len(nonce):
        raise ScramError("the server's nonce is not an answer to ours")
    without_proof = f"c={base64.b64encode(b'n,,').decode()},r={combined}"
    message = f"{bare},{text},{without_proof}".encode()
    stored_key = hashlib.new(DIGESTS[mechanism], client_key).digest()
    proof = _xor(client_key, _hmac(stored_key, message, mechanism))
    expected = b"v=" + base64.b64encode(_hmac(server_key, message, mechanism))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode(), expected

"""A SCRAM client step by step, so that each message of a log-in can be sent, changed or left out."""

import base64
import hashlib
import hmac
import os
import re
import unicodedata
from typing import Any

DIGESTS = {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256"}


class Scram:
    """One log-in of a user; ``start`` and ``final`` are commands to send to a server."""

    def __init__(
        self,
        user: str,
        password: str,
        mechanism: str = "SCRAM-SHA-256",
        *,
        database: str = "admin",
        skip_empty: bool | None = None,
        gs2: str = "n,,",
    ) -> None:
        self.user = user
        self.password = password
        self.mechanism = mechanism
        self.database = database
        self.skip_empty = skip_empty
        self.gs2 = gs2
        self.nonce = base64.b64encode(os.urandom(18)).decode()
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"

    @property
    def start(self) -> dict[str, Any]:
        """``saslStart``; also what ``speculativeAuthenticate`` takes, with ``db`` added."""
        command: dict[str, Any] = {
            "saslStart": 1,
            "mechanism": self.mechanism,
            "payload": (self.gs2 + self.bare).encode(),
        }
        if self.skip_empty is not None:
            command["options"] = {"skipEmptyExchange": self.skip_empty}
        return command | {"$db": self.database}

    @property
    def speculative(self) -> dict[str, Any]:
        """The value of a hello's ``speculativeAuthenticate``."""
        start = self.start
        return {**{k: v for k, v in start.items() if k != "$db"}, "db": self.database}

    def final(self, reply: dict[str, Any]) -> dict[str, Any]:
        """``saslContinue`` with the proof, after the reply to ``start``."""
        message = bytes(reply["payload"]).decode()
        found = re.fullmatch(r"r=(.+),s=(.+),i=(\d+)", message)
        assert found is not None, message
        nonce, salt, rounds = found.groups()
        digest = DIGESTS[self.mechanism]
        if digest == "sha1":
            text = f"{self.user}:mongo:{self.password}".encode()
            password = hashlib.md5(text, usedforsecurity=False).hexdigest().encode()
        else:
            password = unicodedata.normalize("NFKC", self.password).encode()
        salted = hashlib.pbkdf2_hmac(digest, password, base64.b64decode(salt), int(rounds))
        key = hmac.digest(salted, b"Client Key", digest)
        without = f"c={base64.b64encode(self.gs2.encode()).decode()},r={nonce}"
        signed = f"{self.bare},{message},{without}".encode()
        signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return {
            "saslContinue": 1,
            "conversationId": reply["conversationId"],
            "payload": f"{without},p={base64.b64encode(proof).decode()}".encode(),
            "$db": self.database,
        }

    def empty(self, reply: dict[str, Any]) -> dict[str, Any]:
        """The empty ``saslContinue`` that ends a log-in without ``skipEmptyExchange``."""
        return {
            "saslContinue": 1,
            "conversationId": reply["conversationId"],
            "payload": b"",
            "$db": self.database,
        }


def log_in(wire: Any, scram: Scram) -> list[dict[str, Any]]:
    """All replies of a log-in, up to the one that says ``done`` or fails."""
    replies = [wire.ask(scram.start)]
    if replies[-1]["ok"]:
        replies.append(wire.ask(scram.final(replies[0])))
    while replies[-1]["ok"] and not replies[-1]["done"]:
        replies.append(wire.ask(scram.empty(replies[0])))
    return replies

"""What the archive stores of its users' passwords, read as the proxy's own user.

A user that doesn't exist gets a credential all the same, so that nothing in an answer or in the time it
takes tells the two apart: the same salt each time and from every proxy, and keys that nobody knows.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import PyMongoError

from thermocline_common.errors import Code, CommandError
from thermocline_common.tiers import PLAIN
from thermocline_proxy.scram import DIGESTS, MECHANISMS, Credential

log = logging.getLogger(__name__)

CACHE_SECONDS: Final = 2.0
"""A credential is read anew after this; bounds how long a password that was changed elsewhere counts."""
OFFER_SECONDS: Final = 30.0
MAX_CACHED: Final = 10_000
_READ_MS: Final = 5_000
_SALT_SIZE: Final = {"SCRAM-SHA-1": 16, "SCRAM-SHA-256": 28}
_PARAMETERS: Final = {
    "SCRAM-SHA-1": "scramIterationCount",
    "SCRAM-SHA-256": "scramSHA256IterationCount",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """How clients can log in to the archive. ``iterations``: of credentials made there now."""

    mechanisms: tuple[str, ...] = MECHANISMS
    iterations: Mapping[str, int] = field(
        default_factory=lambda: {"SCRAM-SHA-1": 10_000, "SCRAM-SHA-256": 15_000}
    )


def parse_offer(parameters: Mapping[str, Any]) -> Offer:
    """From the archive's answer to ``getParameter``."""
    default = Offer()
    enabled = parameters.get("authenticationMechanisms", MECHANISMS)
    counts = {
        mechanism: int(parameters.get(name, default.iterations[mechanism]))
        for mechanism, name in _PARAMETERS.items()
    }
    return Offer(tuple(m for m in MECHANISMS if m in enabled), counts)


@dataclass(frozen=True, slots=True)
class User:
    """``mechanisms``: those to tell clients of. ``credentials``: of each mechanism, pretended ones too."""

    mechanisms: tuple[str, ...]
    credentials: Mapping[str, Credential]


def parse_credentials(document: Mapping[str, Any]) -> dict[str, Credential]:
    """The SCRAM credentials in a document of ``admin.system.users``, by mechanism."""
    found = {}
    for mechanism, value in (document.get("credentials") or {}).items():
        if mechanism in DIGESTS:
            found[mechanism] = Credential(
                mechanism,
                base64.b64decode(value["salt"]),
                int(value["iterationCount"]),
                base64.b64decode(value["storedKey"]),
                base64.b64decode(value["serverKey"]),
            )
    return found


def pretend(name: str, secret: bytes, offer: Offer) -> dict[str, Credential]:
    """Credentials of ``db.user`` that nobody can log in with, looking like real ones."""
    found = {}
    for mechanism in MECHANISMS:
        salt = hmac.digest(secret, f"{mechanism}:{name}".encode(), hashlib.sha256)
        size = hashlib.new(DIGESTS[mechanism]).digest_size
        found[mechanism] = Credential(
            mechanism,
            salt[: _SALT_SIZE[mechanism]],
            offer.iterations[mechanism],
            os.urandom(size),
            os.urandom(size),
        )
    return found


def as_user(document: Mapping[str, Any], name: str, secret: bytes, offer: Offer) -> User:
    """A user from its document, which is empty where the archive has none."""
    pretended = pretend(name, secret, offer)
    real = parse_credentials(document)
    known = tuple(mechanism for mechanism in offer.mechanisms if mechanism in real)
    return User(known or offer.mechanisms, {**pretended, **real})


class Credentials:
    """Users of the archive, kept for a moment. All methods raise ``CommandError`` 6 where it is down."""

    def __init__(
        self,
        archive: AsyncMongoClient[dict[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = archive.get_database(
            "admin", codec_options=PLAIN, read_preference=ReadPreference.PRIMARY
        )
        self._clock = clock
        self._known: dict[str, tuple[float, User]] = {}
        self._asked: dict[str, asyncio.Task[User]] = {}
        self._offer: tuple[float, Offer] | None = None
        self._secret = b""
        self._own_secret = os.urandom(32)

    async def user(self, database: str, user: str) -> User:
        """The user, or one that looks like a user; as it was at most ``CACHE_SECONDS`` ago."""
        name = f"{database}.{user}"
        known = self._known.get(name)
        if known is not None and self._clock() < known[0]:
            return known[1]
        # Clients come in crowds, when an application starts: one question answers them all.
        task = self._asked.get(name)
        if task is None:
            task = self._asked[name] = asyncio.create_task(self._read(name))
            task.add_done_callback(lambda _: self._asked.pop(name, None))
        return await asyncio.shield(task)

    def forget(self, database: str | None = None, user: str | None = None) -> None:
        """Read this user (all users) anew the next time."""
        self._asked.clear()
        if database is None:
            self._known.clear()
        else:
            self._known.pop(f"{database}.{user}", None)

    async def offer(self) -> Offer:
        """As the archive's primary answered at most ``OFFER_SECONDS`` ago."""
        now = self._clock()
        if self._offer is None or now > self._offer[0]:
            names = ("authenticationMechanisms", *_PARAMETERS.values())
            question = {"getParameter": 1, **dict.fromkeys(names, 1), "maxTimeMS": _READ_MS}
            self._offer = (now + OFFER_SECONDS, parse_offer(await self._ask(question)))
        return self._offer[1]

    async def _read(self, name: str) -> User:
        started = self._clock()
        offer, secret = await self.offer(), await self._shared_secret()
        user = as_user(await self._document(name), name, secret, offer)
        if self._asked.get(name) is asyncio.current_task():
            while len(self._known) >= MAX_CACHED:
                del self._known[next(iter(self._known))]
            self._known[name] = (started + CACHE_SECONDS, user)
        return user

    async def _document(self, name: str) -> Mapping[str, Any]:
        question = {
            "find": "system.users",
            "filter": {"_id": name},
            "limit": 1,
            "singleBatch": True,
            "maxTimeMS": _READ_MS,
            "readConcern": {"level": "majority"},
        }
        found = (await self._ask(question))["cursor"]["firstBatch"]
        return found[0] if found else {}

    async def _shared_secret(self) -> bytes:
        """What pretended salts are made of: all proxies know it, at all times, and nobody else.

        It is the random id that the archive gave the services' user when it was created. Nothing
        that is derived from its password would do: a salt would then help to guess that.
        """
        if not self._secret:
            users = (await self._ask({"connectionStatus": 1}))["authInfo"]["authenticatedUsers"]
            own = await self._document(f"{users[0]['db']}.{users[0]['user']}") if users else {}
            number = own.get("userId")
            self._secret = self._own_secret if number is None else str(number).encode()
        return self._secret

    async def _ask(self, question: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._admin.command(question, codec_options=PLAIN)
        except PyMongoError as error:
            log.warning("users of the archive can't be read: %s", type(error).__name__)
            raise CommandError(
                Code.HostUnreachable, "the archive's users can't be read at the moment; try again"
            ) from error

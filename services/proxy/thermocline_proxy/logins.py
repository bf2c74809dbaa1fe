"""Log-ins of clients: the proxy is the SCRAM server, with the credentials that the archive stores.

Unknown users and wrong passwords look alike: an unknown user gets a salt of its own, always the
same one, and fails at the proof.
"""

import base64
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson
from pymongo import ReadPreference
from pymongo.errors import PyMongoError

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_proxy import scram
from thermocline_proxy.exchange import Upstreams
from thermocline_proxy.ports import Identity
from thermocline_proxy.sessions import ClientSession

log = logging.getLogger(__name__)

CACHE_SECONDS: Final = 2.0
"""A credential is read anew after this; bounds how long a changed password is still accepted."""
MAX_CACHED: Final = 10_000
PROBE_SECONDS: Final = 30.0
_ITERATIONS: Final = {"SCRAM-SHA-1": 10_000, "SCRAM-SHA-256": 15_000}
_SALT_SIZE: Final = {"SCRAM-SHA-1": 16, "SCRAM-SHA-256": 28}
_ORDER: Final = ("SCRAM-SHA-1", "SCRAM-SHA-256")
_FAILED: Final = "Authentication failed."


@dataclass(slots=True)
class Conversation:
    """A log-in under way. ``known``: the user exists; others go on to fail at the proof."""

    id: int
    database: str
    user: str
    credential: scram.Credential
    first: scram.ServerFirst
    known: bool
    skip_empty: bool
    identity: Identity | None = None
    verified: bool = False


def parse_credentials(document: Mapping[str, Any]) -> dict[str, scram.Credential]:
    """The SCRAM credentials in a document of ``admin.system.users``, by mechanism."""
    found = {}
    for mechanism, value in (document.get("credentials") or {}).items():
        if mechanism in scram.DIGESTS:
            found[mechanism] = scram.Credential(
                mechanism,
                base64.b64decode(value["salt"]),
                int(value["iterationCount"]),
                base64.b64decode(value["storedKey"]),
                base64.b64decode(value["serverKey"]),
            )
    return found


class Logins:
    """Serves ``saslStart`` and ``saslContinue``, and knows whether the tiers want log-ins at all."""

    def __init__(self, tiers: Tiers, upstreams: Upstreams) -> None:
        self._tiers = tiers
        self._upstreams = upstreams
        self._cache: dict[tuple[str, str], tuple[float, dict[str, scram.Credential]]] = {}
        self._secret = os.urandom(32)
        self._next_conversation = 0
        self._required: bool | None = None
        self._probed = float("-inf")

    @property
    def may_be_required(self) -> bool:
        """False where the archive is known to take commands without a log-in."""
        return self._required is not False

    async def required(self, deadline: float | None = None) -> bool:
        """Whether the archive wants log-ins; asks it now and then. Raises ``HostUnreachable``."""
        now = time.monotonic()
        if self._required is None or now - self._probed > PROBE_SECONDS:
            connection = await self._upstreams.acquire(Tier.ARCHIVE, None, deadline=deadline)
            # Harmless, and refused to those who aren't logged in.
            probe = {"endSessions": [], "$db": "admin"}
            reply = bson.decode(await connection.run(bson.encode(probe)))
            connection.pool.release(connection)
            self._required = reply.get("code") == Code.Unauthorized
            self._probed = now
        return self._required

    async def mechanisms(self, name: str) -> list[str]:
        """For ``saslSupportedMechs: "db.user"``; a user that doesn't exist seems to have them all."""
        database, _, user = name.partition(".")
        found = await self._credentials(database, user)
        return [mechanism for mechanism in _ORDER if mechanism in found] or list(_ORDER)

    async def start(
        self, session: ClientSession, database: str, command: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The reply to ``saslStart``, or to ``speculativeAuthenticate``. Raises :class:`CommandError`."""
        session.conversation = None
        if session.identity is not None:
            raise CommandError(5626702, "Cannot start a new authentication: already logged in")
        mechanism = command.get("mechanism")
        if mechanism not in scram.DIGESTS:
            raise CommandError(
                Code.MechanismUnavailable,
                f"Received authentication for mechanism {mechanism} which is not enabled: "
                "log in with SCRAM-SHA-256 or SCRAM-SHA-1",
            )
        try:
            first = scram.parse_client_first(_payload(command))
        except scram.ScramError as error:
            raise CommandError(Code.AuthenticationFailed, _FAILED) from error
        credentials = await self._credentials(database, first.user)
        credential = credentials.get(mechanism)
        known = credential is not None
        if credential is None:
            credential = self._pretended(database, first.user, mechanism)
        answer = scram.server_first(first, credential, base64.b64encode(os.urandom(24)).decode())
        options = command.get("options") or {}
        self._next_conversation = self._next_conversation % 0x7FFFFFFF + 1
        session.conversation = Conversation(
            self._next_conversation, database, first.user, credential, answer, known,
            bool(options.get("skipEmptyExchange")),
        )  # fmt: skip
        return {
            "conversationId": self._next_conversation,
            "done": False,
            "payload": answer.message.encode(),
        }

    async def proceed(self, session: ClientSession, command: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to ``saslContinue``; at the end the session has its identity."""
        conversation: Conversation | None = session.conversation
        if conversation is None or conversation.id != command.get("conversationId"):
            session.conversation = None
            raise CommandError(Code.ProtocolError, "No SASL session state found")
        if conversation.verified:
            return self._finish(session, conversation, b"")
        try:
            client_key, payload = scram.verify(
                conversation.first, conversation.credential, _payload(command)
            )
            if not conversation.known:
                raise scram.ScramError("no such user")
        except scram.ScramError as error:
            session.conversation = None
            raise CommandError(Code.AuthenticationFailed, _FAILED) from error
        conversation.identity = Identity(
            conversation.database,
            conversation.user,
            conversation.credential.mechanism,
            client_key,
            conversation.credential.server_key,
        )
        conversation.verified = True
        if conversation.skip_empty:
            return self._finish(session, conversation, payload)
        return {"conversationId": conversation.id, "done": False, "payload": payload}

    def _finish(
        self, session: ClientSession, conversation: Conversation, payload: bytes
    ) -> dict[str, Any]:
        session.identity = conversation.identity
        session.conversation = None
        return {"conversationId": conversation.id, "done": True, "payload": payload}

    def _pretended(self, database: str, user: str, mechanism: str) -> scram.Credential:
        """A credential for a user that doesn't exist: the same salt each time, a key nobody knows."""
        seed = f"{mechanism}:{database}.{user}".encode()
        salt = hmac.digest(self._secret, seed, hashlib.sha256)[: _SALT_SIZE[mechanism]]
        size = hashlib.new(scram.DIGESTS[mechanism]).digest_size
        return scram.Credential(
            mechanism, salt, _ITERATIONS[mechanism], os.urandom(size), os.urandom(size)
        )

    async def _credentials(self, database: str, user: str) -> dict[str, scram.Credential]:
        now = time.monotonic()
        cached = self._cache.get((database, user))
        if cached is not None and now < cached[0]:
            return cached[1]
        try:
            reply = await self._tiers.archive.get_database("admin", codec_options=PLAIN).command(
                {
                    "find": "system.users",
                    "filter": {"_id": f"{database}.{user}"},
                    "limit": 1,
                    "singleBatch": True,
                    "maxTimeMS": 5_000,
                    "readConcern": {"level": "majority"},
                },
                read_preference=ReadPreference.PRIMARY,
                codec_options=PLAIN,
            )
        except PyMongoError as error:
            log.warning("users of the archive can't be read: %s", type(error).__name__)
            raise CommandError(
                Code.HostUnreachable, "the archive's users can't be read at the moment; try again"
            ) from error
        documents = reply["cursor"]["firstBatch"]
        found = parse_credentials(documents[0]) if documents else {}
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[(database, user)] = (now + CACHE_SECONDS, found)
        return found


def _payload(command: Mapping[str, Any]) -> bytes:
    payload = command.get("payload", b"")
    if isinstance(payload, str):
        return base64.b64decode(payload)
    return bytes(payload)

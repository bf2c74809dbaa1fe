"""Log-ins of clients: the proxy is the SCRAM server, with the credentials that the archive stores.

Unknown users and wrong passwords look alike: an unknown user fails at the proof, like a known one.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

import bson

from thermocline_common.accounts import Accounts
from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.tiers import Tiers
from thermocline_proxy import sasl, scram
from thermocline_proxy.account_sync import AccountSync
from thermocline_proxy.credentials import Credentials
from thermocline_proxy.exchange import Upstreams
from thermocline_proxy.log_in import LogInRefused
from thermocline_proxy.ports import Identity
from thermocline_proxy.sessions import ClientSession

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 30.0
ADMISSION_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A log-in under way. ``identity``: the proof was right, and the archive takes the user."""

    database: str
    user: str
    credential: scram.Credential
    first: scram.ServerFirst = field(repr=False)
    text: bool
    skip_empty: bool
    identity: Identity | None = None


class Logins:
    """Serves ``saslStart`` and ``saslContinue``, and knows whether the tiers want log-ins at all."""

    def __init__(self, tiers: Tiers, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._credentials = Credentials(tiers.archive)
        self._accounts = AccountSync(
            Accounts(tiers), lambda: upstreams.members[Tier.FAST].primary is not None
        )
        upstreams.mend_fast = self._accounts.refused
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

    async def mechanisms(self, wanted: Any) -> list[str]:
        """For a hello's ``saslSupportedMechs``; a user that doesn't exist seems to have them all.

        Empty where no user can have this name. Raises :class:`CommandError`.
        """
        named = sasl.parse_user(wanted)
        return list((await self._credentials.user(*named)).mechanisms) if named else []

    async def speculate(self, session: ClientSession, wanted: Any) -> dict[str, Any] | None:
        """The answer to a hello's ``speculativeAuthenticate``; None: the client begins in earnest.

        Raises :class:`CommandError` where the hello as a whole is wrong.
        """
        begun = sasl.parse_speculative(wanted)
        try:
            return None if begun is None else await self.start(session, *begun)
        except CommandError:
            return None

    async def start(
        self, session: ClientSession, database: str, command: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The reply to ``saslStart``. Raises :class:`CommandError`."""
        said = sasl.parse_start(command)
        session.conversation = None
        offer = await self._credentials.offer()
        sasl.require_scram(said.mechanism, database, offer.mechanisms)
        try:
            first = scram.parse_client_first(said.payload)
        except scram.ScramError as error:
            raise CommandError(Code.AuthenticationFailed, sasl.FAILED) from error
        user = await self._credentials.user(database, first.user)
        credential = user.credentials[said.mechanism]
        answer = scram.server_first(first, credential, scram.nonce())
        session.conversation = Conversation(
            database, first.user, credential, answer, said.text, said.skip_empty
        )
        return _reply(answer.message.encode(), session.conversation, done=False)

    async def proceed(self, session: ClientSession, command: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to ``saslContinue``; at the end the session has its identity.

        Raises :class:`CommandError`.
        """
        said = sasl.parse_continue(command)
        conversation = session.conversation
        session.conversation = None
        if conversation is None:
            raise CommandError(Code.ProtocolError, "No SASL session state found")
        if said.conversation != sasl.CONVERSATION:
            raise CommandError(Code.ProtocolError, "sasl: Mismatched conversation id")
        if conversation.identity is not None:
            return self._finish(session, conversation, b"")
        try:
            client_key, payload = scram.verify(
                conversation.first, conversation.credential, said.payload
            )
        except scram.ScramError as error:
            # It may have been the proof of a password that was set a moment ago.
            self._credentials.forget(conversation.database, conversation.user)
            raise CommandError(Code.AuthenticationFailed, sasl.FAILED) from error
        identity = Identity(
            conversation.database,
            conversation.user,
            conversation.credential.mechanism,
            client_key,
            conversation.credential.server_key,
        )
        await self._admit(identity)
        conversation = replace(conversation, identity=identity)
        if conversation.skip_empty:
            return self._finish(session, conversation, payload)
        session.conversation = conversation
        return _reply(payload, conversation, done=False)

    async def refuse(self, command: Mapping[str, Any]) -> NoReturn:
        """``authenticate``, which is for certificates alone. Raises :class:`CommandError`."""
        mechanism = sasl.parse_authenticate(command)
        raise sasl.unavailable(mechanism, (await self._credentials.offer()).mechanisms)

    def log_out(self, session: ClientSession, database: str) -> None:
        """``logout`` on a database: forgets a user of that database, and a log-in under way."""
        session.conversation = None
        if session.identity is not None and session.identity.database == database:
            session.identity = None

    async def accounts_changed(self) -> None:
        """A command that changes users or roles was sent: what was read before doesn't count, and F follows."""
        self._credentials.forget()
        await self._accounts.changed()

    async def _admit(self, identity: Identity) -> None:
        """Let the archive itself decide, where it hasn't done so for this user and key.

        It knows more than the credential: restrictions by address, and a password that was changed
        a moment ago.
        """
        if self._upstreams.pools.connected(Tier.ARCHIVE, identity):
            return
        try:
            deadline = time.monotonic() + ADMISSION_SECONDS
            connection = await self._upstreams.acquire(Tier.ARCHIVE, identity, deadline=deadline)
        except LogInRefused as error:
            log.warning(
                "the archive refused a log-in whose proof was right",
                extra={"user": f"{identity.database}.{identity.user}", "reason": error.message},
            )
            self._credentials.forget(identity.database, identity.user)
            raise CommandError(Code.AuthenticationFailed, sasl.FAILED) from error
        connection.pool.release(connection)

    def _finish(
        self, session: ClientSession, conversation: Conversation, payload: bytes
    ) -> dict[str, Any]:
        identity, before = conversation.identity, session.identity
        assert identity is not None
        if before is not None and (before.database, before.user) != (
            identity.database,
            identity.user,
        ):
            raise _second_user(before, identity)
        session.identity = identity
        return _reply(payload, conversation, done=True)


def _reply(payload: bytes, conversation: Conversation, *, done: bool) -> dict[str, Any]:
    return {
        "conversationId": sasl.CONVERSATION,
        "done": done,
        "payload": sasl.packed(payload, text=conversation.text),
    }


def _second_user(before: Identity, identity: Identity) -> CommandError:
    """A connection is one user's until ``logout``; the codes and texts are mongod's."""
    name = f"{before.user}@{before.database}"
    if before.database == identity.database:
        return CommandError(
            5626702,
            "Client has attempted to authenticate on multiple databases."
            f"Already authenticated as: {name}",
        )
    return CommandError(
        5626701,
        "Each client connection may only be authenticated once. "
        f"Previously authenticated as: {name}",
    )

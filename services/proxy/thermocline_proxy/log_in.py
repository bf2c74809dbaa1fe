"""The log-in at a member as a client's user, with the keys that its own proof gave."""

import base64
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import bson

from thermocline_common.errors import Code, CommandError
from thermocline_proxy.ports import Identity
from thermocline_proxy.scram import ScramError, client_final, client_first

Run: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class LogInRefused(CommandError):
    """A member of ``tier`` doesn't take the user's key: it has another, or no such user (any more)."""

    def __init__(self, tier: str, reason: str) -> None:
        super().__init__(Code.AuthenticationFailed, f"the {tier} tier refused the log-in: {reason}")
        self.tier = tier


async def log_in(run: Run, tier: str, identity: Identity) -> None:
    """SCRAM with the keys that the client's own proof gave.

    ``run`` sends one raw command and returns the raw reply. Raises :class:`LogInRefused`, or
    :class:`CommandError` with what else the member of the ``tier`` answers.
    """
    nonce = base64.b64encode(os.urandom(24)).decode()
    bare, payload = client_first(identity.user, nonce)
    start = await _sasl(
        run,
        tier,
        {
            "saslStart": 1,
            "mechanism": identity.mechanism,
            "payload": payload,
            "options": {"skipEmptyExchange": True},
            "$db": identity.database,
        },
    )
    try:
        answer, expected = client_final(
            bare,
            nonce,
            bytes(start["payload"]),
            identity.mechanism,
            identity.client_key,
            identity.server_key,
        )
    except ScramError as error:
        raise CommandError(Code.AuthenticationFailed, "Authentication failed.") from error
    final = await _sasl(
        run,
        tier,
        {
            "saslContinue": 1,
            "conversationId": start["conversationId"],
            "payload": answer,
            "$db": identity.database,
        },
    )
    if bytes(final["payload"]) != expected:
        raise CommandError(Code.AuthenticationFailed, "Authentication failed.")
    while not final["done"]:
        final = await _sasl(
            run,
            tier,
            {
                "saslContinue": 1,
                "conversationId": start["conversationId"],
                "payload": b"",
                "$db": identity.database,
            },
        )


async def _sasl(run: Run, tier: str, command: dict[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = bson.decode(await run(bson.encode(command)))
    if not reply.get("ok"):
        if reply.get("code") == Code.AuthenticationFailed:
            raise LogInRefused(tier, str(reply.get("errmsg", "")))
        raise CommandError(
            int(reply.get("code", Code.AuthenticationFailed)),
            f"the {tier} tier refused the log-in: {reply.get('errmsg', '')}",
            code_name=reply.get("codeName"),
        )
    return reply

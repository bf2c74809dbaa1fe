"""What clients say in log-in commands and in a hello about log-ins, read as mongod reads it. Pure."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson.int64 import Int64
from bson.objectid import ObjectId

from thermocline_common.errors import Code, CommandError
from thermocline_proxy.scram import DIGESTS

CONVERSATION: Final = 1
"""Every conversation has this id, as on mongod: a connection has one at a time."""
EXTERNAL: Final = "$external"
FAILED: Final = "Authentication failed."

_REASONS: Final = {
    "MONGODB-X509": "a client's certificate ends at the proxy",
    "PLAIN": "it would hand over the password, and the proxy takes none",
    "GSSAPI": "a Kerberos ticket is for one service and can't be passed on",
    "MONGODB-AWS": "a signature is for one server and can't be passed on",
    "MONGODB-OIDC": "a token is for one audience and can't be passed on",
}
_TYPES: Final[Mapping[type, str]] = {
    bool: "bool", int: "int", Int64: "long", float: "double", str: "string", list: "array",
    bytes: "binData", type(None): "null", ObjectId: "objectId",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start:
    """``saslStart``. ``text``: payloads travel as base64 text on this connection, not as binary."""

    mechanism: str
    payload: bytes = field(repr=False)
    text: bool
    skip_empty: bool


@dataclass(frozen=True, slots=True)
class Continue:
    """``saslContinue``."""

    conversation: int
    payload: bytes = field(repr=False)


def parse_start(command: Mapping[str, Any]) -> Start:
    """Raises ``CommandError`` for fields that are missing or of a wrong type."""
    mechanism = _text(command, "saslStart", "mechanism")
    payload, text = _payload(command, "saslStart")
    options = command.get("options")
    if options is not None and not isinstance(options, Mapping):
        raise _wrong_type("saslStart.options", options, "type 'object'")
    skip_empty = bool((options or {}).get("skipEmptyExchange"))
    return Start(mechanism, payload, text, skip_empty)


def parse_continue(command: Mapping[str, Any]) -> Continue:
    """Raises ``CommandError`` for fields that are missing or of a wrong type."""
    conversation = command.get("conversationId")
    if conversation is None:
        raise _missing("saslContinue.conversationId")
    if not isinstance(conversation, int) or isinstance(conversation, bool):
        raise _wrong_type("saslContinue.conversationId", conversation, "type 'int'")
    return Continue(int(conversation), _payload(command, "saslContinue")[0])


def packed(payload: bytes, *, text: bool) -> bytes | str:
    """A payload of the answer, as the client sends its own."""
    return base64.b64encode(payload).decode() if text else payload


def parse_authenticate(command: Mapping[str, Any]) -> str:
    """The mechanism of an ``authenticate``. Raises ``CommandError``."""
    mechanism = _text(command, "authenticate", "mechanism")
    if not mechanism:
        raise CommandError(Code.BadValue, "Auth mechanism not specified")
    return mechanism


def parse_speculative(value: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Database and command of a hello's ``speculativeAuthenticate``; None: nothing that can be begun.

    Raises ``CommandError`` for what mongod refuses the whole hello for.
    """
    name = "hello.speculativeAuthenticate"
    if not isinstance(value, Mapping):
        raise _wrong_type(name, value, "type 'object'")
    verb = next(iter(value), None)
    if verb is None:
        raise CommandError(Code.BadValue, f"{name} must be a non-empty Object")
    if verb not in ("saslStart", "authenticate"):
        raise CommandError(51769, f"{name} unknown command: {verb}")
    database = value.get("db")
    if verb == "authenticate" or not isinstance(database, str):
        return None
    return database, value


def parse_user(value: Any) -> tuple[str, str] | None:
    """Database and user of a hello's ``saslSupportedMechs``; None: no user has such a name.

    Raises ``CommandError`` for what mongod refuses the whole hello for.
    """
    if isinstance(value, Mapping):
        for name in ("user", "db"):
            if name not in value:
                raise CommandError(Code.BadValue, f"UserName must contain a field named: {name}")
        database, user = value["db"], value["user"]
    elif isinstance(value, str):
        database, dot, user = value.partition(".")
        if not dot:
            raise CommandError(
                Code.BadValue, "UserName must contain a '.' separated database.user pair"
            )
    else:
        raise _wrong_type("hello.saslSupportedMechs", value, "types '[string, object']")
    if not (isinstance(database, str) and isinstance(user, str) and database and user):
        return None
    return (database, user) if database != EXTERNAL else None


def require_scram(mechanism: str, database: str, offered: tuple[str, ...]) -> None:
    """Raise ``CommandError`` 334 for a mechanism that can't be used here, with the reason."""
    if mechanism in DIGESTS and mechanism in offered:
        if database == EXTERNAL:
            raise CommandError(
                Code.MechanismUnavailable,
                f"Unsupported mechanism '{mechanism}' on authentication database '{database}'",
            )
        return
    raise unavailable(mechanism, offered)


def unavailable(mechanism: str, offered: tuple[str, ...]) -> CommandError:
    """The refusal of a mechanism, with the reason and what to use instead."""
    reason = _REASONS.get(mechanism)
    because = f" through the proxy, because {reason}" if reason else ""
    return CommandError(
        Code.MechanismUnavailable,
        f"Received authentication for mechanism {mechanism} which is not enabled{because}; "
        f"log in with {' or '.join(offered)}",
    )


def _payload(command: Mapping[str, Any], verb: str) -> tuple[bytes, bool]:
    if "payload" not in command:
        raise _missing(f"{verb}.payload")
    payload = command["payload"]
    if isinstance(payload, str):
        try:
            return base64.b64decode(payload, validate=True), True
        except (binascii.Error, ValueError) as error:
            raise CommandError(10270, "Failed decoding SASL payload: invalid base64") from error
    if not isinstance(payload, bytes):
        raise CommandError(
            Code.BadValue,
            f"Invalid SASLPayload type. Expected Base64 or BinData, got: {_type(payload)}",
        )
    return bytes(payload), False


def _text(command: Mapping[str, Any], verb: str, name: str) -> str:
    value = command.get(name)
    if value is None:
        raise _missing(f"{verb}.{name}")
    if not isinstance(value, str):
        raise _wrong_type(f"{verb}.{name}", value, "type 'string'")
    return value


def _type(value: Any) -> str:
    return _TYPES.get(type(value), "binData" if isinstance(value, bytes) else "object")


def _missing(path: str) -> CommandError:
    return CommandError(40414, f"BSON field '{path}' is missing but a required field")


def _wrong_type(path: str, value: Any, expected: str) -> CommandError:
    return CommandError(
        Code.TypeMismatch,
        f"BSON field '{path}' is the wrong type '{_type(value)}', expected {expected}",
    )

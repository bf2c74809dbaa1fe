"""Reply documents that the proxy makes itself, in the shape of mongod's."""

import re
from collections.abc import Sequence
from typing import Final

import bson

from thermocline_common.errors import Code, CommandError
from thermocline_proxy.wire.decoding import decoded


def error_document(code: int, message: str, code_name: str, labels: Sequence[str] = ()) -> bytes:
    """The raw reply ``{ok: 0, errmsg, code, codeName[, errorLabels]}``."""
    document: dict[str, object] = {
        "ok": 0.0,
        # It may quote a client's text that isn't UTF-8.
        "errmsg": message.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "code": int(code),
        "codeName": code_name,
    }
    if labels:
        document["errorLabels"] = list(labels)
    return bson.encode(document)


def error_reply(error: CommandError) -> bytes:
    """The raw reply for a :class:`CommandError`."""
    return error_document(error.code, error.message, error.code_name, error.labels)


def code_name(code: int) -> str:
    """MongoDB's name of an error code."""
    try:
        return Code(code).name
    except ValueError:
        return f"Location{code}"


OK = bson.encode({"ok": 1.0})

_NOT_AUTHORIZED: Final = b"not authorized on "
_NEAR_THE_START: Final = 64


def shortened(text: str) -> str:
    """A refusal's text with no more of the command that it repeats than name and collection."""
    return re.sub(r"(\{ \w+: [^,}]+?)(,| \}).*", r"\1 }", text, flags=re.DOTALL)


def without_command(body: bytes) -> bytes:
    """A raw reply; where a server says 13, without the command that it was sent.

    That isn't the client's: it has the server's own times, and what the proxy asked in its place.
    """
    if body.find(_NOT_AUTHORIZED, 0, _NEAR_THE_START) < 0:
        return body
    reply = decoded(body)
    if reply.get("code") != Code.Unauthorized or not isinstance(reply.get("errmsg"), str):
        return body
    return bson.encode({**reply, "errmsg": shortened(reply["errmsg"])})

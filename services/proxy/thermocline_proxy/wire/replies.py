"""Reply documents that the proxy makes itself, in the shape of mongod's."""

from collections.abc import Sequence

import bson

from thermocline_common.errors import Code, CommandError


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

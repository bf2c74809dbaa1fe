"""Connection strings as text again: without secrets, or for a driver."""

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from thermocline_common.uri.check import Connection
from thermocline_common.uri.options import RULES

# Greedy up to the last '@': a password may hold unescaped ones. Hiding too much does no harm.
_USERINFO: Final = re.compile(r"(mongodb(?:\+srv)?://)\S*@", re.IGNORECASE)
_SECRET_OPTIONS: Final = re.compile(
    r"\b(" + "|".join(rule.name for rule in RULES.values() if rule.secret) + r")=[^&\s]*",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """``text``, which may hold connection strings (broken ones too), without anything secret in them."""
    if "mongodb" not in text and "MONGODB" not in text.upper():
        return text
    return _SECRET_OPTIONS.sub(r"\1=***", _USERINFO.sub(r"\1***@", text))


def seeds(connection: Connection) -> str:
    """The connection string with its scheme, hosts and ``replicaSet`` alone."""
    scheme = "mongodb+srv" if connection.uri.srv else "mongodb"
    hosts = ",".join(_host(connection, str(host)) for host in connection.uri.hosts)
    name = connection.replica_set
    query = "" if name is None else f"?replicaSet={quote(name, safe='')}"
    return f"{scheme}://{hosts}/{query}"


def _host(connection: Connection, text: str) -> str:
    return text.partition(":")[0] if connection.uri.srv else text


def driver_options(connection: Connection, names: Iterable[str]) -> dict[str, Any]:
    """Those of the named options that are given, typed, for PyMongo's keyword arguments."""
    return {
        name: connection.options.get(name) for name in names if name in connection.options.values
    }

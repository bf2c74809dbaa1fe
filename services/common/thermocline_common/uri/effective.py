"""What a connection string comes to: every option in force, whether it is written there or not. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thermocline_common.uri.check import EXTERNAL, Connection
from thermocline_common.uri.options import RULES
from thermocline_common.uri.parse import Uri


@dataclass(frozen=True, slots=True)
class Effective:
    """One option in force. ``given``: it is written in the connection string."""

    name: str
    value: Any
    given: bool


def effective(connection: Connection) -> Iterator[Effective]:
    """Every option in force, in the table's order; secrets are ``***``.

    Those that aren't given and whose value differs among drivers are left out.
    """
    values = connection.options.values
    for rule in RULES.values():
        if rule.name == "ssl":
            continue
        if rule.name == "tls":
            yield Effective("tls", connection.tls, "tls" in values or "ssl" in values)
        elif rule.name in values:
            yield Effective(rule.name, "***" if rule.secret else values[rule.name], given=True)
        elif rule.name == "authSource" and (
            connection.uri.user is not None or values.get("authMechanism") in EXTERNAL
        ):
            yield Effective("authSource", _auth_source(connection), given=False)
        elif rule.default is not None:
            yield Effective(rule.name, rule.default, given=False)


def _auth_source(connection: Connection) -> str:
    mechanism = connection.options.get("authMechanism")
    if mechanism in EXTERNAL:
        return "$external"
    return connection.uri.database or ("$external" if mechanism == "PLAIN" else "admin")


def mask(text: str, uri: Uri | None) -> str:
    """``text`` at its own length with ``*`` in place of each character of a secret.

    ``uri``: its parts; None where its grammar is broken: then anything from the first ``:`` behind the
    scheme to the last ``@`` may be a password.
    """
    spans = [*_password(text, uri)]
    lower = text.lower()
    for rule in RULES.values():
        position = lower.find(f"{rule.name.lower()}=") if rule.secret else -1
        while position >= 0:
            start = position + len(rule.name) + 1
            end = text.find("&", start)
            spans.append((start, len(text) if end < 0 else end))
            position = lower.find(f"{rule.name.lower()}=", start)
    for start, end in spans:
        text = text[:start] + "*" * (end - start) + text[end:]
    return text


def _password(text: str, uri: Uri | None) -> Iterator[tuple[int, int]]:
    if uri is None:
        scheme = text.find("://")
        start, end = (0 if scheme < 0 else scheme + 3), text.rfind("@")
    elif uri.userinfo is not None:
        start, end = uri.userinfo
    else:
        return
    colon = text.find(":", start, max(end, 0))
    if colon >= 0:
        yield colon + 1, end

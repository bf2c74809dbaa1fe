"""The grammar of connection strings, with error positions.

``mongodb://[user[:password]@]host[:port][,...]/[database][?name=value[&...]]``, or
``mongodb+srv://`` with exactly one host and no port. Stricter than drivers: no option without a
``/`` before the ``?``, no ``;`` between options, no raw ``+``, ``%`` only before two hex digits.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from thermocline_common.uri.problems import SlashError, UriError, UriProblem

SCHEMES: Final = ("mongodb://", "mongodb+srv://")
DEFAULT_PORT: Final = 27017

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?\.?")
_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")
_SRV_NAME: Final = "give mongodb+srv:// a name that DNS resolves"
_LONGEST_DATABASE: Final = 63


@dataclass(frozen=True, slots=True)
class Host:
    """One seed: a lower-case name or address (IPv6 without brackets), or a socket's path. ``port`` 0: none."""

    name: str
    port: int
    start: int
    end: int

    @property
    def is_socket(self) -> bool:
        """Whether it is a Unix socket."""
        return self.name.startswith("/")

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.port}" if self.port else name


@dataclass(frozen=True, slots=True)
class Option:
    """One option: ``name`` verbatim, ``value`` decoded, and where both stand; ``raw``: the value as written."""

    name: str
    value: str
    start: int
    value_start: int
    end: int
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Uri:
    """A connection string's parts. ``userinfo``: where user and password stand, None without any."""

    srv: bool
    userinfo: tuple[int, int] | None
    user: str | None
    password: str | None
    hosts: tuple[Host, ...]
    database: str | None
    database_start: int
    options: tuple[Option, ...]

    def __repr__(self) -> str:
        return f"Uri(hosts={[str(h) for h in self.hosts]}, database={self.database!r})"


def _fail(start: int, end: int, reason: str, remedy: str) -> UriError:
    return UriError([UriProblem(start, max(end, start + 1), reason, remedy)])


def parse(text: str) -> Uri:
    """The parts of ``text``. Raises :class:`UriError` with the first mistake in its grammar,
    :class:`SlashError` if that is a missing ``/``."""
    srv, start = _scheme(text)
    for position, character in enumerate(text):
        if character.isspace() or not character.isprintable():
            raise _fail(position, position, "a blank or control character", "take it out")
    question = text.find("?", start)
    slash = text.find("/", start)
    at = text.rfind("@", start, question if question >= 0 else len(text))
    if at < 0 <= question:
        # A '?' in a password hides the '@' behind it; an '@' in an option's value is no sign of it.
        later = text.find("@", question)
        if later >= 0 and "=" not in text[question:later]:
            raise _fail(question, question, "an unescaped '?' in user or password", "write %3F")
    if 0 <= slash < at:
        raise _fail(slash, slash, "an unescaped '/' in user or password", "write %2F")
    if question >= 0 and not start <= slash < question:
        reason = "no '/' between the hosts and the '?', so that some drivers ignore the options"
        raise SlashError([UriProblem(question, question + 1, reason, "write '/?'")])
    authority_end = slash if slash >= 0 else len(text)
    userinfo, user, password = None, None, None
    hosts_start = start
    if at >= 0:
        user, password = _userinfo(text, start, at)
        userinfo, hosts_start = (start, at), at + 1
    hosts = _hosts(text, hosts_start, authority_end, srv=srv)
    database_start = authority_end + 1
    database_end = question if question >= 0 else len(text)
    database = _database(text, database_start, database_end)
    options = _options(text, question + 1) if question >= 0 else ()
    return Uri(srv, userinfo, user, password, hosts, database, database_start, options)


def _scheme(text: str) -> tuple[bool, int]:
    for scheme in SCHEMES:
        if text.startswith(scheme):
            return scheme == SCHEMES[1], len(scheme)
    remedy = "begin with mongodb:// or mongodb+srv://"
    if text.lower().startswith(SCHEMES):
        raise _fail(0, text.index(":"), "the scheme is not in lower case", remedy)
    raise _fail(0, 1, "not a connection string of MongoDB", remedy)


def _decode(text: str, start: int, end: int, what: str) -> str:
    bad = _BAD_ESCAPE.search(text, start, end)
    if bad is not None:
        raise _fail(
            bad.start(), bad.start() + 1, f"a '%' in {what} that begins no escape", "write %25"
        )
    plus = text.find("+", start, end)
    if plus >= 0:
        # A blank to some drivers (PyMongo), itself to others (Node).
        raise _fail(plus, plus, f"an unescaped '+' in {what}", "write %2B, or %20 for a blank")
    try:
        return unquote(text[start:end], errors="strict")
    except UnicodeDecodeError:
        raise _fail(
            start, end, f"escapes in {what} that are not UTF-8", "escape its UTF-8 bytes"
        ) from None


def _userinfo(text: str, start: int, end: int) -> tuple[str, str | None]:
    inner = text.find("@", start, end)
    if inner >= 0:
        raise _fail(inner, inner, "an unescaped '@' in user or password", "write %40")
    colon = text.find(":", start, end)
    if colon >= 0:
        second = text.find(":", colon + 1, end)
        if second >= 0:
            raise _fail(second, second, "an unescaped ':' in user or password", "write %3A")
    user_end = colon if colon >= 0 else end
    if user_end == start:
        raise _fail(start, end, "the user is empty", "write user:password@, or neither")
    user = _decode(text, start, user_end, "the user")
    if colon < 0:
        return user, None
    if colon + 1 == end:
        raise _fail(colon, end, "the password is empty", "write user:password@, or neither")
    return user, _decode(text, colon + 1, end, "the password")


def _hosts(text: str, start: int, end: int, *, srv: bool) -> tuple[Host, ...]:
    hosts = []
    position = start
    for part in text[start:end].split(","):
        hosts.append(_host(text, position, position + len(part), srv=srv))
        position += len(part) + 1
    if srv and len(hosts) > 1:
        raise _fail(
            hosts[1].start,
            end,
            "more than one host",
            "give mongodb+srv:// one name, which DNS resolves",
        )
    seen: set[tuple[str, int]] = set()
    for host in hosts:
        if (host.name, host.port) in seen:
            raise _fail(host.start, host.end, "a host that is listed twice", "list it once")
        seen.add((host.name, host.port))
    return tuple(hosts)


def _host(text: str, start: int, end: int, *, srv: bool) -> Host:
    part = text[start:end]
    if not part:
        raise _fail(start, start, "an empty host", "write host:port, hosts separated by one comma")
    if part.startswith("["):
        close = part.find("]")
        if close < 0:
            raise _fail(start, end, "an IPv6 address without ']'", "write [address]:port")
        name, port_start = _decode(text, start + 1, start + close, "an address"), start + close + 1
        try:
            ipaddress.IPv6Address(name)
        except ValueError:
            raise _fail(
                start, start + close + 1, "not an IPv6 address", "write [address]:port"
            ) from None
        name = name.lower()
        if srv:
            raise _fail(start, end, "an address", _SRV_NAME)
        if port_start < end and text[port_start] != ":":
            raise _fail(port_start, end, "something between ']' and ':'", "write [address]:port")
    elif part.upper().startswith("%2F"):
        if srv:
            raise _fail(start, end, "a Unix socket", _SRV_NAME)
        name = _decode(text, start, end, "the socket's path")
        if not name.endswith(".sock"):
            raise _fail(start, end, "a socket's path that doesn't end with .sock", "name a socket")
        return Host(name, 0, start, end)
    else:
        if part.count(":") > 1:
            raise _fail(start, end, "an IPv6 address without brackets", "write [address]:port")
        name, _, _ = part.partition(":")
        if not name:
            raise _fail(start, end, "a port without a host", "write host:port")
        if not name.isascii():
            raise _fail(
                start, start + len(name), "a host name outside ASCII", "write it in punycode"
            )
        if not _HOST_NAME.fullmatch(name) or ".." in name or len(name) > 253:
            raise _fail(start, start + len(name), "not a host name", "write host:port")
        if srv and _IPV4.fullmatch(name):
            raise _fail(start, end, "an address", _SRV_NAME)
        port_start = start + len(name)
        name = name.lower()
    if port_start == end:
        return Host(name, 0 if srv else DEFAULT_PORT, start, end)
    if srv:
        raise _fail(port_start, end, "a port", "leave it out: mongodb+srv:// gets it from DNS")
    digits = text[port_start + 1 : end]
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65_535
    ):
        raise _fail(port_start + 1, end, "not a port", "write a number from 1 to 65535")
    return Host(name, int(digits), start, end)


def _database(text: str, start: int, end: int) -> str | None:
    if start >= end:
        return None
    database = _decode(text, start, end, "the database's name")
    bad = next((c for c in '/\\ "$*<>:|?.\0' if c in database), None)
    if bad is not None:
        raise _fail(
            start, end, f"{bad!r} in the database's name", "write the database's name alone"
        )
    if len(database.encode()) > _LONGEST_DATABASE:
        raise _fail(
            start,
            end,
            "a database's name that is too long",
            f"use at most {_LONGEST_DATABASE} bytes",
        )
    return database


def _options(text: str, start: int) -> tuple[Option, ...]:
    semicolon = text.find(";", start)
    if semicolon >= 0:
        raise _fail(
            semicolon, semicolon, "a ';' between options", "write '&', or %3B inside a value"
        )
    options = []
    position = start
    for part in text[start:].split("&"):
        end = position + len(part)
        name, equals, _ = part.partition("=")
        if not part:
            raise _fail(
                max(position - 1, start - 1), position, "an empty option", "write name=value"
            )
        if not equals:
            raise _fail(position, end, "an option without a value", "write name=value")
        if not name:
            raise _fail(position, end, "a value without an option's name", "write name=value")
        value_start = position + len(name) + 1
        for character, escape in (("=", "%3D"), ("?", "%3F"), ("@", "%40")):
            # Drivers differ on what these stand for.
            found = text.find(character, value_start, end)
            if found >= 0:
                raise _fail(
                    found, found, f"an unescaped {character!r} in a value", f"write {escape}"
                )
        value = _decode(text, value_start, end, "a value")
        options.append(Option(name, value, position, value_start, end, text[value_start:end]))
        position = end + 1
    return tuple(options)

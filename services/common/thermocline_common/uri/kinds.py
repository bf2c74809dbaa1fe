"""How the values of options are read: text -> typed value, or what to write instead."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


class ValueProblem(ValueError):
    """A value that its option doesn't take; the text is the remedy ("write ...")."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read: ``read`` returns it typed or raises :class:`ValueProblem`.

    ``plain``: escapes (lower case) of separators that drivers look for before they decode, or after.
    """

    name: str
    read: Callable[[str], Any]
    plain: tuple[str, ...] = ()

    def typed(self, value: str, raw: str) -> Any:
        """``value``, which is written as ``raw``. Raises :class:`ValueProblem`."""
        if any(escape in raw.lower() for escape in self.plain):
            raise ValueProblem("write ',' and ':' unescaped: drivers read %2C and %3A differently")
        return self.read(value)


def _boolean(value: str) -> bool:
    if value in ("true", "false"):
        return value == "true"
    raise ValueProblem("write true or false, in lower case")


def integer(low: int, high: int = 2_147_483_647, also: int | None = None) -> Kind:
    """A whole number within bounds, or ``also``."""

    def read(value: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,10}", value, re.ASCII):
            number = int(value)
            if low <= number <= high or number == also:
                return number
        extra = "" if also is None else f", or {also}"
        raise ValueProblem(f"write a whole number from {low} to {high}{extra}")

    return Kind(f"whole number from {low}", read)


def choice(*choices: str) -> Kind:
    """One of some texts, which are case-sensitive."""

    def read(value: str) -> str:
        if value in choices:
            return value
        by_case = {known.lower(): known for known in choices}
        near = difflib.get_close_matches(value.lower(), by_case, n=1, cutoff=0.75)
        raise ValueProblem(
            f"write {by_case[near[0]]}" if near else f"write one of {', '.join(choices)}"
        )

    return Kind(f"one of {', '.join(choices)}", read)


def _text(value: str) -> str:
    if not value:
        raise ValueProblem("write a value, or leave the option out")
    return value


def _app_name(value: str) -> str:
    if not value or len(value.encode()) > 128:
        raise ValueProblem("write 1 to 128 bytes")
    return value


def _tags(value: str) -> dict[str, str]:
    """One tag set; an empty one matches any member."""
    tags: dict[str, str] = {}
    for part in value.split(",") if value else ():
        name, colon, tag = part.partition(":")
        if not colon or not name or name in tags or ":" in tag:
            raise ValueProblem("write name:value, tags separated by commas, each name once")
        if "%" in part or "+" in part:
            raise ValueProblem("use tags without '%' and '+', which drivers read differently")
        tags[name] = tag
    return tags


def _compressors(value: str) -> list[str]:
    names = value.split(",")
    if len(set(names)) != len(names) or not set(names) <= {"snappy", "zlib", "zstd"}:
        raise ValueProblem("write some of snappy, zlib, zstd, separated by commas")
    return names


def _write_concern(value: str) -> int | str:
    if re.fullmatch(r"-?[0-9]+", value, re.ASCII):
        if 0 <= int(value) <= 50:
            return int(value)
        raise ValueProblem("write majority, a number from 0 to 50, or the name of a mode")
    if value.lower() == "majority" and value != "majority":
        raise ValueProblem("write majority, in lower case")
    return _text(value)


_PROPERTIES: Final = (
    "SERVICE_NAME", "SERVICE_HOST", "SERVICE_REALM", "CANONICALIZE_HOST_NAME",
    "AWS_SESSION_TOKEN", "ENVIRONMENT", "TOKEN_RESOURCE",
)  # fmt: skip


def _properties(value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in value.split(","):
        name, colon, text = part.partition(":")
        if not colon or not text or name in found:
            raise ValueProblem("write NAME:value, separated by commas, each name once")
        if name not in _PROPERTIES:
            raise ValueProblem(f"use only {', '.join(_PROPERTIES)}")
        found[name] = text
    return found


BOOLEAN: Final = Kind("true or false", _boolean)
TEXT: Final = Kind("text", _text)
APP_NAME: Final = Kind("text of at most 128 bytes", _app_name)
TAG_SET: Final = Kind("tag set", _tags, ("%2c", "%3a"))
COMPRESSORS: Final = Kind("list of compressors", _compressors)
WRITE_CONCERN: Final = Kind("write concern", _write_concern)
PROPERTIES: Final = Kind("properties", _properties)
COUNT: Final = integer(0)
TIME_MS: Final = integer(0, 999_999_999)
POSITIVE_MS: Final = integer(1, 999_999_999)

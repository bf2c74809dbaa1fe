"""TTL indexes: which documents a rule of the archive's may have expired. Pure."""

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from thermocline_common.ages import to_milliseconds
from thermocline_common.ids import ARRAY, DATE, DOCUMENT, elements

_LONGEST_SECONDS = 2**31 - 1
CLOCK_MARGIN: Final = dt.timedelta(minutes=5)
"""Clocks of servers and services may differ by so much."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One TTL index of the archive. ``partial``: its partial filter, or empty."""

    name: str
    path: str
    seconds: float
    partial: Mapping[str, Any] = field(default_factory=dict)


def rules_of(indexes: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The rules in specs as ``listIndexes`` gives them; what MongoDB itself ignores is left out."""
    found = []
    for index in indexes:
        seconds = index.get("expireAfterSeconds")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            continue
        if math.isnan(seconds) or not 0 <= seconds <= _LONGEST_SECONDS or len(index["key"]) != 1:
            continue
        path = next(iter(index["key"]))
        found.append(
            Rule(
                str(index["name"]),
                path,
                float(seconds),
                dict(index.get("partialFilterExpression") or {}),
            )
        )
    return tuple(found)


def may_have_expired(rules: Iterable[Rule], document: bytes, now: dt.datetime) -> bool:
    """Whether the archive's TTL monitor may have removed such a document: its absence there is then
    no mismatch. Generous about clocks and partial filters."""
    latest = to_milliseconds(now + CLOCK_MARGIN)
    return any(
        date <= latest - rule.seconds * 1_000
        for rule in rules
        for date in _dates(document, rule.path.encode().split(b"."))
    )


def _dates(document: bytes, path: list[bytes]) -> Iterable[int]:
    """Every date at a path, also in arrays at its end or on it."""
    for name, kind, _, start, end in elements(document):
        if name == path[0]:
            yield from _dates_of(kind, document[start:end], path[1:])


def _dates_of(kind: int, value: bytes, rest: list[bytes]) -> Iterable[int]:
    if kind == DATE and not rest:
        yield int.from_bytes(value, "little", signed=True)
    elif kind == DOCUMENT and rest:
        yield from _dates(value, rest)
    elif kind == ARRAY:
        for _, inner, _, start, end in elements(value):
            yield from _dates_of(inner, value[start:end], rest)

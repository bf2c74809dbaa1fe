"""The differences that ``docs/compatibility.md`` allows, and what a run's losses are against them. Pure."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

HEADING: Final = "## Allowed differences"
EVERYWHERE: Final = "all"


@dataclass(frozen=True, slots=True)
class Allowed:
    """``pattern``: a glob over ``unit :: test``. ``settings``: where these tests may differ."""

    pattern: str
    settings: frozenset[str]
    reason: str

    def names(self, test: str) -> bool:
        """Whether the test is one of these."""
        return fnmatch.fnmatchcase(test, self.pattern)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``unexpected``: lost tests that no row allows, with their messages; ``allowed``: lost tests with the
    row's reason; ``passed``: tests that a row allows to differ and that passed all the same."""

    unexpected: Mapping[str, str]
    allowed: Mapping[str, str]
    passed: Sequence[str]


def parse(page: str, settings: Collection[str]) -> list[Allowed]:
    """The rows of the page's table. Raises ``ValueError`` where one isn't ``| `glob` | settings | reason |``."""
    _, found, rest = page.partition(f"{HEADING}\n")
    if not found:
        raise ValueError(f"no heading {HEADING!r}")
    lines = [line for line in rest.split("\n## ")[0].splitlines() if line.startswith("|")]
    rows = []
    for line in lines[2:]:
        match = re.fullmatch(r"\| `([^`|]+ :: [^`|]+)` \| ([a-z, ]+) \| ([^|]*\w[^|]*) \|", line)
        if match is None:
            raise ValueError(f"not a row of the table: {line}")
        named = frozenset(match[2].split(", "))
        if not named <= {*settings, EVERYWHERE}:
            raise ValueError(f"{match[2]}: settings are {', '.join(settings)}, {EVERYWHERE}")
        rows.append(Allowed(match[1], named, match[3].strip()))
    return rows


def judge(
    lost: Mapping[str, str], passed: Iterable[str], rows: Iterable[Allowed], setting: str
) -> Verdict:
    """What a run in one setting gave. ``lost``: tests with their messages."""
    rows = [row for row in rows if row.settings & {setting, EVERYWHERE}]
    reasons = {test: next((row.reason for row in rows if row.names(test)), None) for test in lost}
    return Verdict(
        {test: lost[test] for test, reason in reasons.items() if reason is None},
        {test: reason for test, reason in reasons.items() if reason is not None},
        sorted(test for test in passed if any(row.names(test) for row in rows)),
    )

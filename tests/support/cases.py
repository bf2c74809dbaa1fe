"""The catalogue of cases (``tests/cases/cases.json``) and its page, ``docs/cases.md``.

``python -m support.cases`` writes the page.
"""

import ast
import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
CATALOGUE = TESTS / "cases" / "cases.json"
PAGE = TESTS.parent / "docs" / "cases.md"

SECTIONS = {
    "A": "Handshake and topology",
    "B": "Messages",
    "C": "Cursors",
    "D": "Sessions and times",
    "E": "Retryable writes",
    "F": "Transactions",
    "G": "Where reads and writes go",
    "H": "The feeder",
    "I": "The evictor and the warmer",
    "J": "Logins",
    "K": "Connection strings",
    "L": "Operations",
    "M": "Two tiers, several documents, failover",
}


@dataclass(frozen=True, slots=True)
class Case:
    """``number``: of the case or invariant. ``reason``: what doesn't apply here, or isn't done."""

    number: str
    expected: str
    tests: tuple[str, ...]
    reason: str | None = None


def read_catalogue() -> tuple[list[Case], list[Case]]:
    """The cases and the invariants."""
    found: dict[str, list[dict[str, Any]]] = json.loads(CATALOGUE.read_text())
    return (
        [_case(str(entry["case"]), entry) for entry in found["cases"]],
        [_case(str(entry["invariant"]), entry) for entry in found["invariants"]],
    )


def _case(number: str, entry: dict[str, Any]) -> Case:
    return Case(number, entry["expected"], tuple(entry["tests"]), entry.get("reason"))


@functools.cache
def functions_in(path: str) -> frozenset[str]:
    """The test functions of a file, below ``tests``; empty where there is no such file."""
    file = TESTS / path
    if not file.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text()))
    functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(f.name for f in functions if f.name.startswith("test_"))


def missing_tests(cases: Iterable[Case]) -> list[str]:
    """Tests that are named and don't exist."""
    return [
        f"{case.number}: {test}"
        for case in cases
        for test in case.tests
        if test.partition("::")[2] not in functions_in(test.partition("::")[0])
    ]


def render() -> str:
    """The page."""
    cases, invariants = read_catalogue()
    lines = [
        "# Cases and their tests",
        "",
        "What goes wrong with proxies, replicators and their drivers, and what is right here; each",
        "case names the tests that try it (paths below `tests/`). Written by",
        "`make cases` from `tests/cases/cases.json`; a unit test holds",
        "both together and finds tests that are gone.",
        "",
        "## Invariants",
        "",
        "Each of the architecture's invariants, and the tests that try to break it.",
        "",
        *_table("Invariant", invariants),
    ]
    for letter, title in SECTIONS.items():
        own = [case for case in cases if case.number[0] == letter]
        if own:
            lines += ["", f"## {letter}. {title}", "", *_table("Case", own)]
    return "\n".join(lines) + "\n"


def _table(head: str, cases: Sequence[Case]) -> list[str]:
    lines = [f"| {head} | What is right | Tests |", "| --- | --- | --- |"]
    for case in sorted(cases, key=lambda c: (c.number[0], int(re.sub(r"\D", "", c.number)))):
        expected = f"{case.expected} *{case.reason}*" if case.reason else case.expected
        lines.append(f"| {case.number} | {expected} | {_links(case.tests)} |")
    return lines


def _links(tests: Sequence[str]) -> str:
    by_file: dict[str, list[str]] = {}
    for test in tests:
        path, _, name = test.partition("::")
        by_file.setdefault(path, []).append(f"`{name}`")
    return "; ".join(f"[{path}](../tests/{path}): {', '.join(n)}" for path, n in by_file.items())


if __name__ == "__main__":
    PAGE.write_text(render())

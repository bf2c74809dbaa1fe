"""How results look in a terminal, and for programs."""

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thermocline_cli.checking import Checked, clip
from thermocline_cli.explain import Explanation
from thermocline_cli.members import Chosen
from thermocline_cli.release import Standing
from thermocline_common.spec.problems import Problem
from thermocline_proxy.choosing import shown


def console(*, error: bool = False) -> Console:
    """A console that wraps nothing, so that output can be searched and pasted."""
    return Console(stderr=error, soft_wrap=True, highlight=False, markup=False, emoji=False)


def as_json(value: Any) -> str:
    """Indented JSON of dataclasses, lists, dates and plain values."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else dataclasses.asdict(value)


def print_problems(to: Console, file: str, problems: Sequence[Problem]) -> None:
    """Every problem with path, value, reason and remedy; one line where there is none."""
    if not problems:
        to.print(Text.assemble((f"{file}: ", "bold"), ("valid", "green")))
        return
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    to.print(Text.assemble((f"{file}: ", "bold"), (count, "red")))
    for problem in problems:
        value = "" if problem.value is None else f" {problem.value}"
        to.print(Text.assemble("  ", (problem.path, "bold cyan"), (value, "yellow")))
        to.print(f"      {problem.reason}")
        to.print(Text.assemble("      remedy: ", (problem.remedy, "green")))


def print_explanation(to: Console, explanation: Explanation) -> None:
    """Tier, reason, and what that means."""
    style = {"fast tier": "green", "archive": "yellow", "nobody": "red"}.get(
        explanation.tier, "cyan"
    )
    to.print(Text.assemble((f"{explanation.namespace}: ", "bold"), (explanation.tier, style)))
    to.print(f"  reason: {explanation.reason}: {explanation.text}")
    if explanation.tier == "archive" and explanation.barrier:
        to.print("  waits until the archive has every acknowledged write (archiveReads: Strict)")
    if explanation.error is not None:
        to.print(f"  error: {explanation.error}")


def print_chosen(to: Console, found: Sequence[Chosen]) -> None:
    """The members that may answer, tier by tier."""
    for one in found:
        to.print(f"  {one.tier}, read preference {shown(one.preference)}:")
        for member in one.members:
            to.print(f"    {member.address} ({member.reason}, {member.milliseconds} ms)")
        if one.text is not None:
            to.print(Text.assemble("    ", ("nobody", "red"), f": {one.text}"))
        if not one.satisfiable:
            to.print("    condition: TopologySatisfiable is False")


def print_checked(to: Console, found: Checked) -> None:
    """The options in force as a table; or each mistake below a caret."""
    for problem in found.problems:
        line, indent = clip(found.uri, problem.start)
        to.print(line)
        marks = "^" * max(1, min(problem.end - problem.start, len(line) - indent))
        to.print(Text.assemble(" " * indent, (marks, "red")))
        to.print(f"at character {problem.start + 1}: {problem.reason}")
        to.print(Text.assemble("remedy: ", (problem.remedy, "green")))
    if found.problems:
        return
    to.print(Text.assemble(("good: ", "green"), (found.uri, "bold")))
    for name, value in (
        ("hosts", ", ".join(found.hosts)),
        ("user", found.user),
        ("database", found.database),
    ):
        if value is not None:
            to.print(f"  {name}: {value}")
    table = Table("option", "value", "", box=SIMPLE_HEAD, pad_edge=False)
    for option in found.options:
        shown = option.value if isinstance(option.value, str) else json.dumps(option.value)
        table.add_row(
            option.name,
            shown,
            "" if option.given else "default",
            style=None if option.given else "dim",
        )
    to.print(table)


def print_standing(to: Console, found: Sequence[Standing]) -> None:
    """What the self-check said of each namespace, and whether it was released."""
    if not found:
        to.print("nothing waits for a release")
    for one in found:
        doubt = one.doubt
        if doubt is None:
            to.print(Text.assemble((f"{one.namespace}: ", "bold"), "nothing to release"))
            continue
        what = ("released", "green") if one.released else ("its reads go to the archive", "yellow")
        to.print(Text.assemble((f"{one.namespace}: ", "bold"), what))
        since = "" if doubt.since is None else f", {doubt.since.isoformat(timespec='seconds')}"
        to.print(f"  {doubt.count} documents differed (noticed by {doubt.command or '?'}{since})")
        for document in doubt.documents:
            to.print(f"    {document}")

"""The reference page of conditions, reasons and events: ``python -m thermocline_operator.status.reference``."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from thermocline_operator.status.reasons import (
    WARNINGS,
    ConditionType,
    Described,
    EventReason,
    Phase,
    Reason,
)

PAGE: Final = Path("docs/reference/conditions.md")

_HEAD: Final = """\
<!-- Generated from thermocline_operator.status by `make crds`; don't edit. -->
# Conditions and events

What `kubectl describe trs` shows. Each list is closed: nothing else is ever written.

`status.blockedOn` names every object that is waited for: its kind, its name, what it lacks, and since when.
`Reconciling` and `Stalled` follow kstatus, for GitOps tools. A condition is `Unknown` (reason `NotHeard`) where no
service told about it in the last 30 s. A change of phase or condition is written at once; numbers are rounded, and
written at most every 15 s.
"""


def _table(head: str, members: Iterable[Described], extra: dict[str, str] | None = None) -> str:
    lines = [f"| {head} | meaning |" if extra is None else f"| {head} | type | meaning |"]
    lines.append("| --- | --- |" if extra is None else "| --- | --- | --- |")
    for member in members:
        kind = "" if extra is None else f" {extra[member.value]} |"
        lines.append(f"| `{member.value}` |{kind} {member.description} |")
    return "\n".join(lines)


def page() -> str:
    """The page's text."""
    kinds = {reason.value: "Warning" if reason in WARNINGS else "Normal" for reason in EventReason}
    parts = [
        _HEAD,
        "## Phases\n",
        _table("phase", Phase),
        "\n## Conditions\n",
        _table("condition", ConditionType),
        "\n## Reasons of conditions\n",
        _table("reason", Reason),
        "\n## Events\n",
        "The same event is written again at most every five minutes, and counted.\n",
        _table("reason", EventReason, kinds),
        "",
    ]
    return "\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    """Write the page, or check it; 1 where it is stale."""
    parser = argparse.ArgumentParser("python -m thermocline_operator.status.reference")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where it is stale"
    )
    arguments = parser.parse_args(argv)
    path: Path = arguments.page
    if path.is_file() and path.read_text("utf-8") == page():
        return 0
    if arguments.check:
        sys.stderr.write(f"{path} is stale: run `make crds`\n")
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

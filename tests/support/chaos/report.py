"""What a run says at its end."""

import os
from collections import Counter

from support.chaos.histories import Outcome
from support.chaos.machine import Result


def summary(result: Result) -> str:
    """Faults, errors, violations with their traces; the last line is for those who count runs."""
    lines = [f"seed {result.seed}"]
    lines += [f"  {happened}" for happened in result.faults]
    errors = Counter(
        f"{a.error} ({a.what})" for a in result.attempts if a.outcome is not Outcome.DONE
    )
    lines += [f"  {times:4d} x {error}" for error, times in errors.most_common(20)]
    lines.append(
        f"  {result.documents} documents, {result.keys} keys judged ({len(result.undecided)}"
        f" undecided), {result.evicted} evicted, {result.copied} copied"
    )
    if result.load > 2 * (os.cpu_count() or 1):
        lines.append(f"  the machine's load was {result.load:.0f}: times were judged with patience")
    for violation in result.violations:
        lines.append(f"VIOLATION (seed {result.seed}): {violation.promise}: {violation.subject}")
        lines += [f"    {line}" for line in violation.trace]
    lines.append(last_line(len(result.attempts), len(result.faults), len(result.violations)))
    return "\n".join(lines)


def last_line(operations: int, faults: int, violations: int) -> str:
    """The line that a run ends with."""
    return f"chaos: operations={operations} faults={faults} violations={violations}"

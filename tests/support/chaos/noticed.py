"""Every defect once: does the machine notice? ``python -m support.chaos.noticed``."""

import argparse
import sys
from collections.abc import Sequence

from support.chaos.defects import DEFECTS
from support.chaos.machine import Result
from support.chaos.run import Options, run

ABOUT_ERRORS = frozenset({"errors are retryable", "errors end 30 s after the fault"})
"""These a loaded machine may show; they don't count as noticing."""


def noticed(result: Result) -> set[str]:
    """The broken promises that a defect is known by."""
    return {violation.promise for violation in result.violations} - ABOUT_ERRORS


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if each was noticed."""
    parser = argparse.ArgumentParser(prog="python -m support.chaos.noticed", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("defects", nargs="*", default=sorted(DEFECTS))
    given = parser.parse_args(arguments)
    missed = []
    for name in given.defects:
        result = run(Options(1, given.seconds, members=1, defect=name, kinds=frozenset()))
        promises = sorted(noticed(result))
        print(f"{name}: {'; '.join(promises) or 'NOT NOTICED'}", flush=True)
        if not promises:
            missed.append(name)
    print(f"defects: noticed={len(given.defects) - len(missed)} of {len(given.defects)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Every defect once: does the machine notice? ``python -m support.chaos.noticed``."""

import argparse
import itertools
import sys
from collections.abc import Sequence

from support.chaos.defects import DEFECTS
from support.chaos.machine import Result, Size
from support.chaos.run import Options, run
from support.chaos.schedule import Fault, Planned

ABOUT_ERRORS = frozenset({"errors are retryable", "errors end 30 s after the fault"})
"""These a loaded machine may show; they don't count as noticing."""


def occasions(seconds: float) -> tuple[Planned, ...]:
    """What a working Thermocline takes calmly and gives a defect its occasion: replay that stands still
    for a while, again and again, and coverage that grows and shrinks."""
    planned = []
    at, details = 4.0, itertools.cycle(("longer", "shorter"))
    while at + 10 < seconds:
        planned.append(Planned(at, 7.0, Fault.POLICY, detail=next(details)))
        planned.append(Planned(at + 5, 4.0, Fault.FREEZE_SERVICE, "feeder"))
        at += 10
    return tuple(planned)


def options_for(name: str, seconds: float, *, logins: bool = True) -> Options:
    """A small run with one defect."""
    size = Size(registers=5, locks=1, orders=3, counters=1, banks=1, coroutines=5, pause=0.03)
    script, max_age = occasions(seconds), 8
    if name == "wrong-cut-off":
        # Announcements last longer than the usual age: everything would be due when its time comes.
        # And they begin anew with each change of a policy.
        max_age = 60
        script = tuple(planned for planned in script if planned.fault is not Fault.POLICY)
    elif name == "stale-copy":
        # Everything is warmed anew, by a warmer that has seen it before.
        script = tuple(Planned(at, 3.0, Fault.MODE) for at in (10.0, seconds - 20))
    return Options(
        1, seconds, members=1, logins=logins, defect=name, size=size, script=script,
        max_age=max_age,
    )  # fmt: skip


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
        result = run(options_for(name, given.seconds))
        promises = sorted(noticed(result))
        print(f"{name}: {'; '.join(promises) or 'NOT NOTICED'}", flush=True)
        done = (
            f"{len(result.attempts)} operations, {result.evicted} evicted, {result.copied} copied"
        )
        print(f"  {done}", flush=True)
        if not promises:
            missed.append(name)
    print(f"defects: noticed={len(given.defects) - len(missed)} of {len(given.defects)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m support.compat --setting passthrough --unit 'spec/*'``: other people's suites through the proxy.

Without arguments all of them in all settings. Exit status 1 if a test differs from a plain mongod that
``docs/compatibility.md`` doesn't name.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.compat.suites import SETTINGS, Outcome, groups, known_units, prepare, run_units


def tell(setting: str, outcome: Outcome) -> None:
    """Print what a run gave, beyond what the kit printed."""
    verdict = outcome.verdict
    print(f"-- {setting}: {outcome.passed} passed, {len(verdict.unexpected)} differ, "
          f"{len(verdict.allowed)} differ as docs/compatibility.md says")  # fmt: skip
    if setting == "working":
        print(f"   {outcome.evicted} documents were evicted meanwhile")
    for title, rows in (
        ("differs and isn't listed", [f"{t}: {how}" for t, how in verdict.unexpected.items()]),
        ("differs as listed", [f"{test} ({why})" for test, why in verdict.allowed.items()]),
        ("is listed, and passed", verdict.passed),
        ("passed only when tried once more", outcome.again),
        ("did not end well", outcome.ended),
        ("went wrong beside the suites", outcome.wrong),
    ):
        for row in rows:
            print(f"   {title}: {row}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="support.compat", description=__doc__)
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    parser.add_argument(
        "--unit", action="append", default=[], help="glob, repeatable; default: all"
    )
    parser.add_argument("--per-unit", type=int, default=1500, help="seconds for each unit")
    parser.add_argument("--lease", default="500ms", help="of the proxy: longer for slow machines")
    parser.add_argument("--out", type=Path, default=None, help="keeps results and logs there")
    options = parser.parse_args(arguments)
    units = known_units(prepare(), options.unit)
    base = options.out or Path(tempfile.mkdtemp(prefix="thermocline-compat-"))
    good = bool(units)
    for setting in options.setting or SETTINGS:
        for number, group in enumerate(groups(units)):
            out = base / f"{setting}-{number}"
            print(f"== {setting}: {' '.join(group)} == (results in {out})", flush=True)
            outcome = run_units(
                setting, group, out,
                per_unit=options.per_unit, lease=options.lease, streaming=True,
            )  # fmt: skip
            tell(setting, outcome)
            good &= outcome.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

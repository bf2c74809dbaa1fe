"""Other people's test suites (``tests/compat``) against a proxy in front of two real tiers.

``python -m support.compat --mode passthrough --unit 'spec/*'`` runs some of them; without arguments
all of them in both modes. Exit status 1 if anything that passes on a plain mongod was lost.
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.binaries import cache_directory
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

KIT: Final = Path(__file__).resolve().parents[1] / "compat"
MODES: Final = ("passthrough", "tiered")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of some units gave. ``passed``: how many tests; ``lost``: tests that pass on a plain
    mongod and didn't here, with the first line of their messages; ``ended``: units that hung or crashed."""

    passed: int
    lost: Mapping[str, str]
    ended: Sequence[str] = field(default=())


def namespaces(units: Sequence[str]) -> list[str]:
    """The namespaces that these units (globs) write to, without those of the server's databases."""
    known: Mapping[str, Mapping[str, int]] = json.loads((KIT / "namespaces.json").read_text())
    chosen = [
        namespace
        for unit, written in known.items()
        if not units or any(fnmatch.fnmatch(unit, pattern) for pattern in units)
        for namespace in written
    ]
    return sorted({n for n in chosen if n.partition(".")[0] not in ("admin", "config", "local")})


def prepare() -> Path:
    """Fetch the drivers and suites where they aren't there yet: ``COMPAT_WORK``, else a folder of the
    cache. Raises ``RuntimeError`` with what failed."""
    work = Path(os.environ.get("COMPAT_WORK") or cache_directory() / "compat")
    command = [sys.executable, str(KIT / "prepare.py"), "--work", str(work)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the kit couldn't be fetched: {done.stdout[-3000:]}")
    return work


def run_units(mode: str, units: Sequence[str], out: Path, *, streaming: bool = False) -> Outcome:
    """Start two tiers and a proxy, run the units (globs; none: all) through it.

    ``tiered``: every namespace that they write to is under a policy ``keep: All``. Raises
    ``RuntimeError`` if the kit couldn't run at all.
    """
    tiered = mode == "tiered"
    policies = [{"namespace": name, "keep": "All"} for name in namespaces(units)] if tiered else []
    work = prepare()
    with ExitStack() as stack:
        fast = stack.enter_context(ReplicaSet("fast", test_commands=True, cache_gb=0.5))
        archive = stack.enter_context(ReplicaSet("archive", test_commands=True, cache_gb=0.5))
        thermocline = Thermocline(
            fast, archive, policies, mode="Active" if tiered else "Passthrough", environment=HASTE
        )
        with thermocline.logs_on_failure():
            stack.callback(thermocline.stop)
            thermocline.start(only=("feeder", "proxy", "warmer"))  # nothing here is evicted
            if tiered:
                thermocline.wait_state("Active")
            command = [
                sys.executable, str(KIT / "run.py"), "--uri", thermocline.uri(), "--out", str(out),
                "--work", str(work), "--admin-uri", archive.uri, "--admin-uri", fast.uri, "--per-unit", "300",
            ]  # fmt: skip
            for unit in units:
                command += ["--unit", unit]
            done = subprocess.run(
                command, stdout=None if streaming else subprocess.PIPE, text=True, check=False
            )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the kit ended with {done.returncode}: {done.stdout}")
    return _outcome(out)


def _outcome(out: Path) -> Outcome:
    results: Mapping[str, Any] = json.loads((out / "results.json").read_text())
    comparison: Mapping[str, Any] = json.loads((out / "compare.json").read_text())
    passed = sum(test["o"] == "passed" for test in results["tests"].values())
    rows = comparison["lost"] + comparison["lost_to_skip"]
    lost = {name: f"{outcome}: {message.partition(chr(10))[0]}" for name, outcome, message in rows}
    return Outcome(passed, lost, [f"{unit}: {how}" for unit, how in comparison["units"].items()])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument(
        "--unit", action="append", default=[], help="glob, repeatable; default: all"
    )
    parser.add_argument("--out", type=Path, default=None, help="keeps results and logs there")
    options = parser.parse_args(arguments)
    failed = False
    for mode in options.mode or MODES:
        base = options.out or Path(tempfile.mkdtemp(prefix="thermocline-compat-"))
        print(f"== {mode} == (results in {base / mode})", flush=True)
        outcome = run_units(mode, options.unit, base / mode, streaming=True)
        failed |= bool(outcome.lost or outcome.ended)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

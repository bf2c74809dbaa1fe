"""Runs units of the kit through a proxy in one of three settings."""

import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.binaries import cache_directory
from support.compat import busy
from support.compat.allowed import Verdict, judge, parse
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import SERVICES, Thermocline

TESTS: Final = Path(__file__).resolve().parents[2]
KIT: Final = TESTS / "compat"
PAGE: Final = TESTS.parent / "docs" / "compatibility.md"
SETTINGS: Final = ("passthrough", "tiered", "working")
"""Nothing is tiered; every collection is; the same with evictor and warmer at work beside it."""
MOST_NAMESPACES: Final = 300
"""At a time; a resource has 500 at most."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of some units gave. ``passed``: how many tests; ``verdict``: on the others; ``ended``: units
    that hung or crashed, with how; ``wrong``: what went wrong beside them; ``evicted``: documents."""

    passed: int
    verdict: Verdict
    ended: Sequence[str] = field(default=())
    wrong: Sequence[str] = field(default=())
    evicted: int = 0

    @property
    def good(self) -> bool:
        """Nothing but allowed differences."""
        return not (self.verdict.unexpected or self.ended or self.wrong)


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


def groups(units: Sequence[str]) -> Iterator[list[str]]:
    """The units (names) in turn, in groups that one resource can tier."""
    group: list[str] = []
    for unit in units:
        if group and len(namespaces([*group, unit])) > MOST_NAMESPACES:
            yield group
            group = []
        group.append(unit)
    if group:
        yield group


def prepare() -> Path:
    """Fetch the drivers and suites where they aren't there yet: ``COMPAT_WORK``, else a folder of the
    cache. Raises ``RuntimeError`` with what failed."""
    work = Path(os.environ.get("COMPAT_WORK") or cache_directory() / "compat")
    _kit("prepare.py", "--work", str(work))
    return work


def known_units(work: Path, patterns: Sequence[str]) -> list[str]:
    """The names of the kit's units that match one of these globs; all where there are none."""
    chosen = [argument for pattern in patterns for argument in ("--unit", pattern)]
    return _kit("run.py", "--work", str(work), "--list", *chosen).split()


def _kit(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(KIT / script), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script} of the kit failed: {done.stdout[-3000:]}")
    return done.stdout


def run_units(
    setting: str, units: Sequence[str], out: Path, *, per_unit: int = 300, streaming: bool = False
) -> Outcome:
    """Start two tiers and the services, run the units (globs) through a proxy.

    ``per_unit``: seconds for each. Raises ``RuntimeError`` if the kit couldn't run at all.
    """
    tiered, working = setting != "passthrough", setting == "working"
    policies: list[Mapping[str, Any]] = [busy.POLICY] if working else []
    if tiered:
        policies += [{"namespace": name, "keep": "All"} for name in namespaces(units)]
    work = prepare()
    evicted, wrong = 0, list[str]()
    with ExitStack() as stack:
        fast = stack.enter_context(ReplicaSet("fast", test_commands=True, cache_gb=0.5))
        archive = stack.enter_context(ReplicaSet("archive", test_commands=True, cache_gb=0.5))
        if working:
            with archive.client() as client:
                busy.seed(client)
        thermocline = Thermocline(
            fast, archive, policies, mode="Active" if tiered else "Passthrough", environment=HASTE
        )
        with thermocline.logs_on_failure():
            stack.callback(thermocline.stop)
            # Where nothing has an age, there is nothing to evict.
            thermocline.start(SERVICES if working else ("feeder", "proxy", "warmer"))
            if tiered:
                thermocline.wait_state("Active")
            command = [
                sys.executable, str(KIT / "run.py"), "--uri", thermocline.uri(), "--out", str(out),
                "--work", str(work), "--admin-uri", archive.uri, "--admin-uri", fast.uri,
                "--per-unit", str(per_unit), "--keep", busy.DATABASE,
            ]  # fmt: skip
            for unit in units:
                command += ["--unit", unit]
            application = busy.Busy(thermocline.uri()) if working else None
            with application or nullcontext():
                done = subprocess.run(
                    command, stdout=None if streaming else subprocess.PIPE, text=True, check=False
                )
            if application is not None:
                evicted, wrong = thermocline.evicted(), application.wrong
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the kit ended with {done.returncode}: {done.stdout}")
    return outcome(setting, out, wrong, evicted)


def outcome(setting: str, out: Path, wrong: Sequence[str] = (), evicted: int = 0) -> Outcome:
    """What the kit left in its folder, seen with the page's eyes."""
    results: Mapping[str, Any] = json.loads((out / "results.json").read_text())
    comparison: Mapping[str, Any] = json.loads((out / "compare.json").read_text())
    passed = [name for name, test in results["tests"].items() if test["o"] == "passed"]
    rows = comparison["lost"] + comparison["lost_to_skip"]
    lost = {name: f"{how}: {message.partition(chr(10))[0]}" for name, how, message in rows}
    verdict = judge(lost, passed, parse(PAGE.read_text(), SETTINGS), setting)
    ended = [f"{unit}: {how}" for unit, how in comparison["units"].items()]
    return Outcome(len(passed), verdict, ended, wrong, evicted)

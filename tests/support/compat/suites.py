"""Runs units of the kit through a proxy in one of three settings."""

import dataclasses
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
    that hung or crashed, with how; ``again``: tests that passed only when they were tried once more;
    ``wrong``: what went wrong beside them; ``evicted``: documents."""

    passed: int
    verdict: Verdict
    ended: Sequence[str] = field(default=())
    again: Sequence[str] = field(default=())
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
    setting: str,
    units: Sequence[str],
    out: Path,
    *,
    per_unit: int = 300,
    lease: str = "500ms",
    streaming: bool = False,
) -> Outcome:
    """Start two tiers and the services, run the units (globs) through a proxy.

    Tests that differ are tried once more: shared machines stall, and a proxy without a live lease answers
    262. ``per_unit``: seconds for each. ``lease``: the proxies'; a drop takes four times as long. Raises ``RuntimeError`` if the kit couldn't run at all.
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
            fast,
            archive,
            policies,
            mode="Active" if tiered else "Passthrough",
            # Patient: a suite inserts 100,000 documents and counts them, on machines that stall.
            spec={"proxy": {"lease": lease, "drainTimeout": "2s", "barrierTimeout": "60s"}},
            environment=HASTE,
        )
        with thermocline.logs_on_failure():
            stack.callback(thermocline.stop)
            # Where nothing has an age, there is nothing to evict.
            thermocline.start(SERVICES if working else ("feeder", "proxy", "warmer"))
            if tiered:
                thermocline.wait_state("Active", timeout=300)
            command = [
                sys.executable, str(KIT / "run.py"), "--uri", thermocline.uri(), "--work", str(work),
                "--admin-uri", archive.uri, "--admin-uri", fast.uri, "--per-unit", str(per_unit),
                "--per-test", "120", "--keep", busy.DATABASE,
            ]  # fmt: skip
            for unit in units:
                command += ["--unit", unit]
            application = busy.Busy(thermocline.uri()) if working else None
            with application or nullcontext():
                _run([*command, "--out", str(out)], streaming=streaming)
                if different := judged(setting, out).unexpected:
                    tests = out / "again.txt"
                    tests.write_text("\n".join(different))
                    again = [*command, "--out", str(out / "again"), "--only", str(tests)]
                    _run(again, streaming=streaming)
            if application is not None:
                evicted, wrong = thermocline.evicted(), application.wrong
    return outcome(setting, out, wrong, evicted)


def _run(command: Sequence[str], *, streaming: bool) -> None:
    done = subprocess.run(
        command, stdout=None if streaming else subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the kit ended with {done.returncode}: {done.stdout}")


def judged(setting: str, out: Path) -> Verdict:
    """On what one run of the kit left in its folder."""
    lost = {name: f"{how}: {text.partition(chr(10))[0]}" for name, how, text in _lost(out)}
    return judge(lost, _passed(out), parse(PAGE.read_text(), SETTINGS), setting)


def outcome(setting: str, out: Path, wrong: Sequence[str] = (), evicted: int = 0) -> Outcome:
    """What both runs left there."""
    verdict = judged(setting, out)
    passed = _passed(out)
    ended: Mapping[str, str] = _read(out, "compare")["units"]
    again: list[str] = []
    if (out / "again" / "compare.json").exists():
        again = sorted(verdict.unexpected.keys() & set(_passed(out / "again")))
        second: Mapping[str, str] = _read(out / "again", "compare")["units"]
        units = {name.split(" :: ")[0] for name in verdict.unexpected}
        ended = {unit: how for unit, how in ended.items() if unit not in units} | dict(second)
    left = {name: how for name, how in verdict.unexpected.items() if name not in again}
    return Outcome(
        passed=len({*passed, *again}),
        verdict=dataclasses.replace(verdict, unexpected=left),
        ended=[f"{unit}: {how}" for unit, how in ended.items()],
        again=again,
        wrong=wrong,
        evicted=evicted,
    )


def _read(out: Path, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((out / f"{name}.json").read_text())
    return found


def _passed(out: Path) -> list[str]:
    return [name for name, test in _read(out, "results")["tests"].items() if test["o"] == "passed"]


def _lost(out: Path) -> list[tuple[str, str, str]]:
    comparison = _read(out, "compare")
    return [
        (name, how, text) for name, how, text in comparison["lost"] + comparison["lost_to_skip"]
    ]

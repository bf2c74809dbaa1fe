"""``python -m rig``: the published experiment to scale. As root, on Linux with control groups.

Ends with 0 where every goal that was measured is met, 1 where one is missed or an answer was wrong, 2 where
nothing could be measured.
"""

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig.crew import Crew
from rig.documents import Catalogue
from rig.experiment import Experiment, WrongAnswers
from rig.goals import judge
from rig.loading import load
from rig.place import Place
from rig.plots import draw
from rig.refusal import Refused
from rig.scales import FULL, QUICK, Scale
from rig.steps import Arm, Pace, Step, costs, full, quick
from rig.tables import Heading, report

ROOT = Path(__file__).resolve().parents[2]
GENERATORS = 2


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five minutes on a small scale")
    parser.add_argument("--arms", nargs="+", choices=list(Arm), default=list(Arm))
    parser.add_argument("--workloads", nargs="+", help="only these, such as: concentrated shop")
    parser.add_argument("--rounds", type=int, help="(full: 3, quick: 1)")
    parser.add_argument("--seconds", type=float, help="that count, of each step")
    parser.add_argument("--empty-seconds", type=float, default=600, help="start from empty (600)")
    parser.add_argument("--documents", type=int)
    parser.add_argument("--memory-mb", type=int, help="of the archive, all of it")
    parser.add_argument("--iops", type=int, help="disk reads of the archive, a second (300)")
    parser.add_argument("--connections", type=int, help="of the generator (64)")
    parser.add_argument("--proxy-workers", type=int, default=1)
    parser.add_argument(
        "--costs", action="store_true", help="only what each kind of operation costs"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "rig", help="for data")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "rig-out", help="for the report"
    )
    return parser.parse_args(argv)


def scaled(options: argparse.Namespace) -> Scale:
    """The sizes."""
    changes: dict[str, Any] = {
        "documents": options.documents,
        "memory_mb": options.memory_mb,
        "connections": options.connections,
        "iops": options.iops,
    }
    given = {name: value for name, value in changes.items() if value}
    return dataclasses.replace(QUICK if options.quick else FULL, **given)


def planned(options: argparse.Namespace) -> tuple[Step, ...]:
    """The steps."""
    arms = frozenset(Arm(name) for name in options.arms)
    seconds = options.seconds
    steps = quick(arms) if options.quick else full(arms, seconds or 120, options.empty_seconds)
    if options.costs:
        return costs(arms)
    if Arm.ARCHIVE not in arms:  # whose rate nobody knows then
        steps = tuple(step for step in steps if step.pace is not Pace.FIXED)
    if options.workloads:
        steps = tuple(step for step in steps if step.workload.name in options.workloads)
    if seconds:
        steps = tuple(
            step if step.arm is Arm.EMPTY else dataclasses.replace(step, seconds=seconds)
            for step in steps
        )
    return steps


def machine() -> str:
    """Processors, memory and kernel."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{os.cpu_count()} processors, {memory} GB, Linux {platform.release().split('-')[0]}"


def commit() -> str:
    """Short, with a mark where files were changed since."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    done = subprocess.run(
        [*git, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Run and report."""
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    try:
        return measure(options, say)
    except Refused as refused:
        print(f"the rig doesn't start: {refused}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; everything is removed", file=sys.stderr)
        return 130


def measure(options: argparse.Namespace, say: Any) -> int:
    """The whole run; the exit code."""
    scale, steps = scaled(options), planned(options)
    if not steps:
        raise Refused("no step is left of these arms and workloads")
    now = dt.datetime.now(dt.UTC)
    catalogue = Catalogue.make(scale.documents, scale.filler, now, options.seed)
    with Place(options.directory, scale) as place, Crew(GENERATORS, catalogue) as crew:
        for process in crew.processes:
            if process.pid is not None:
                place.leftovers.add_process(process.pid)
        say(f"loading {scale.documents:,} documents, {scale.data_mb:,} MB; {place.notes[0]}")
        with place.archive.client() as client:
            took = load(client, catalogue)
        say(f"loaded in {took:.0f} s")
        place.settle_archive()
        spec = {"proxy": {"lease": "5s", "workers": options.proxy_workers}}
        experiment = Experiment(place, crew, steps, spec, options.seed, say)
        rounds = options.rounds or (1 if options.quick else 3)
        wrong = ""
        try:
            experiment.run(rounds)
        except WrongAnswers as error:
            wrong = str(error)
        say(f"the archive's group holds {place.archive_group.memory_used_mb():.0f} MB")
        notes = [*place.notes, f"loaded in {took:.0f} s; proxy workers: {options.proxy_workers}"]
    heading = Heading(
        "quick" if options.quick else "full",
        f"{now:%Y-%m-%d %H:%M} UTC",
        commit(),
        machine(),
        rounds,
        scale,
        notes,
    )
    return write(options, heading, experiment, wrong)


def write(options: argparse.Namespace, heading: Heading, experiment: Experiment, wrong: str) -> int:
    """JSON, Markdown and pictures; the exit code."""
    results = experiment.results
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{heading.kind}-{heading.when[:16].replace(' ', '-').replace(':', '')}"
    text = report(heading, results)
    (options.out / f"{name}.md").write_text(text)
    document = {
        "heading": dataclasses.asdict(heading),
        "results": [dataclasses.asdict(each) for each in results],
        "goals": [dataclasses.asdict(each) for each in judge(results)],
    }
    (options.out / f"{name}.json").write_text(json.dumps(document, indent=1))
    with contextlib.suppress(ValueError):
        draw(results, options.out, name)
    print(f"\n{text}\nwritten to {options.out}/{name}.*")
    if wrong:
        print(f"WRONG ANSWERS, nothing here counts: {wrong}", file=sys.stderr)
        return 1
    return 1 if any(each.met is False for each in judge(results)) else 0


if __name__ == "__main__":
    sys.exit(main())

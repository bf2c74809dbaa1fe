"""``python -m demo``: start two replica sets and four services, run an application, verify everything."""

import argparse
import contextlib
import datetime as dt
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pymongo.errors import PyMongoError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from demo.application import Application
from demo.load import load
from demo.orders import Catalogue, Ledger
from demo.verify import Verification
from demo.watch import Latency, Watch, now
from support.binaries import NoMongodError, find_mongod
from support.mongod import ReplicaSet
from support.services import Thermocline
from thermocline_common.durations import parse_duration

MANIFEST = Path(__file__).parent.parent / "docs" / "samples" / "demo.yaml"
MOST_FINDINGS = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="how long the application runs"
    )
    parser.add_argument("--rate", type=float, default=600.0, help="operations a second wanted")
    parser.add_argument("--keep", action="store_true", help="stay up at the end")
    parser.add_argument("--directory", type=Path, help="keep data and logs there")
    return parser.parse_args()


@contextlib.contextmanager
def world(
    directory: Path | None, catalogue: Catalogue
) -> Iterator[tuple[Thermocline, dict[str, Any]]]:
    """The two replica sets, loaded, and the services of the sample manifest, all running."""
    spec = yaml.safe_load(MANIFEST.read_text())["spec"]
    namespace = spec["collections"][0]["namespace"]
    with contextlib.ExitStack() as stack:
        sets = []
        for name in ("archive", "fast"):
            say(f"starting the {name} tier")
            where = directory / name if directory else None
            sets.append(stack.enter_context(ReplicaSet(name, directory=where, cache_gb=0.5)))
        archive, fast = sets
        with archive.client() as client:
            load(client, namespace, catalogue)
        say("starting proxy, feeder, evictor and warmer")
        rest = {
            k: v for k, v in spec.items() if k not in ("archive", "fastTier", "collections", "mode")
        }
        thermocline = Thermocline(
            fast, archive, spec["collections"], spec=rest, directory=directory,
            lease=spec.get("proxy", {}).get("lease", "5s"), evictor=spec["evictor"]["mode"],
            pace="Auto",
        )  # fmt: skip
        yield stack.enter_context(thermocline), spec


def say(text: str) -> None:
    Console().print(f"[bold]{text}[/bold]")


def traffic(watch: Watch, application: Application, seconds: float) -> float:
    """Run the application until the time is over; returns how long it ran."""
    started = time.monotonic()
    application.start()
    watch.latency.start()
    try:
        with Live(refresh_per_second=2, console=Console()) as live:
            while (passed := time.monotonic() - started) < seconds:
                watch.poll()
                left = f"{seconds - passed:.0f} s left"
                live.update(watch.table(application.score.total, passed, left))
                time.sleep(1)
    finally:
        watch.latency.stop()
        application.stop()
    return time.monotonic() - started


def verify(
    thermocline: Thermocline, spec: dict[str, Any], ledger: Ledger, touched: set[int]
) -> Verification:
    """Compare everything with the ledger."""
    policy = spec["collections"][0]
    verification = Verification(policy["namespace"], ledger)
    at = now()
    with thermocline.archive.client() as client:
        verification.archive(client)
    with thermocline.client() as client:
        verification.proxy(client, at)
    with thermocline.fast.client() as client:
        # An order may just have turned too old and wait for its eviction.
        horizon = at - parse_duration(policy["maxAge"]) - dt.timedelta(hours=12)
        held, older = verification.fast(client, horizon, touched)
    say(
        f"the fast tier holds {held:,} orders; {older:,} older ones were touched and await eviction"
    )
    return verification


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        find_mongod()
    except NoMongodError as error:
        Console().print(f"demo: FAIL {error}", highlight=False, soft_wrap=True)
        return 1
    catalogue = Catalogue(options.documents, now())
    try:
        with world(options.directory, catalogue) as (thermocline, spec):
            return run(thermocline, spec, catalogue, options)
    except KeyboardInterrupt:
        Console().print("demo: FAIL interrupted")
        return 1
    except (PyMongoError, OSError, RuntimeError) as error:
        Console().print(f"demo: FAIL {error}", highlight=False, soft_wrap=True)
        return 1


def run(
    thermocline: Thermocline,
    spec: dict[str, Any],
    catalogue: Catalogue,
    options: argparse.Namespace,
) -> int:
    """Traffic, then the verdict; prints the closing table and line, returns the exit code."""
    namespace = spec["collections"][0]["namespace"]
    say("waiting until the orders are tiered")
    thermocline.wait_state("Active", namespace, 120)
    ledger = Ledger(catalogue)
    application = Application(thermocline.uri(), namespace, ledger, options.rate)
    with thermocline.client() as proxy, thermocline.archive.client() as archive:
        latency = Latency(proxy, archive, namespace, catalogue.count)
        watch = Watch(thermocline, namespace, latency)
        passed = traffic(watch, application, options.seconds)
    say("\ntraffic stopped; waiting for the feeder")
    thermocline.wait_applied(60)
    watch.poll()
    final = watch.table(application.score.total, passed, "traffic over")
    percent = watch.fast_percent
    verification = verify(thermocline, spec, ledger, application.touched)
    Console().print(final)
    summary = Table("operation", "count")
    for kind, count in application.score.operations.most_common():
        summary.add_row(kind, f"{count:,}")
    Console().print(summary)
    problems = [
        *(f"failed: {text}" for text in application.score.failed[:MOST_FINDINGS]),
        *(f"wrong answer: {text}" for text in application.score.wrong[:MOST_FINDINGS]),
        *verification.problems[:MOST_FINDINGS],
    ]
    if options.keep:
        Console().print(f"connection string: {thermocline.uri()}  (Ctrl-C ends everything)")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    for problem in problems:
        Console().print(f"  {problem}", highlight=False, soft_wrap=True)
    if problems:
        Console().print(f"demo: FAIL {problems[0]}", highlight=False, soft_wrap=True)
        return 1
    Console().print(
        f"demo: PASS documents={verification.documents} operations={application.score.total} "
        f"fast={percent:.0f}",
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

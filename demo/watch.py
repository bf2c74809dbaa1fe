"""What the live display shows: the services' own statuses, and latencies measured from outside."""

import datetime as dt
import random
import statistics
import threading
import time
from collections import deque
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError
from rich.table import Table

from support.services import Thermocline

SAMPLES = 200
Client = MongoClient[dict[str, Any]]


class Latency:
    """Samples point reads of recent orders through the proxy and on the archive, in turn."""

    def __init__(self, proxy: Client, archive: Client, namespace: str, highest: int) -> None:
        database, collection = namespace.split(".", 1)
        self._sides = {
            name: client[database][collection]
            for name, client in (("proxy", proxy), ("archive", archive))
        }
        self.samples: dict[str, deque[float]] = {n: deque(maxlen=SAMPLES) for n in self._sides}
        self._highest = highest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Start sampling, twenty reads a second on each side."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        dice = random.Random(0)  # noqa: S311
        while not self._stop.wait(0.05):
            number = self._highest - 1 - dice.randrange(max(1, self._highest // 20))
            for name, orders in self._sides.items():
                started = time.perf_counter()
                try:
                    orders.find_one({"_id": number})
                except PyMongoError:
                    continue
                self.samples[name].append((time.perf_counter() - started) * 1_000)

    def text(self, side: str) -> str:
        """Median and 95th percentile, in milliseconds."""
        values = sorted(self.samples[side])
        if len(values) < 20:
            return "-"
        return f"{statistics.median(values):.1f} ms, p95 {values[int(len(values) * 0.95)]:.1f} ms"


def _namespace(status: dict[str, Any], service: str, namespace: str) -> dict[str, Any]:
    found = status.get(service, {}).get("namespaces", {})
    return dict(found.get(namespace, {})) if isinstance(found, dict) else {}


class Watch:
    """Polls the four services' ``/status`` and renders it."""

    def __init__(self, thermocline: Thermocline, namespace: str, latency: Latency) -> None:
        self.thermocline = thermocline
        self.namespace = namespace
        self.latency = latency
        self.status: dict[str, Any] = {}

    def poll(self) -> None:
        """Ask all services."""
        for name, service in self.thermocline.services.items():
            self.status[name] = service.status()

    def of(self, service: str) -> dict[str, Any]:
        """What a service says of the demo's namespace."""
        return _namespace(self.status.get(service, {}), service, self.namespace)

    @property
    def _counts(self) -> dict[str, dict[str, int]]:
        found = self.status.get("proxy", {}).get("proxy", {}).get("routes", {})
        return {tier: dict(found.get(tier, {})) for tier in ("fast", "archive")}

    @property
    def routes(self) -> dict[str, dict[str, int]]:
        """Reads by tier and reason, as the proxy counted them."""
        return {
            tier: {r: n for r, n in reasons.items() if not r.startswith("write-")}
            for tier, reasons in self._counts.items()
        }

    @property
    def promoted(self) -> int:
        """Documents that writes brought into the fast tier."""
        return self._counts["fast"].get("write-promoted", 0)

    @property
    def fast_percent(self) -> float:
        """The share of reads that the fast tier answered."""
        totals = {tier: sum(reasons.values()) for tier, reasons in self.routes.items()}
        everything = sum(totals.values())
        return 100.0 * totals.get("fast", 0) / everything if everything else 0.0

    def table(self, operations: int, seconds: float, left: str) -> Table:
        """The live table."""
        table = Table(
            title=f"Thermocline, {seconds:.0f} s; {left}", show_header=False, min_width=96
        )
        warmer, evictor, feeder = self.of("warmer"), self.of("evictor"), self.of("feeder")
        table.add_row("operations", f"{operations:,} ({operations / max(seconds, 1):,.0f}/s)")
        table.add_row("state", str(feeder.get("state", "-")))
        table.add_row(
            "warm", f"{warmer.get('warmPercent', 0)} %, {warmer.get('copied', 0):,} copied"
        )
        table.add_row("floor", str(warmer.get("floor", "-")))
        table.add_row("feeder lag", f"{feeder.get('lagSeconds', '-')} s")
        table.add_row("promoted", f"{self.promoted:,}")
        table.add_row(
            "evicted",
            f"{evictor.get('evicted', 0):,} of {evictor.get('confirmed', 0):,} confirmed, "
            f"{evictor.get('announced', 0):,} announced",
        )
        table.add_row("reads on the fast tier", f"{self.fast_percent:.1f} %")
        for tier, reasons in sorted(self.routes.items()):
            best = sorted(reasons.items(), key=lambda item: -item[1])[:5]
            table.add_row(f"  {tier}", ", ".join(f"{reason} {count:,}" for reason, count in best))
        table.add_row("read latency, proxy", self.latency.text("proxy"))
        table.add_row("read latency, archive", self.latency.text("archive"))
        return table


def now() -> dt.datetime:
    """The wall clock, which here decides only what is old."""
    return dt.datetime.now(dt.UTC)

"""Counters of the proxy, cheap enough for every command, as Prometheus metrics and for ``/status``."""

import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from thermocline_common.coverage import Tier
from thermocline_proxy.choosing import Choice
from thermocline_proxy.commands.catalog import CATALOG

_UNKNOWN = "?"
_MOST_READS = 1_000

BOUNDS = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Seconds."""
_PRESSURE: Mapping[str, tuple[str, str, type[GaugeMetricFamily] | type[CounterMetricFamily]]] = {
    "windowUsed": (
        "oplog_window_used",
        "Share of the fast tier's oplog that replay has still to read.",
        GaugeMetricFamily,
    ),
    "delaySeconds": ("write_delay_seconds", "What a small write waits now.", GaugeMetricFamily),
    "waiting": ("writes_waiting", "Writes that wait for replay now.", GaugeMetricFamily),
    "slowedTotal": ("writes_slowed", "Writes that waited for replay.", CounterMetricFamily),
    "slowedSecondsTotal": (
        "writes_slowed_seconds",
        "What writes waited for replay, in all.",
        CounterMetricFamily,
    ),
    "refusedTotal": (
        "writes_refused",
        "Writes refused because the oplog was nearly used up.",
        CounterMetricFamily,
    ),
}
"""Fields of ``BackPressure.status`` as metrics."""


class Latency:
    """A histogram of the seconds that a tier's answers took; ``relayed``: those of the short path."""

    __slots__ = ("counts", "relayed", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.relayed = 0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """An upper bound of the quantile in seconds; None of nothing."""
        wanted = self.count * share
        seen = 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return None

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: bound and how many were at or below it."""
        found = []
        seen = 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            seen += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(seen)))
        return found

    def milliseconds(self, share: float) -> float | None:
        """:meth:`quantile` for people; None where there is none, or it is beyond the last bound."""
        at = self.quantile(share)
        return None if at is None or at == float("inf") else round(at * 1000, 3)


class Uncounted(Latency):
    """Counts nothing."""

    __slots__ = ()

    def add(self, seconds: float) -> None:
        """Nothing happens."""


def read_shares(reads: Mapping[tuple[Tier, Choice], Latency]) -> list[dict[str, Any]]:
    """For ``/status``: who answers reads. ``share``: of all reads of the tier, 0 to 1. Pure."""
    totals: dict[Tier, int] = {}
    for (tier, _), latency in reads.items():
        totals[tier] = totals.get(tier, 0) + latency.count
    return [
        {
            "tier": tier.value,
            "member": choice.address,
            "preference": choice.mode,
            "reason": choice.why.value,
            "count": latency.count,
            "share": round(latency.count / totals[tier], 4) if totals[tier] else 0.0,
            "p50Ms": latency.milliseconds(0.5),
            "p99Ms": latency.milliseconds(0.99),
        }
        for (tier, choice), latency in sorted(
            reads.items(), key=lambda item: (item[0][0].value, item[0][1].address, item[0][1].mode)
        )
    ]


class Counter:
    """How often a command came."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class CollectionReads:
    """Who answered the reads of one tiered collection. ``archive``: by the reason for asking it."""

    __slots__ = ("archive", "fast")

    def __init__(self) -> None:
        self.fast = Counter()
        self.archive: dict[str, int] = {}

    def status(self) -> dict[str, Any]:
        """For ``/status``."""
        return {"fast": self.fast.n, "archive": dict(sorted(self.archive.items()))}


class Observer(Collector):
    """What the proxy counts. Routes: (reason, tier) -> how many commands took them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connections = 0
        self.accepted = 0
        self.active: Callable[[], int] = lambda: 0
        """How many connections have a command in hand."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.commands = {name: Counter() for name in (*CATALOG, _UNKNOWN)}
        self.routes: dict[tuple[str, str], int] = {}
        self.errors: dict[str, int] = {}
        self.latency = {Tier.FAST: Latency(), Tier.ARCHIVE: Latency()}
        self.reads: dict[tuple[Tier, Choice], Latency] = {}
        """How long the reads took that each member answered, by read preference and why it was chosen."""
        self.collections: dict[str, CollectionReads] = {}
        """Reads of tiered collections."""
        self.schema_changes: dict[Hashable, dict[str, Any]] = {}
        """Commands that wait for, or run in, ``Passthrough``: command, namespaces, phase, since."""
        self.ended: dict[str, int] = {}
        """What vanished applications had left open, by kind."""
        self.lease_age: Callable[[], float] = lambda: float("inf")
        self.upstream: Callable[[], dict[tuple[str, str], int]] = dict
        self.pressure: Callable[[], dict[str, Any]] = dict
        """What writers wait for: :meth:`BackPressure.status`."""
        registry.register(self)

    def count(self, reason: str, tier: str) -> None:
        """One command took a route."""
        key = (reason, tier)
        self.routes[key] = self.routes.get(key, 0) + 1

    def read(self, tier: Tier, choice: Choice) -> Latency:
        """Where to count the reads that a member answers."""
        found = self.reads.get((tier, choice))
        if found is None:
            if len(self.reads) >= _MOST_READS:  # members came and went
                self.reads.clear()
            found = self.reads[tier, choice] = Latency()
        return found

    def collection(self, namespace: str) -> CollectionReads:
        """Where to count the reads of a tiered collection."""
        found = self.collections.get(namespace)
        if found is None:
            if len(self.collections) >= _MOST_READS:  # collections came and went
                self.collections.clear()
            found = self.collections[namespace] = CollectionReads()
        return found

    def answered(self, namespaces: Iterable[str], tier: Tier, reason: str) -> None:
        """A read of these tiered collections got its answer from ``tier``, for this reason."""
        for namespace in namespaces:
            reads = self.collection(namespace)
            if tier is Tier.FAST:
                reads.fast.n += 1
            else:
                reads.archive[reason] = reads.archive.get(reason, 0) + 1

    def command(self, name: str) -> None:
        """A command came on the long path."""
        (self.commands.get(name) or self.commands[_UNKNOWN]).n += 1

    def error(self, code_name: str) -> None:
        """The proxy itself answered with an error."""
        self.errors[code_name] = self.errors.get(code_name, 0) + 1

    def left(self, kind: str) -> None:
        """A cursor or transaction of a vanished application was ended."""
        self.ended[kind] = self.ended.get(kind, 0) + 1

    def all_routes(self) -> dict[tuple[str, str], int]:
        """Routes, with those of the short path."""
        found = dict(self.routes)
        for reason, tier in (("untiered", Tier.ARCHIVE), ("point-id", Tier.FAST)):
            if relayed := self.latency[tier].relayed:
                key = (reason, tier.value)
                found[key] = found.get(key, 0) + relayed
        return found

    def status(self) -> dict[str, Any]:
        """For ``/status``."""
        routes: dict[str, dict[str, int]] = {}
        for (reason, tier), count in sorted(self.all_routes().items()):
            routes.setdefault(tier, {})[reason] = count
        age = self.lease_age()
        return {
            "connections": self.connections,
            "accepted": self.accepted,
            "routes": routes,
            "errors": dict(sorted(self.errors.items())),
            "endedForVanished": dict(sorted(self.ended.items())),
            "upstreamConnections": {
                f"{tier}/{member}": count
                for (tier, member), count in sorted(self.upstream().items())
            },
            "latencyMs": {
                tier.value: {
                    "p50": latency.milliseconds(0.5),
                    "p99": latency.milliseconds(0.99),
                }
                for tier, latency in self.latency.items()
            },
            "reads": read_shares(self.reads),
            "namespaces": {
                name: reads.status() for name, reads in sorted(self.collections.items())
            },
            "schemaChanges": [
                {
                    "command": change["command"],
                    "namespaces": sorted(change["namespaces"]),
                    "phase": change["phase"],
                    "seconds": round(time.monotonic() - change["since"], 1),
                }
                for change in self.schema_changes.values()
            ],
            "writePressure": self.pressure(),
            "leaseAgeSeconds": None if age == float("inf") else round(age, 3),
        }

    def collect(self) -> Iterator[Metric]:
        """Prometheus' callback."""
        yield GaugeMetricFamily(
            "thermocline_proxy_connections", "Client connections now.", value=self.connections
        )
        yield CounterMetricFamily(
            "thermocline_proxy_accepted", "Client connections ever.", value=self.accepted
        )
        routes = CounterMetricFamily(
            "thermocline_proxy_routes", "Commands by route and reason.", labels=["reason", "tier"]
        )
        for labels, count in self.all_routes().items():
            routes.add_metric(labels, count)
        yield routes
        errors = CounterMetricFamily(
            "thermocline_proxy_errors", "Errors that the proxy itself answered.", labels=["code"]
        )
        for code_name, count in self.errors.items():
            errors.add_metric([code_name], count)
        yield errors
        ended = CounterMetricFamily(
            "thermocline_proxy_ended_for_vanished",
            "Cursors and transactions that vanished applications had left open.",
            labels=["kind"],
        )
        for kind, count in self.ended.items():
            ended.add_metric([kind], count)
        yield ended
        upstream = GaugeMetricFamily(
            "thermocline_proxy_upstream_connections",
            "Connections to members.",
            labels=["tier", "member"],
        )
        for labels, count in self.upstream().items():
            upstream.add_metric(labels, count)
        yield upstream
        latency = HistogramMetricFamily(
            "thermocline_proxy_upstream_seconds",
            "Time from sending a command to its whole reply.",
            labels=["tier"],
        )
        for tier, histogram in self.latency.items():
            latency.add_metric([tier.value], histogram.buckets(), histogram.total)
        yield latency
        reads = HistogramMetricFamily(
            "thermocline_proxy_read_seconds",
            "Time of reads, by the member that answered, the read preference and why it chose the member.",
            labels=["tier", "member", "preference", "reason"],
        )
        for (tier, choice), histogram in self.reads.items():
            why = (choice.mode, choice.why.value)
            reads.add_metric(
                (tier.value, choice.address, *why), histogram.buckets(), histogram.total
            )
        yield reads
        pressure = self.pressure()
        for field, (name, text, family) in _PRESSURE.items():
            value = pressure.get(field)
            if value is not None:
                yield family(f"thermocline_proxy_{name}", text, value=value)
        yield GaugeMetricFamily(
            "thermocline_proxy_lease_age_seconds",
            "Age of the coverage lease in use.",
            value=self.lease_age(),
        )

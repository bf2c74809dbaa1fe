"""The evictor's metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from thermocline_evictor.tools import Report

_COUNTERS = {
    "announced": "Documents announced to leave the fast tier.",
    "confirmed": "Documents found byte-equal in both tiers and evicted.",
    "deleted": "Documents evicted from the fast tier.",
    "expired": "Documents that a TTL index of the archive removed from the fast tier.",
    "raised": "Raises of the floor.",
    "killed_cursors": "Cursors killed because they held up eviction.",
}


class EvictorMetrics:
    """Counters and gauges by namespace."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            name: Counter(f"thermocline_evictor_{name}", text, ["namespace"], registry=registry)
            for name, text in _COUNTERS.items()
        }
        self._skipped = Counter(
            "thermocline_evictor_skipped",
            "Candidates that weren't evicted.",
            ["namespace", "reason"],
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"thermocline_evictor_{name}", text, ["namespace"], registry=registry)
            for name, text in {
                "pending": "Announced documents that haven't left yet.",
                "mismatches": "Documents that differ between the tiers.",
                "would_evict": "Documents that eviction would remove (DryRun).",
                "floor_timestamp_seconds": "The floor; 0 where nothing is covered.",
                "oldest_resident_timestamp_seconds": "The oldest date in the fast tier; 0: none.",
            }.items()
        }
        self._seen: dict[tuple[str, str], int] = {}

    def show(self, namespace: str, report: Report) -> None:
        """Bring all metrics of a namespace up to date."""
        for name, value in report.ledger.numbers().items():
            self._counters[name].labels(namespace).inc(self._more(namespace, name, value))
        for reason, value in report.ledger.skipped.items():
            more = self._more(namespace, f"skipped {reason}", value)
            self._skipped.labels(namespace, reason).inc(more)
        floor = report.floor.timestamp() if report.floor else 0
        for name, number in {
            "pending": report.pending,
            "mismatches": len(report.mismatches),
            "would_evict": report.would_evict or 0,
            "floor_timestamp_seconds": floor,
            "oldest_resident_timestamp_seconds": (report.oldest_resident or 0) / 1_000,
        }.items():
            self._gauges[name].labels(namespace).set(number)

    def _more(self, namespace: str, name: str, value: int) -> int:
        before = self._seen.get((namespace, name), 0)
        self._seen[namespace, name] = value
        return max(0, value - before)

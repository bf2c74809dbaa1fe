"""The feeder's metrics, read from the running parts when they are scraped."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from thermocline_common.coverage import State


class Metrics:
    """Registers gauges; each is a function of the present state."""

    def __init__(self, registry: CollectorRegistry, service: object) -> None:
        self._service = service
        self._registry = registry
        self._gauge("owner", "1 while this process owns replay.", lambda s: float(s.owning))
        self._gauge(
            "oplog_window_used",
            "Share of the fast tier's oplog that is still to be replayed.",
            lambda s: float(s.window_used),
        )
        self._part(
            "lag_seconds",
            "Age of the oldest change that isn't applied yet.",
            lambda p: p.replay.lag,
        )
        self._part(
            "backlog", "Changes read and not yet taken up.", lambda p: float(p.replay.backlog)
        )
        self._part(
            "documents_total",
            "Documents written to the archive.",
            lambda p: float(p.replay.figures.documents),
        )
        self._part(
            "events_total",
            "Events read from the fast tier.",
            lambda p: float(p.replay.figures.events),
        )
        self._part(
            "bytes_total", "Bytes of documents written.", lambda p: float(p.replay.figures.bytes)
        )
        self._part(
            "batches_total",
            "Transactions on the archive.",
            lambda p: float(p.replay.figures.batches),
        )
        self._part(
            "read_later_total",
            "Batches read later than their last event.",
            lambda p: float(p.replay.figures.read_later),
        )
        self._part(
            "quarantined",
            "Documents that the archive refuses.",
            lambda p: float(len(p.applier.quarantine)),
        )
        self._part(
            "foreign_writes_total",
            "Writes to active namespaces on the archive that aren't ours.",
            lambda p: float(sum(p.foreign.counts.values())),
        )
        self._part(
            "removal_records",
            "Removal records at the last scan.",
            lambda p: float(p.collector.records),
        )
        self._part(
            "checkpoint_seconds",
            "The checkpoint's time of the fast tier.",
            lambda p: float(p.replay.time.time) if p.replay.time else 0.0,
        )
        states = Gauge(
            "thermocline_feeder_namespaces", "Namespaces by state.", ["state"], registry=registry
        )
        for state in State:
            states.labels(state.value).set_function(partial(self._in_state, state))

    def _in_state(self, state: State) -> float:
        parts = getattr(self._service, "parts", None)
        if parts is None:
            return 0.0
        return float(sum(1 for c in parts.states.coverages.values() if c.state is state))

    def _gauge(self, name: str, text: str, read: Callable[..., float]) -> None:
        gauge = Gauge(f"thermocline_feeder_{name}", text, registry=self._registry)
        gauge.set_function(lambda: read(self._service))

    def _part(self, name: str, text: str, read: Callable[..., float]) -> None:
        def value(service: object) -> float:
            parts = getattr(service, "parts", None)
            return 0.0 if parts is None else read(parts)

        self._gauge(name, text, value)

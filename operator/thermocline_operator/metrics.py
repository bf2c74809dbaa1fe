"""The operator's metrics."""

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from thermocline_common.clock import monotonic
from thermocline_operator.api import Call
from thermocline_operator.workqueue import Again, Key, Turn, WorkQueue


class Metrics:
    """What Prometheus sees of the operator itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queue: WorkQueue | None = None
        self._calls = Counter(
            "thermocline_operator_api_calls",
            "Calls of the API server.",
            ["verb", "resource"],
            registry=registry,
        )
        self._turns = Histogram(
            "thermocline_operator_turn_seconds",
            "How long the turns for one resource take.",
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30),
            registry=registry,
        )
        self._failures = Counter(
            "thermocline_operator_turn_failures", "Turns that failed.", registry=registry
        )
        resources = Gauge(
            "thermocline_operator_resources", "Resources that are worked on.", registry=registry
        )
        resources.set_function(lambda: 0 if self.queue is None else len(self.queue.keys))

    def called(self, call: Call) -> None:
        """A call was made."""
        self._calls.labels(call.verb, call.resource).inc()

    def timed(self, turn: Turn) -> Callable[[Key, bool], Awaitable[Again | None]]:
        """``turn``, measured."""

        async def measured(key: Key, news: bool) -> Again | None:
            began = monotonic()
            try:
                return await turn(key, news)
            except Exception:
                self._failures.inc()
                raise
            finally:
                self._turns.observe(monotonic() - began)

        return measured

"""Metrics that every service has. Names begin with ``thermocline_``; each service adds its own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, Info

from thermocline_common import __version__
from thermocline_common.coverage import Tier


class CommonMetrics:
    """Gauges that the runtime keeps for all services."""

    def __init__(
        self, registry: CollectorRegistry, service: str, heartbeat_age: Callable[[], float]
    ) -> None:
        Info("thermocline_service", "The running service.", registry=registry).info(
            {"service": service, "version": __version__}
        )
        Gauge(
            "thermocline_heartbeat_age_seconds",
            "Seconds since the work loop last turned.",
            registry=registry,
        ).set_function(heartbeat_age)
        self.problems = Gauge(
            "thermocline_problems", "Things that are wrong now.", registry=registry
        )
        self.generation = Gauge(
            "thermocline_applied_generation",
            "metadata.generation of the manifest in force.",
            registry=registry,
        )
        self._reachable = Gauge(
            "thermocline_tier_reachable",
            "1 where the tier's primary answers this service.",
            ["tier"],
            registry=registry,
        )

    def reachable(self, tier: Tier, *, yes: bool) -> None:
        """Whether the tier's primary answered just now."""
        self._reachable.labels(tier.value).set(int(yes))

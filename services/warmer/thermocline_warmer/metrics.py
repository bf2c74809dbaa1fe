"""The warmer's metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class WarmerMetrics:
    """Counters and gauges by namespace."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.copied = Counter(
            "thermocline_warmer_documents_copied",
            "Documents copied into the fast tier.",
            ["namespace"],
            registry=registry,
        )
        self.checked = Counter(
            "thermocline_warmer_documents_checked",
            "Documents looked at, copied or there already.",
            ["namespace"],
            registry=registry,
        )
        self.lost = Counter(
            "thermocline_warmer_claims_lost",
            "Slices that were done for nothing, because a floor was raised meanwhile.",
            ["namespace"],
            registry=registry,
        )
        self.warm = Gauge(
            "thermocline_warmer_warm_ratio",
            "Share of the policy that is warm.",
            ["namespace"],
            registry=registry,
        )
        self.floor = Gauge(
            "thermocline_warmer_floor_timestamp_seconds",
            "The floor; 0 where nothing is covered.",
            ["namespace"],
            registry=registry,
        )
        self.parity = Gauge(
            "thermocline_warmer_parity_differences",
            "Indexes and options in which the tiers differ.",
            ["namespace"],
            registry=registry,
        )
        self.not_dates = Gauge(
            "thermocline_warmer_ages_not_dates_ratio",
            "Share of the archive's documents whose age isn't a date, by a sample.",
            ["namespace"],
            registry=registry,
        )
        self.accounts = Counter(
            "thermocline_warmer_account_changes",
            "Users and roles written to or removed from the fast tier.",
            ["kind"],
            registry=registry,
        )

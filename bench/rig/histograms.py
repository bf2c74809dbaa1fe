"""Latencies as HDR histograms: microseconds from 1 to 10 minutes, three digits."""

from collections.abc import Iterable
from typing import Final

from hdrh.histogram import HdrHistogram

LOWEST: Final = 1
HIGHEST: Final = 600_000_000
DIGITS: Final = 3
CURVE: Final = (0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.9, 99.95, 99.99, 100)


class Histogram:
    """Seconds go in, milliseconds come out."""

    def __init__(self) -> None:
        self._of = HdrHistogram(LOWEST, HIGHEST, DIGITS)

    def record(self, seconds: float) -> None:
        """One latency."""
        self._of.record_value(min(HIGHEST, max(LOWEST, round(seconds * 1e6))))

    def encode(self) -> bytes:
        """For another process."""
        return bytes(self._of.encode())

    @classmethod
    def merged(cls, encoded: Iterable[bytes]) -> "Histogram":
        """Of several processes."""
        whole = cls()
        for each in encoded:
            whole._of.decode_and_add(each)
        return whole

    @property
    def count(self) -> int:
        """How many."""
        return int(self._of.get_total_count())

    def at(self, percent: float) -> float:
        """Milliseconds at a percentile; 0 where nothing was recorded."""
        return float(self._of.get_value_at_percentile(percent)) / 1e3 if self.count else 0.0

    def curve(self) -> list[tuple[float, float]]:
        """Percentiles and milliseconds."""
        return [(percent, self.at(percent)) for percent in CURVE] if self.count else []

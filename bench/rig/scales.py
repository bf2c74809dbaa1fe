"""The published setting at about a tenth: how much data, memory and disk, for both kinds of run."""

from dataclasses import dataclass
from typing import Final

MB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one run; bytes in MB of 2**20."""

    documents: int
    """How many are loaded."""
    filler: int
    """Bytes of each that don't compress; a document is about 230 bytes larger."""
    cache_mb: int
    """WiredTiger's cache of the archive."""
    memory_mb: int
    """All that the archive may hold: process, cache and the kernel's copies of its files. The process itself takes
    some 130; what is left for data is 0.05 to 0.06 of it, as published (2.5 GB for 47): less than its newest 9 %."""
    iops: int
    """Disk reads of the archive, a second."""
    fast_cache_mb: int
    """WiredTiger's cache of the fast tier."""
    fast_memory_mb: int
    """All that the fast tier may hold."""
    connections: int
    """Of the generator, all processes together."""
    max_age: str = "34d"
    """The policy: a little more than the newest 9 % of a year."""

    @property
    def data_mb(self) -> int:
        """What the documents come to."""
        return self.documents * (self.filler + 230) // MB

    @property
    def data_to_cache(self) -> float:
        """How many times its cache the archive's data is (published: 47)."""
        return self.data_mb / self.cache_mb

    @property
    def disk_needed_mb(self) -> int:
        """Free space that a run asks for: data, the fast tier, both oplogs, journals, old versions."""
        return int(self.data_mb * 1.8) + 4_000


QUICK: Final = Scale(
    documents=600_000,
    filler=950,
    cache_mb=24,
    memory_mb=180,
    iops=300,
    fast_cache_mb=256,
    fast_memory_mb=700,
    connections=64,
)
FULL: Final = Scale(
    documents=5_000_000,
    filler=950,
    cache_mb=128,
    memory_mb=450,
    iops=300,
    fast_cache_mb=640,
    fast_memory_mb=1_400,
    connections=64,
)

"""The published workloads, as data."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from rig.keys import Choice, Concentrated, Newest, Uniform


class Kind(StrEnum):
    """Kinds of operations."""

    READ = "read"
    UPDATE = "update"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class Workload:
    """Shares of the kinds (they add up to 1), and how keys of reads and updates are chosen."""

    name: str
    reads: float
    updates: float
    inserts: float
    keys: Choice

    def kind(self, dice: random.Random) -> Kind:
        """The next operation's kind."""
        at = dice.random()
        if at < self.reads:
            return Kind.READ
        return Kind.UPDATE if at < self.reads + self.updates else Kind.INSERT


HOT_SHARE: Final = 0.09
CONCENTRATED: Final = Workload("concentrated", 0.95, 0.05, 0.0, Concentrated(HOT_SHARE, 0.99))
SHOP: Final = Workload("shop", 0.85, 0.10, 0.05, Newest())
READ_ONLY: Final = Workload("read-only", 1.0, 0.0, 0.0, Newest())
WRITE_HEAVY: Final = Workload("write-heavy", 0.50, 0.40, 0.10, Newest())
UNIFORM: Final = Workload("uniform", 0.95, 0.05, 0.0, Uniform())

_HOT, _COLD = Concentrated(HOT_SHARE, 1.0), Concentrated(HOT_SHARE, 0.0)
ONE_KIND: Final = (
    Workload("hot reads", 1.0, 0.0, 0.0, _HOT),
    Workload("cold reads", 1.0, 0.0, 0.0, _COLD),
    Workload("hot updates", 0.0, 1.0, 0.0, _HOT),
    Workload("cold updates", 0.0, 1.0, 0.0, _COLD),
    Workload("inserts", 0.0, 0.0, 1.0, _HOT),
)
"""What each kind of operation costs."""

WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {each.name: each for each in (CONCENTRATED, SHOP, READ_ONLY, WRITE_HEAVY, UNIFORM, *ONE_KIND)}
)

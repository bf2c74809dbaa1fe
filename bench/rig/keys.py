"""Which document an operation wants: choices of a number below ``top``, from dice of a known seed."""

import random
from dataclasses import dataclass
from typing import Protocol


class Choice(Protocol):
    """How keys are chosen."""

    def pick(self, dice: random.Random, top: int) -> int:
        """A number from 0 up to, not including, ``top`` (at least 1); the highest is the newest."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every document alike."""

    def pick(self, dice: random.Random, top: int) -> int:
        """See :class:`Choice`."""
        return int(dice.random() * top)


@dataclass(frozen=True, slots=True)
class Concentrated:
    """A share ``part`` of the operations on the newest ``share`` of the documents, the rest on all others."""

    share: float
    part: float

    def pick(self, dice: random.Random, top: int) -> int:
        """See :class:`Choice`."""
        hot = max(1, int(top * self.share))
        if hot >= top or dice.random() < self.part:
            return top - 1 - int(dice.random() * hot)
        return int(dice.random() * (top - hot))


@dataclass(frozen=True, slots=True)
class Newest:
    """Newest preferred: Zipf over the rank from the newest one, with ``skew`` (YCSB's `latest` has 0.99).

    The continuous form of its inverse, so that no sum over all documents is needed.
    """

    skew: float = 0.99

    def pick(self, dice: random.Random, top: int) -> int:
        """See :class:`Choice`."""
        bend = 1.0 - self.skew
        rank = (dice.random() * ((top + 1.0) ** bend - 1.0) + 1.0) ** (1.0 / bend)
        return max(0, top - max(1, int(rank)))

"""What to have the archive read before replay writes it, so that its disk reads side by side, not one by one. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from thermocline_common.ids import DocId
from thermocline_feeder.plan.verdicts import Verdict

LANES: Final = 8
"""Reads of the archive at a time: enough to keep a disk busy, few beside an application's."""
SLOW_SECONDS: Final = 0.0005
"""A document that takes the archive longer came from its disk: from memory it takes a tenth of that."""
FIXED_SECONDS: Final = 0.01
"""What the commands of a batch of any size take: round trips and the journal, which say nothing about a document. Where
twenty documents are replayed at a time, they alone came to more than reading those from a disk."""
LEAST: Final = 4
"""Documents that are worth it."""
LEAST_SECONDS: Final = 1e-6
RECENT_WEIGHT: Final = 0.3


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of the archive's time that a document takes lately, reading ahead included; 0: not known."""

    seconds: float = 0.0

    def saw(self, documents: int, reading: float, writing: float) -> "Cost":
        """With one more batch, whose reads ran in lanes."""
        if not documents:
            return self
        reading, writing = (max(0.0, seconds - FIXED_SECONDS) for seconds in (reading, writing))
        taken = max(LEAST_SECONDS, (reading * LANES + writing) / documents)
        if not self.seconds:
            return Cost(taken)
        return Cost(self.seconds + RECENT_WEIGHT * (taken - self.seconds))

    @property
    def reads_disk(self) -> bool:
        """Whether the archive has to read its disk for what replay writes; so where nothing is known yet."""
        return not self.seconds or self.seconds > SLOW_SECONDS


def lanes(verdicts: Sequence[Verdict], cost: Cost) -> list[Mapping[str, list[DocId]]]:
    """The documents to read, for as many readers; none where that would only cost time.

    New documents too: their ``_id`` is looked up in its index, which may be on the disk as well.
    """
    if not cost.reads_disk or len(verdicts) < LEAST:
        return []
    result: list[Mapping[str, list[DocId]]] = []
    for start in range(min(LANES, len(verdicts))):
        lane: dict[str, list[DocId]] = {}
        for verdict in verdicts[start::LANES]:
            lane.setdefault(verdict.namespace, []).append(verdict.id)
        result.append(lane)
    return result

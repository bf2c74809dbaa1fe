"""Differences between the tiers: suspicions first, mismatches once they stay."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from bson.timestamp import Timestamp

from thermocline_common.ids import DocId
from thermocline_evictor.plan.verdicts import SUSPECT, Verdict, digest

MOST: Final = 1_000
"""More suspicions than this aren't followed at once: any one that stays stops eviction anyway."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """``looks`` that found the same content in F differ from the archive's, each at a later checkpoint."""

    checkpoint: Timestamp
    content: bytes
    looks: int = 1


@dataclass(frozen=True, slots=True)
class Mismatches:
    """What is suspected of one namespace. ``needed``: looks that make a suspicion a mismatch."""

    needed: int
    suspicions: Mapping[DocId, Suspicion] = field(default_factory=dict)

    def look(
        self,
        verdicts: Mapping[DocId, Verdict],
        fast: Mapping[DocId, bytes],
        checkpoint: Timestamp,
    ) -> "Mismatches":
        """After a look at one checkpoint; what isn't in ``verdicts`` stays as it is."""
        now = dict(self.suspicions)
        for doc_id, verdict in verdicts.items():
            before = now.get(doc_id)
            if verdict not in SUSPECT:
                now.pop(doc_id, None)
                continue
            content = digest(fast[doc_id])
            if before is None or before.content != content:
                if before is not None or len(now) < MOST:
                    now[doc_id] = Suspicion(checkpoint, content)
            elif checkpoint > before.checkpoint:
                now[doc_id] = Suspicion(checkpoint, content, before.looks + 1)
        return replace(self, suspicions=now)

    def forget(self, ids: Iterable[DocId]) -> "Mismatches":
        """Without these."""
        gone = set(ids)
        return replace(self, suspicions={i: s for i, s in self.suspicions.items() if i not in gone})

    @property
    def confirmed(self) -> list[DocId]:
        """The mismatches."""
        return [i for i, s in self.suspicions.items() if s.looks >= self.needed]

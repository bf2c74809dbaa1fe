"""Of which types a collection's ages are: everything but a single date stays in the fast tier for good."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SAMPLE: Final = 200
"""Enough for a percentage, and each may be a read of the archive's disk."""
DATE: Final = "date"


@dataclass(frozen=True, slots=True)
class AgeTypes:
    """Documents of a sample by their age's type, as ``$type`` names it (``missing``; ``array`` counts as
    no date, whatever it holds)."""

    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def sampled(self) -> int:
        """How many documents were looked at; all, where the collection has no more."""
        return sum(self.counts.values())

    @property
    def not_dates(self) -> float | None:
        """The share of ages that aren't a single date, from 0 to 1; None without documents."""
        if not self.sampled:
            return None
        return 1 - self.counts.get(DATE, 0) / self.sampled

    def status(self) -> dict[str, Any]:
        """For ``/status``: percent, by type those that aren't dates."""
        share = self.not_dates
        others = {name: n for name, n in sorted(self.counts.items()) if name != DATE}
        return {
            "notDatePercent": None if share is None else round(100 * share, 1),
            "byType": {name: round(100 * n / self.sampled, 1) for name, n in others.items()},
            "sampled": self.sampled,
        }


def group_by_type(path: str) -> list[dict[str, Any]]:
    """A pipeline that counts documents by the type of ``path``."""
    return [{"$sortByCount": {"$type": f"${path}"}}]


def add_groups(types: AgeTypes, groups: Iterable[Mapping[str, Any]]) -> AgeTypes:
    """With what :func:`group_by_type` answers about some more documents."""
    counts = dict(types.counts)
    for group in groups:
        name = str(group["_id"])
        counts[name] = counts.get(name, 0) + int(group["count"])
    return AgeTypes(counts)

"""Counts of what was done; ``deleted`` equals ``confirmed`` unless something is wrong."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Since the process started, for one namespace.

    ``confirmed``: found byte-equal in both tiers at the checkpoint in a transaction that committed;
    ``deleted``: counted on its own, from the records that the transaction left.
    """

    announced: int = 0
    confirmed: int = 0
    deleted: int = 0
    expired: int = 0
    raised: int = 0
    killed_cursors: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def skip(self, reasons: Iterable[str]) -> None:
        """Count candidates that weren't evicted, by reason."""
        self.skipped.update(reasons)

    def numbers(self) -> Mapping[str, int]:
        """Everything but the reasons."""
        return {
            "announced": self.announced,
            "confirmed": self.confirmed,
            "deleted": self.deleted,
            "expired": self.expired,
            "raised": self.raised,
            "killed_cursors": self.killed_cursors,
        }

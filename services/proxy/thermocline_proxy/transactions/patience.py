"""How long transactions are repeated for a namespace that isn't where the manifest wants it. Pure.

A switch takes seconds; one that something holds up (an index that is missing, say) may never come. Drivers
repeat for minutes, and then show their last conflict, which tells nobody why.
"""

from collections.abc import Iterable
from typing import Final

LONGEST_SECONDS: Final = 60.0
_GAP_SECONDS: Final = 10.0
"""Nobody asked for so long: what is asked for now is another switch."""
_MOST: Final = 10_000


class Patience:
    """For each namespace, when transactions began to wait for it, and when one last did."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[float, float]] = {}

    def lasts(self, namespaces: Iterable[str], now: float) -> bool:
        """Whether to repeat once more for these; ``now``: monotonic seconds."""
        if len(self._waits) > _MOST:
            self._waits = {n: w for n, w in self._waits.items() if now - w[1] <= _GAP_SECONDS}
        lasting = True
        for namespace in namespaces:
            first, last = self._waits.get(namespace, (now, now))
            if now - last > _GAP_SECONDS:
                first = now
            self._waits[namespace] = (first, now)
            lasting = lasting and now - first <= LONGEST_SECONDS
        return lasting

"""How long a proxy may rest on what it read, and how long whoever changes that must wait. Pure.

Every service follows a manifest of its own, and they don't change at one moment. So the manifest's
``proxy.lease`` is only a wish; what counts is in the archive's checkpoint document, where the feeder
publishes it and where proxies look with every lease.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.int64 import Int64

LEASE_MARGIN: Final = 1.1
"""Two machines' monotonic clocks don't run at quite the same speed."""


@dataclass(frozen=True, slots=True)
class Lease:
    """As published, in milliseconds.

    ``longest``: what a proxy may use at most. ``wait``: what a waiter that reads this *after* its change
    must wait, to have outlived every proxy that didn't see the change. ``wait`` is never below ``longest``.
    """

    longest: int
    wait: int

    @property
    def seconds(self) -> float:
        """The longest lease that a proxy may use."""
        return self.longest / 1_000

    @property
    def wait_seconds(self) -> float:
        """How long a waiter waits, by the clocks of proxies: :data:`LEASE_MARGIN` comes on top."""
        return self.wait / 1_000

    def document(self) -> dict[str, Any]:
        """As stored."""
        return {"longest": Int64(self.longest), "wait": Int64(self.wait)}

    def towards(self, wanted: int) -> "Lease":
        """What to publish now for a wish of ``wanted`` ms: proxies follow at once, waiters only upwards."""
        return Lease(wanted, max(self.wait, wanted))

    def settled(self) -> "Lease":
        """What to publish once ``wait`` was waited out: no longer lease than ``longest`` is left."""
        return Lease(self.longest, self.longest)


UNPUBLISHED: Final = Lease(1_000, 1_000)
"""Holds where nothing is published yet, for proxies and waiters alike."""


def published(checkpoint: Mapping[str, Any] | None) -> Lease:
    """From the decoded checkpoint document (None: there is none). Raises ``ValueError`` on a bad one."""
    found = None if checkpoint is None else checkpoint.get("lease")
    if found is None:
        return UNPUBLISHED
    lease = Lease(int(found["longest"]), int(found["wait"]))
    if not 0 < lease.longest <= lease.wait:
        raise ValueError(f"the published lease makes no sense: {lease}")
    return lease


def usable(wanted_seconds: float, checkpoint: Mapping[str, Any] | None) -> float:
    """The lease of a proxy whose manifest says ``wanted_seconds``. Raises as :func:`published`."""
    return min(wanted_seconds, published(checkpoint).seconds)

"""What one decision may rest on: an immutable view of policies, coverage and states, with its lease."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State


@dataclass(frozen=True, slots=True)
class Tiering:
    """One namespace that is tiered: its coverage document and the proxy's own options for it."""

    coverage: Coverage
    relaxed: bool = False
    """``archiveReads: Relaxed``: archive reads skip the barrier."""
    quarantined: bool = False
    """The archive couldn't take some document of the namespace (the checkpoint lists which)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Read once, used for one decision, replaced atomically.

    ``expires``: monotonic seconds at which the lease of ``tierings`` ends (measured from before
    the request that read it). ``untiered_expires``: the same for ``listed``, the archive's own
    list, under which statements on untiered namespaces are sent. A namespace in ``listed`` without
    a coverage document is unknown: wait, never "untiered". ``views``: view -> every namespace that
    it reads, resolved down to collections, for databases with a listed namespace.
    """

    expires: float
    untiered_expires: float
    tierings: Mapping[str, Tiering] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    views: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fast_time: Timestamp | None = None
    archive_only: bool = False

    def tiering(self, namespace: str) -> Tiering | None:
        """The tiering of a namespace that isn't in state ``Passthrough``."""
        found = self.tierings.get(namespace)
        return None if found is None or found.coverage.state is State.PASSTHROUGH else found

    def sources(self, namespace: str) -> frozenset[str]:
        """The collections that a statement on ``namespace`` reads: itself, or a view's sources."""
        return self.views.get(namespace, frozenset((namespace,)))

    def touches_tiered(self, namespaces: frozenset[str]) -> bool:
        """Whether any of these is listed as tiered (by either tier's list) and not in ``Passthrough``."""
        for namespace in namespaces:
            for source in self.sources(namespace):
                found = self.tierings.get(source)
                if found is None:
                    if source in self.listed:
                        return True
                elif found.coverage.state is not State.PASSTHROUGH:
                    return True
        return False

"""The proxy's settings, taken from the manifest."""

from dataclasses import dataclass
from typing import Any

import bson

from thermocline_common.coverage import Tier
from thermocline_common.spec.models import ArchiveReads, Manifest, Mode, Routing, TierSpec

MAX_LEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What may change while the proxy runs. Seconds throughout.

    ``relaxed``: namespaces whose archive reads skip the barrier. ``default_preference``: the raw
    ``$readPreference`` of the archive for reads that state none, or None: the primary;
    ``fast_preference`` the fast tier's. ``verify``: the share of the fast tier's answers to check.
    ``wanted``: the namespaces that are active, or are to be. ``max_connections``: to one member, for
    the applications' commands.
    """

    lease: float
    barrier_timeout: float
    drain_timeout: float
    archive_only: bool
    relaxed: frozenset[str]
    max_connections: int
    owner: tuple[str, str]
    default_preference: bytes | None = None
    fast_preference: bytes | None = None
    verify: float = 0.0
    wanted: frozenset[str] = frozenset()

    def preference(self, tier: Tier) -> bytes | None:
        """The raw ``$readPreference`` of a tier for reads that state none; None: the primary."""
        return self.fast_preference if tier is Tier.FAST else self.default_preference


def settings_of(manifest: Manifest) -> Settings:
    """From the manifest in force."""
    spec = manifest.spec
    proxy = spec.proxy
    return Settings(
        lease=proxy.lease.total_seconds(),
        barrier_timeout=proxy.barrier_timeout.total_seconds(),
        drain_timeout=proxy.drain_timeout.total_seconds(),
        archive_only=proxy.routing is Routing.ARCHIVE_ONLY,
        relaxed=frozenset(
            policy.namespace
            for policy in spec.collections
            if policy.archive_reads is ArchiveReads.RELAXED
        ),
        max_connections=proxy.client_connections,
        owner=(manifest.metadata.namespace, manifest.metadata.name),
        default_preference=_preference(spec.archive),
        fast_preference=_preference(spec.fast_tier),
        verify=proxy.verify,
        wanted=frozenset(
            policy.namespace for policy in spec.collections if spec.mode is Mode.ACTIVE
        ),
    )


def _preference(tier: TierSpec) -> bytes | None:
    mode = tier.read_preference
    if mode is None or mode.value == "primary":
        return None
    document: dict[str, Any] = {"mode": mode.value}
    if tier.read_preference_tags:
        document["tags"] = tier.read_preference_tags
    if tier.max_staleness_seconds is not None and tier.max_staleness_seconds > 0:
        document["maxStalenessSeconds"] = tier.max_staleness_seconds
    return bson.encode(document)

"""The proxy's settings, taken from the manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import bson

from thermocline_common.coverage import Tier
from thermocline_common.spec.models import ArchiveReads, Manifest, Mode, Routing, TierSpec
from thermocline_common.spec.reads import read_options

MAX_LEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What may change while the proxy runs. Seconds throughout.

    ``relaxed``: namespaces whose archive reads skip the barrier. ``default_preference``: the raw
    ``$readPreference`` of the archive for reads that state none, or None: the primary;
    ``fast_preference`` the fast tier's. ``verify``: the share of the fast tier's answers to check.
    ``wanted``: the namespaces that are active, or are to be. ``max_connections``: to one member, for
    the applications' commands. ``zone_tag``: the replica-set tag that names members' zones, whose own
    ones are preferred; empty: none are. ``tag_sets``: of the default preferences, by tier.
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
    zone_tag: str = ""
    tag_sets: Mapping[Tier, Sequence[Mapping[str, str]]] = field(default_factory=dict)

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
        zone_tag="" if proxy.locality is None else proxy.locality.tag,
        tag_sets={
            Tier.ARCHIVE: read_options(spec.archive).tags,
            Tier.FAST: read_options(spec.fast_tier).tags,
        },
    )


def _preference(tier: TierSpec) -> bytes | None:
    preference = read_options(tier).preference
    return None if preference is None else bson.encode(preference)

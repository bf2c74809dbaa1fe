"""The resource's models: the one source of the CRD, the validator and the reference page.

Attributes are snake_case, the resource's fields camelCase (their aliases). Docstrings below the
fields become the descriptions in the CRD, so they are written for the people who use it.
"""

import datetime as dt
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from thermocline_common.spec.fields import (
    AgeField,
    Duration,
    Free,
    ObjectName,
    Pace,
    Quantity,
    ShortDuration,
    TieredNamespace,
    Uri,
    at_least,
)

MAX_COLLECTIONS = 500
MAX_NAME = 40


class Model(BaseModel):
    """Strict, frozen, camelCase in files, and no field that isn't known."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )


class Mode(StrEnum):
    """Where the resource should be."""

    PASSTHROUGH = "Passthrough"
    ACTIVE = "Active"


class DeletionPolicy(StrEnum):
    """What happens to writes that the archive lacks when the resource is deleted."""

    DRAIN = "Drain"
    RETAIN = "Retain"
    ABANDON = "Abandon"


class RolloutPolicy(StrEnum):
    """Whether an upgrade of the operator may roll pods by itself."""

    AUTO = "Auto"
    ON_APPROVAL = "OnApproval"


class ReadPreferenceMode(StrEnum):
    """MongoDB's read preference modes."""

    PRIMARY = "primary"
    PRIMARY_PREFERRED = "primaryPreferred"
    SECONDARY = "secondary"
    SECONDARY_PREFERRED = "secondaryPreferred"
    NEAREST = "nearest"


class Keep(StrEnum):
    """Which documents of a collection live in the fast tier whatever their age."""

    ALL = "All"


class ArchiveReads(StrEnum):
    """Whether reads of the archive wait until it holds every acknowledged write."""

    STRICT = "Strict"
    RELAXED = "Relaxed"


class ServiceType(StrEnum):
    """Types of the Service in front of the proxies."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Routing(StrEnum):
    """How the proxy routes reads of tiered collections."""

    AUTO = "Auto"
    ARCHIVE_ONLY = "ArchiveOnly"


class WorkMode(StrEnum):
    """Whether a background service works."""

    RUNNING = "Running"
    PAUSED = "Paused"


class EvictorMode(StrEnum):
    """Whether the evictor works, and whether it only counts."""

    RUNNING = "Running"
    PAUSED = "Paused"
    DRY_RUN = "DryRun"


class SecretRef(Model):
    """A Secret in the resource's namespace."""

    name: ObjectName
    """Name of the Secret."""


class TierTls(Model):
    """Certificates for the connections to a tier. TLS itself is switched on by `tls=true` in the URI."""

    ca_secret_ref: SecretRef | None = None
    """Secret with key `ca.crt`: the authorities that may have signed the tier's certificates."""
    certificate_secret_ref: SecretRef | None = None
    """Secret with the client certificate: keys `tls.crt` and `tls.key`, or one PEM `tls.pem`."""


class TierSpec(Model):
    """One of the two replica sets, and how to reach it."""

    uri: Uri
    """Connection string with `replicaSet`, without user and password, such as `mongodb://host-0:27017,host-1:27017/?replicaSet=rs0&tls=true`."""
    credentials_secret_ref: SecretRef | None = None
    """Secret with keys `username` and `password` of the services' own user."""
    tls: TierTls = Field(default_factory=TierTls)
    """Certificates."""
    read_preference: ReadPreferenceMode | None = None
    """Read preference for clients that state none."""
    read_preference_tags: Annotated[list[dict[str, str]], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Tag sets in order of preference; an empty one at the end means any member."""
    max_staleness_seconds: Annotated[int, Field(ge=-1, le=2_147_483_647)] | None = None
    """How far a secondary may lag behind to be read from, at least 90; -1 for no limit."""
    local_threshold_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        default=15, alias="localThresholdMS"
    )
    """Members this many milliseconds slower than the nearest one still count as near."""


class CollectionPolicy(Model):
    """Which documents of one collection must be in the fast tier: by age, or all of them."""

    namespace: TieredNamespace
    """The collection, as `database.collection`."""
    age_field: AgeField | None = None
    """Field with the date that tells a document's age; dotted paths are allowed."""
    max_age: Duration | None = None
    """Documents younger than this are kept in the fast tier: a whole number and s, m, h, d (24 hours) or w."""
    keep: Keep | None = None
    """`All`: the collection lives in the fast tier as a whole, in place of `ageField` and `maxAge`."""
    archive_reads: ArchiveReads = ArchiveReads.STRICT
    """`Strict`: reads of the archive wait until it has every acknowledged write; `Relaxed`: they don't."""


class ProxyTls(Model):
    """TLS on the proxy's own port."""

    certificate_secret_ref: SecretRef | None = None
    """Secret with the server certificate: keys `tls.crt` and `tls.key`."""
    client_ca_secret_ref: SecretRef | None = Field(default=None, alias="clientCASecretRef")
    """Secret with key `ca.crt`: clients must show a certificate signed by it."""


class Locality(Model):
    """Lets a proxy prefer members in its own zone for reads that allow it."""

    zone_label: Annotated[str, Field(min_length=1, max_length=253)] = "topology.kubernetes.io/zone"
    """Label of the nodes that names their zone."""
    tag: Annotated[str, Field(min_length=1, max_length=128)]
    """Replica-set tag that names a member's zone."""


class PodTemplate(Model):
    """What to add to the pods of a service."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels to add."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations to add."""
    affinity: Free | None = None
    """Affinity, as in a pod."""
    tolerations: Annotated[list[Free], Field(max_length=64)] = Field(default_factory=list)
    """Tolerations, as in a pod."""
    topology_spread_constraints: Annotated[list[Free], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Spread constraints, as in a pod; the proxy's default spreads over zones."""
    priority_class_name: ObjectName | None = None
    """Priority class."""
    service_account_name: ObjectName | None = None
    """Service account."""


class Resources(Model):
    """Resources of a service's container."""

    requests: dict[str, Quantity] = Field(default_factory=dict)
    """What is reserved."""
    limits: dict[str, Quantity] = Field(default_factory=dict)
    """What may be used at most."""


class ServiceSpec(Model):
    """What every service has."""

    resources: Resources = Field(default_factory=Resources)
    """Resources of the container."""
    pod_template: PodTemplate = Field(default_factory=PodTemplate)
    """What to add to the pods."""


class ProxySpec(ServiceSpec):
    """The proxies that applications connect to."""

    replicas: Annotated[int, Field(ge=0, le=100)] = 2
    """Number of proxies."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 27017
    """Port of the Service."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes in one pod, each in a container with the `resources`; they share the port."""
    service_type: ServiceType = ServiceType.CLUSTER_IP
    """Type of the Service."""
    tls: ProxyTls = Field(default_factory=ProxyTls)
    """TLS on the proxy's port."""
    routing: Routing = Routing.AUTO
    """`ArchiveOnly` sends every read of tiered collections to the archive, without waiting: for emergencies."""
    locality: Locality | None = None
    """Prefer members in the proxy's own zone."""
    max_upstream_connections: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Connections of one worker to one member, at most; besides two that watch it."""
    lease: Annotated[ShortDuration, AfterValidator(at_least("100ms", "30s"))] = dt.timedelta(
        seconds=5
    )
    """How long a proxy may work with what it knows of the coverage; changes of state wait this long."""
    barrier_timeout: Annotated[ShortDuration, AfterValidator(at_least("100ms", "10m"))] = (
        dt.timedelta(seconds=10)
    )
    """How long a read of the archive waits for it to catch up before it fails with a retryable error."""
    verify: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the fast tier's answers that are compared with the archive's, 0 to 1."""
    drain_timeout: Annotated[ShortDuration, AfterValidator(at_least("1s", "1h"))] = dt.timedelta(
        seconds=30
    )
    """How long open cursors are served after a proxy was told to stop."""

    @property
    def own_connections(self) -> int:
        """How many of ``max_upstream_connections`` are for the proxy's own look-ups and records."""
        return max(1, min(20, self.max_upstream_connections // 5))

    @property
    def client_connections(self) -> int:
        """How many are for the applications' commands."""
        return max(1, self.max_upstream_connections - self.own_connections)


class WorkerSpec(ServiceSpec):
    """A background service."""

    mode: WorkMode = WorkMode.RUNNING
    """`Paused`: the service holds still."""
    pace: Pace = "Auto"
    """`Auto` gives way to applications; a number is documents a second."""


class FeederSpec(WorkerSpec):
    """The feeder, which brings every write of the fast tier to the archive."""

    mode: WorkMode = WorkMode.RUNNING
    """`Paused`: nothing is replayed and no collection changes its state. The price: what has to ask the archive for more than single documents by `_id` fails with a retryable error after `barrierTimeout` (not reads under `archiveReads: Relaxed`), and the fast tier's oplog must last as long as the pause."""


class WarmerSpec(WorkerSpec):
    """The warmer, which copies what policies ask for into the fast tier."""


class EvictorSpec(ServiceSpec):
    """The evictor, which removes documents from the fast tier that are older than their policy asks for."""

    mode: EvictorMode = EvictorMode.DRY_RUN
    """`DryRun` counts what would go; a person looks, then sets `Running`."""
    pace: Pace = "Auto"
    """`Auto` gives way to applications; a number is documents a second."""


class Spec(Model):
    """What a person wants."""

    mode: Mode = Mode.ACTIVE
    """`Active`: tiered collections are served from both tiers; `Passthrough`: from the archive alone."""
    paused: bool = False
    """Operator, evictor and warmer hold still, and no collection changes its state unless a command of an application needs it; a switch that has begun is finished. The proxy goes on serving, and replay goes on, which its reads of the archive wait for."""
    deletion_policy: DeletionPolicy = DeletionPolicy.DRAIN
    """`Drain`: deletion waits until the archive has everything; `Retain`: so too, and the fast tier's documents stay; `Abandon`: deletion doesn't wait."""
    rollout_policy: RolloutPolicy = RolloutPolicy.AUTO
    """`OnApproval`: an upgrade of the operator rolls pods only after a person approved it."""
    archive: TierSpec
    """The archive: the replica set that holds every document."""
    fast_tier: TierSpec
    """The fast tier: the replica set that holds recent documents."""
    collections: Annotated[list[CollectionPolicy], Field(max_length=MAX_COLLECTIONS)] = Field(
        default_factory=list
    )
    """The tiered collections; all others are served from the archive. One that is taken out is drained first."""
    proxy: ProxySpec = Field(default_factory=ProxySpec)
    """The proxies."""
    feeder: FeederSpec = Field(default_factory=FeederSpec)
    """The feeder."""
    evictor: EvictorSpec = Field(default_factory=EvictorSpec)
    """The evictor."""
    warmer: WarmerSpec = Field(default_factory=WarmerSpec)
    """The warmer."""


class Metadata(BaseModel):
    """The part of an object's metadata that matters here; the rest is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    namespace: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    uid: str = ""
    """Empty outside Kubernetes."""
    generation: Annotated[int, Field(ge=0)] = 0
    """Counts changes of the spec; 0 outside Kubernetes."""
    retain: bool = False
    """Set by the operator while it deletes a resource with `deletionPolicy: Retain`."""


class TieredReplicaSet(BaseModel):
    """The resource as it stands in a file or in Kubernetes; ``status`` isn't read from files."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
    )

    api_version: Literal["thermocline.io/v1alpha1"] = "thermocline.io/v1alpha1"
    kind: Literal["TieredReplicaSet"] = "TieredReplicaSet"
    metadata: Metadata
    spec: Spec
    status: dict[str, Any] | None = None


Manifest = TieredReplicaSet
"""A resource that services run with: as :mod:`thermocline_common.manifest` loads and follows it."""

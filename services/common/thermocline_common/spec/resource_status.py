"""The resource's ``status`` as the operator writes it: for the CRD's schema, and for who reads it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class StatusPart(BaseModel):
    """camelCase in Kubernetes."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )


class Condition(StatusPart):
    """A condition, as everywhere in Kubernetes."""

    type: Annotated[str, Field(max_length=316)]
    """Such as `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, as one word."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """Why, for people."""
    last_transition_time: str
    """When `status` changed last."""
    observed_generation: int | None = None
    """Generation of the spec that it is about."""


class Blocked(StatusPart):
    """Something that is waited for."""

    kind: str
    """Kind of the object."""
    name: str
    """Name of the object."""
    reason: str
    """What it lacks."""
    since: str | None = None
    """Since when."""


class CollectionStatus(StatusPart):
    """One tiered collection."""

    namespace: str
    """The collection."""
    state: str | None = None
    """`Passthrough`, `Pausing` or `Active`."""
    floor: str | None = None
    """The fast tier holds every document from this age on."""
    warm_percent: int | None = None
    """Share of what the policy asks for that the fast tier holds."""
    documents_copied: int | None = None
    """Documents copied into the fast tier."""
    time_left: str | None = None
    """Estimated time until it is warm."""
    oldest_resident: str | None = None
    """Age of the oldest document in the fast tier."""
    lag: str | None = None
    """How far the archive is behind the fast tier."""
    unsent_operations: int | None = None
    """Writes that the archive lacks."""
    evicted: int | None = None
    """Documents removed from the fast tier."""
    confirmed: int | None = None
    """Documents found equal in the archive before they were removed."""
    would_evict: int | None = None
    """Documents that a dry run would remove."""
    fast_read_percent: int | None = None
    """Share of reads that the fast tier answered."""
    archive_reason: str | None = None
    """Main reason for reads of the archive."""


class ComponentStatus(StatusPart):
    """One of the services."""

    name: str
    """`proxy`, `feeder`, `evictor` or `warmer`."""
    version: str | None = None
    """The version that runs."""
    applied_generation: int | None = None
    """Generation of the spec that it works with."""
    credentials_generation: str | None = None
    """Version of the credentials that it works with."""
    not_after: str | None = None
    """End of its certificate."""


class ProxyStatus(StatusPart):
    """The proxies, for scaling."""

    replicas: int | None = None
    """Proxies that exist."""
    ready_replicas: int | None = None
    """Proxies that are ready."""
    selector: str | None = None
    """Label selector of their pods."""


class ResourceStatus(StatusPart):
    """What the operator found."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    phase: str | None = None
    """Pending, Passthrough, Warming, Active, Degraded, Paused, Draining or Failed."""
    conditions: list[Condition] = Field(default_factory=list)
    """Conditions by type."""
    blocked_on: list[Blocked] = Field(default_factory=list)
    """What is waited for."""
    collections: list[CollectionStatus] = Field(default_factory=list)
    """Tiered collections."""
    components: list[ComponentStatus] = Field(default_factory=list)
    """Services."""
    proxy: ProxyStatus | None = None
    """The proxies."""
    warm: str | None = None
    """Share of what policies ask for that the fast tier holds, such as `97%`."""
    lag: str | None = None
    """How far the archive is behind the fast tier, such as `40ms`."""
    coverage: str | None = None
    """Collections that are covered, such as `2/3`."""
    pending_rollout: str | None = None
    """A rollout that waits for approval."""

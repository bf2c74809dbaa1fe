"""What a service's ``/status`` says: one model for all services, which the operator reads."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class StatusModel(BaseModel):
    """camelCase in JSON; unknown fields are kept, so that older readers work with newer services."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="allow")


class TierStatus(StatusModel):
    """One tier as this service sees it."""

    reachable: bool
    """Whether the primary answered at the last look."""
    primary: str | None = None
    """``host:port`` of the primary."""
    set_name: str | None = None
    version: str | None = None
    error: str | None = None
    """Why it isn't reachable."""


class ServiceStatus(StatusModel):
    """The answer of ``/status``; the service's own part stands under its name (``feeder``, ...)."""

    service: str
    version: str
    namespace: str
    name: str
    uid: str
    applied_generation: int
    ready: bool
    stopping: bool
    uptime_seconds: float
    heartbeat_age_seconds: float
    problems: dict[str, str] = Field(default_factory=dict)
    """What is wrong now, by key."""
    tiers: dict[str, TierStatus] = Field(default_factory=dict)
    """By ``archive`` and ``fast``."""
    credentials: dict[str, Any] = Field(default_factory=dict)
    """``generation`` counts what came into force; ``certificates``: file, subject, notBefore, notAfter."""

    def document(self, own: dict[str, Any]) -> dict[str, Any]:
        """JSON-ready, with the service's own part under its name."""
        return {**self.model_dump(mode="json", by_alias=True, exclude_none=True), self.service: own}

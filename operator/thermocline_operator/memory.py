"""What the operator remembers of one resource between turns; all of it can be found out again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thermocline_common.spec.problems import Problem
from thermocline_operator.drain import Drain
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.objects import Ref
from thermocline_operator.plan.source import Resource

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Applied:
    """An object as it was applied last: a digest of what was asked for, and the part that came of it."""

    wanted: str
    part: Any


@dataclass(frozen=True, slots=True)
class Told:
    """What a service said of collections, and when, on the monotonic clock."""

    namespaces: Mapping[str, Mapping[str, Any]]
    at: float


@dataclass(slots=True)
class Memory:
    """``resource`` is the last valid one. Bodies are the API server's, as last read."""

    body: Body | None = None
    resource: Resource | None = None
    problems: tuple[Problem, ...] = ()
    checked: str | None = None
    """The version of the body that ``resource`` and ``problems`` are of."""
    live: dict[Ref, Body] = field(default_factory=dict)
    pods: list[Body] = field(default_factory=list)
    applied: dict[Ref, Applied] = field(default_factory=dict)
    conflicts: list[Ref] = field(default_factory=list)
    refused: dict[Ref, str] = field(default_factory=dict)
    complete: bool = False
    """Whether the last look applied everything that there should be."""
    pending: str | None = None
    secrets: dict[str, Body | None] = field(default_factory=dict)
    """Named Secrets; None: it isn't there."""
    credentials: dict[str, bytes] = field(default_factory=dict)
    """Files of the last complete set: in a namespace that is deleted, Secrets go first."""
    files: str | None = None
    """A digest of the pods' files as last seen; None: not seen yet."""
    services: frozenset[str] = frozenset()
    """Services of the namespace that the tiers' hosts name."""
    namespaces: dict[Component, Told] = field(default_factory=dict)
    """What each service said last of collections."""
    terminating: bool = False
    full_at: float | None = None
    """When everything was read last, on the monotonic clock."""
    written_at: float = float("-inf")
    drain: Drain | None = None
    feeder_at: float | None = None
    """When a feeder in a pod was heard of last."""
    moved_at: float | None = None
    """When a drain got anywhere last."""
    progress: Any = None
    proven: bool = False
    outside: Mapping[str, Any] | None = None
    """The last report of the operator's own drain."""

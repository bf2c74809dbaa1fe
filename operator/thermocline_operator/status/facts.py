"""What was observed of one resource: the input of every decision about its status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from thermocline_common.spec.models import Spec
from thermocline_common.spec.problems import Problem
from thermocline_operator.plan.labels import Component

HEARD_SECONDS = 30.0
"""A report older than this counts as none."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. ``trouble``: why it doesn't run, as one word and a text, or None.

    ``report``: what its ``/status`` said ``age`` seconds ago; None: never heard of.
    """

    name: str
    component: Component
    ready: bool
    leaving: bool = False
    trouble: tuple[str, str] | None = None
    report: Mapping[str, Any] | None = None
    age: float = 0.0

    @property
    def heard(self) -> Mapping[str, Any] | None:
        """The report, if it is fresh."""
        return self.report if self.report is not None and self.age <= HEARD_SECONDS else None


@dataclass(frozen=True, slots=True)
class Deployment:
    """One Deployment. ``rolled_out``: every pod is of its present template and available.

    ``failure``: why pods can't be made, or None.
    """

    component: Component
    replicas: int
    ready: int
    rolled_out: bool
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class SecretTrouble:
    """A named Secret that can't be used. ``missing_keys`` empty: it isn't there at all."""

    name: str
    missing_keys: tuple[str, ...] = ()
    tls: bool = False


class Ending(Enum):
    """How far a deletion is."""

    NONE = "it isn't being deleted"
    DRAINING = "the archive gets what it lacks"
    BLOCKED = "not everything can be brought to the archive"


@dataclass(frozen=True, slots=True)
class Facts:
    """``spec`` None: never was valid. ``problems``: of the spec as it stands now.

    ``refused``: objects (kind, name) and why they can't be had; ``conflicts``: those that belong to
    somebody else. ``not_after``: the end of each certificate, by Secret, as RFC 3339.
    """

    name: str
    generation: int
    spec: Spec | None
    problems: tuple[Problem, ...] = ()
    pods: tuple[Pod, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    secrets: tuple[SecretTrouble, ...] = ()
    conflicts: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    applied: bool = True
    pending: str | None = None
    ending: Ending = Ending.NONE
    ending_text: str = ""
    not_after: Mapping[str, str] = field(default_factory=dict)
    expiring: tuple[str, ...] = ()
    before: Mapping[Component, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """What services said of collections a moment ago."""

    def reports(self, component: Component) -> list[Mapping[str, Any]]:
        """Fresh reports of a service: of pods that stay, or else of those that leave."""
        pods = [p for p in self.pods if p.component is component and p.heard is not None]
        found = [p for p in pods if not p.leaving] or pods
        return [p.heard for p in sorted(found, key=lambda p: p.name) if p.heard is not None]

    def own(self, component: Component) -> Mapping[str, Any]:
        """The service's own part of its report: of the pod that does the work."""
        reports = self.reports(component)
        parts = [r.get(component.value) or {} for r in reports]
        working = [p for p in parts if p.get("namespaces") is not None]
        found: Mapping[str, Any] = (working or parts or [{}])[0]
        before = self.before.get(component)
        return found if working or before is None else {**found, "namespaces": before}

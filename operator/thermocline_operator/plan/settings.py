"""What the operator's own options say about the objects that it makes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSettings:
    """``egress_cidrs`` empty: anywhere. ``network_policies``: whether to create any."""

    image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    network_policies: bool = False
    egress_cidrs: tuple[str, ...] = ()

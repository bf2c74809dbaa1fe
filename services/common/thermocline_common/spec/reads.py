"""Which members of a tier serve reads that state no preference: the tier's fields and its URI, as one. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thermocline_common.spec.models import TierSpec
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place

DEFAULT_THRESHOLD_MS = 15


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """``tags``: ordered tag sets, none: any member. ``max_staleness_seconds``: -1 for no limit."""

    mode: str = "primary"
    tags: tuple[Mapping[str, str], ...] = ()
    max_staleness_seconds: int = -1
    local_threshold_ms: int = DEFAULT_THRESHOLD_MS

    @property
    def preference(self) -> dict[str, Any] | None:
        """As a ``$readPreference``; None: the primary."""
        if self.mode == "primary":
            return None
        document: dict[str, Any] = {"mode": self.mode}
        if self.tags:
            document["tags"] = [dict(tags) for tags in self.tags]
        if self.max_staleness_seconds > 0:
            document["maxStalenessSeconds"] = self.max_staleness_seconds
        return document


def read_options(tier: TierSpec) -> ReadOptions:
    """Of a checked manifest's tier, in which no option is given twice."""
    given = check(tier.uri, Place.MANIFEST).options
    mode = tier.read_preference
    staleness = tier.max_staleness_seconds
    threshold = tier.local_threshold_ms
    if threshold == DEFAULT_THRESHOLD_MS:  # the API server fills it in: it says nothing
        threshold = given.get("localThresholdMS", threshold)
    return ReadOptions(
        mode=given.get("readPreference", "primary") if mode is None else mode.value,
        tags=tuple(tier.read_preference_tags or given.get("readPreferenceTags", ())),
        max_staleness_seconds=(
            given.get("maxStalenessSeconds", -1) if staleness is None else staleness
        ),
        local_threshold_ms=threshold,
    )


_LIVE = frozenset({"readPreference", "readPreferenceTags", "maxStalenessSeconds"})


def needs_new_connections(old: TierSpec, new: TierSpec) -> bool:
    """Whether a tier's change counts only once its connections are made anew: any but of preferences."""
    return connection_key(old) != connection_key(new)


def connection_key(tier: TierSpec) -> str:
    """What a service's connections to a checked manifest's tier are made of, as one text without a secret.

    Defaults leave no trace in it: fields that are added later change nobody's.
    """
    connection = check(tier.uri, Place.MANIFEST)
    options = {
        name: value for name, value in connection.options.values.items() if name not in _LIVE
    }
    threshold = read_options(tier).local_threshold_ms
    options.pop("localThresholdMS", None)
    if threshold != DEFAULT_THRESHOLD_MS:
        options["localThresholdMS"] = threshold
    named = tier.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"credentials_secret_ref", "tls"},
    )
    parts = [connection.uri.srv, [str(host) for host in connection.uri.hosts], options, named]
    return json.dumps(parts, sort_keys=True, default=str)

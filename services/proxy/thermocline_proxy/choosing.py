"""Which members of a tier a read preference chooses, and why: on PyMongo's description of the set. Pure.

The rules are the drivers': mode, then the first tag set that any member matches, then the latency
window. A proxy that knows its own zone narrows what is left to members of that zone, if there are any.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference
from pymongo.errors import ConfigurationError
from pymongo.read_preferences import make_read_preference, read_pref_mode_from_name
from pymongo.server_description import ServerDescription
from pymongo.topology_description import TopologyDescription

from thermocline_common.errors import Code, CommandError
from thermocline_common.uri.options import MODES
from thermocline_proxy.commands.command import CODEC

PRIMARY_MODE = "primary"
_FIRST_CHOICE = {
    "primaryPreferred": "primary",
    "secondaryPreferred": "secondary",
    "secondary": "secondary",
}


class Why(StrEnum):
    """What made a member the choice."""

    PRIMARY = "primary"
    """The primary was asked for."""
    OWN_ZONE = "own-zone"
    """It is in the proxy's own zone, as others aren't."""
    TAGS = "tags"
    """It matches the first tag set that any member matches."""
    LATENCY = "latency"
    """It is one of the nearest that qualify."""
    FALLBACK = "fallback"
    """The kind of member that was preferred isn't there."""


@dataclass(frozen=True, slots=True)
class Zone:
    """Where the proxy is: the replica-set tag that names zones, and its own zone's name."""

    tag: str
    name: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A member (``host:port``) for a read preference's mode."""

    address: str
    mode: str
    why: Why


def choose(
    description: TopologyDescription, preference: bytes | None, zone: Zone | None = None
) -> list[Choice]:
    """The members that a raw ``$readPreference`` (None: the primary) may be served by; each is as good.

    Raises :class:`CommandError` where the preference isn't one.
    """
    selector = ReadPreference.PRIMARY if preference is None else parse_preference(preference)
    mode = selector.document["mode"]
    narrowed: list[int] = []

    def narrow(found: Sequence[ServerDescription]) -> list[ServerDescription]:
        own = [one for one in found if zone is not None and one.tags.get(zone.tag) == zone.name]
        if own and len(own) < len(found):
            narrowed.append(len(own))
        return own or list(found)

    try:
        found = description.apply_selector(
            selector, custom_selector=None if zone is None else narrow
        )
    except ConfigurationError as error:  # maxStalenessSeconds is shorter than heartbeats allow
        raise CommandError(160, str(error), code_name="MaxStalenessOutOfRange") from error
    return [
        Choice(address_of(one), mode, _why(mode, selector.tag_sets, one, own_zone=bool(narrowed)))
        for one in found
    ]


def _why(
    mode: str,
    tag_sets: Sequence[Mapping[str, str]] | None,
    chosen: ServerDescription,
    *,
    own_zone: bool,
) -> Why:
    if mode == PRIMARY_MODE:
        return Why.PRIMARY
    kind = "primary" if chosen.is_writable else "secondary"
    if _FIRST_CHOICE.get(mode, kind) != kind:
        return Why.FALLBACK
    if own_zone:
        return Why.OWN_ZONE
    if mode == "primaryPreferred":
        return Why.PRIMARY
    matched = next((tags for tags in tag_sets or () if matches(chosen.tags, tags)), {})
    return Why.TAGS if matched else Why.LATENCY


def matches(tags: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a member's tags hold all that a tag set wants."""
    return all(tags.get(name) == value for name, value in wanted.items())


def unmatched(
    tag_sets: Sequence[Mapping[str, str]], members: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Why no member matches any of the tag sets, whoever is primary; None: one does, or any will do.

    ``members``: the tags of each, by address.
    """
    if not tag_sets or any(matches(tags, one) for one in tag_sets for tags in members.values()):
        return None
    wanted = " or ".join(shown(tags) for tags in tag_sets)
    there = ", ".join(f"{address} {shown(tags)}" for address, tags in sorted(members.items()))
    return f"no member matches the tag set {wanted}; there are {there or 'no members'}"


def tags_of(description: TopologyDescription) -> dict[str, Mapping[str, str]]:
    """The tags of every member that holds data and can be reached, by address."""
    return {address_of(one): dict(one.tags) for one in description.known_servers if one.is_readable}


def parse_preference(raw: bytes) -> Any:
    """PyMongo's selector of a raw ``$readPreference``. Raises :class:`CommandError`."""
    document = RawBSONDocument(raw, CODEC)
    mode = document.get("mode")
    tags = document.get("tags")
    staleness = document.get("maxStalenessSeconds", -1)
    try:
        if mode not in MODES:
            raise ValueError(f"the mode must be one of {', '.join(MODES)}")
        sets = None if not tags else [_tag_set(one) for one in tags]
        if mode == PRIMARY_MODE:
            return ReadPreference.PRIMARY
        if isinstance(staleness, bool) or not isinstance(staleness, int | float):
            raise TypeError("maxStalenessSeconds must be a number")
        return make_read_preference(read_pref_mode_from_name(mode), sets, int(staleness))
    except (TypeError, ValueError, OverflowError, ConfigurationError) as error:
        raise CommandError(
            Code.FailedToParse, f"Could not parse $readPreference: {error}"
        ) from error


def _tag_set(value: Any) -> dict[str, str]:
    found = dict(value.items()) if isinstance(value, Mapping) else None
    if found is None or not all(isinstance(tag, str) for tag in found.values()):
        raise TypeError("a tag set must be a document of strings")
    return found


def shown(value: Any) -> str:
    """As MongoDB prints a BSON document: ``{ mode: "secondary", tags: [ { dc: "x" } ] }``."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        return "{ " + ", ".join(f"{k}: {shown(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[ {', '.join(map(shown, value))} ]" if value else "[]"
    return str(value)


def address_of(server: ServerDescription) -> str:
    """``host:port``; IPv6 hosts stand in brackets."""
    host, port = server.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

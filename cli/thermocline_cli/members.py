"""Which members of the tiers a command's read preference would choose now: the proxy's own rules, on what the tiers say."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import bson
from pymongo import AsyncMongoClient
from pymongo.topology_description import TopologyDescription

from thermocline_common.access import Access
from thermocline_common.clients import close_tiers, open_tiers
from thermocline_common.coverage import Tier
from thermocline_common.spec.models import Manifest
from thermocline_common.spec.reads import read_options
from thermocline_proxy.choosing import (
    Zone,
    address_of,
    choose,
    parse_preference,
    shown,
    tags_of,
    unmatched,
)
from thermocline_proxy.commands.catalog import lookup
from thermocline_proxy.commands.command import Command

APP_NAME: Final = "thermocline-cli"
LOOK_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05
NAMES: Final = {Tier.FAST: "fast tier", Tier.ARCHIVE: "archive"}


@dataclass(frozen=True, slots=True)
class Member:
    """``reason``: why it is among those chosen, as in metrics. ``milliseconds``: the round trip to it."""

    address: str
    reason: str
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """Of one tier. ``preference``: the ``$readPreference`` in force. ``members``: any of them may answer.

    ``satisfiable``: the condition ``TopologySatisfiable``; False: no member matches any of the tag sets,
    whoever is primary. ``text``: why nobody is chosen; None: somebody is.
    """

    tier: str
    preference: Mapping[str, Any]
    members: tuple[Member, ...]
    satisfiable: bool = True
    text: str | None = None


def preference_of(command: Command, tier: Tier, manifest: Manifest) -> bytes | None:
    """The raw ``$readPreference`` for a tier: the command's, else the tier's own; None: the primary. Pure."""
    entry = lookup(command.name)
    if entry is None or not entry.any_member:
        return None
    kind, raw = command.fields.get("$readPreference", (0, b""))
    if kind == 3:
        return bytes(raw)
    spec = manifest.spec
    default = read_options(spec.fast_tier if tier is Tier.FAST else spec.archive).preference
    return None if default is None else bytes(bson.encode(default))


def chosen(
    tier: Tier, description: TopologyDescription, preference: bytes | None, zone: Zone | None
) -> Chosen:
    """The members of one tier. Pure. Raises ``CommandError`` where the preference isn't one."""
    document = {"mode": "primary"} if preference is None else dict(bson.decode(preference))
    tags = tags_of(description)
    latency = {
        address_of(one): (one.round_trip_time or 0.0) * 1_000 for one in description.known_servers
    }
    members = tuple(
        Member(one.address, one.why.value, round(latency[one.address], 1))
        for one in choose(description, preference, zone)
    )
    sets = [] if preference is None else parse_preference(preference).tag_sets
    missing = unmatched(sets, tags) if tags else None
    text = None
    if not members:
        there = ", ".join(
            f"{address_of(one)} {one.server_type_name} {shown(dict(one.tags))}"
            for one in description.known_servers
        )
        text = missing or f"no member fits now; there are {there or 'no members that answer'}"
    return Chosen(NAMES[tier], document, members, missing is None, text)


def choose_members(
    manifest: Manifest, credentials: Path | None, command: Command, zone: str
) -> list[Chosen]:
    """Of both tiers, asked now. Raises ``ConfigError`` and ``CommandError``."""
    return asyncio.run(_choose(manifest, credentials, command, zone))


async def _choose(
    manifest: Manifest, credentials: Path | None, command: Command, zone: str
) -> list[Chosen]:
    tiers = open_tiers(manifest, Access.load(manifest, credentials), APP_NAME)
    locality = manifest.spec.proxy.locality
    own = Zone(locality.tag, zone) if locality is not None and zone else None
    clients = {Tier.FAST: tiers.fast, Tier.ARCHIVE: tiers.archive}
    try:
        found = await asyncio.gather(*map(_look, clients.values()))
    finally:
        await close_tiers(tiers)
    return [
        chosen(tier, description, preference_of(command, tier, manifest), own)
        for tier, description in zip(clients, found, strict=True)
    ]


async def _look(client: AsyncMongoClient[dict[str, Any]]) -> TopologyDescription:
    """As soon as every member was heard of; what is known by then, after a while."""
    await client.aconnect()
    loop = asyncio.get_running_loop()
    end = loop.time() + LOOK_SECONDS
    while True:
        description = client.topology_description
        servers = description.server_descriptions().values()
        if all(one.is_server_type_known for one in servers) or loop.time() >= end:
            return description
        await asyncio.sleep(_POLL_SECONDS)

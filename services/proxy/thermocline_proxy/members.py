"""The members of one tier: who is primary now, and who may serve a read preference.

PyMongo's own topology does the watching (streaming hello, election ids, round-trip times); only
its immutable description is read here. No command of a client goes through PyMongo.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.server_description import ServerDescription

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.choosing import (
    PRIMARY_MODE,
    Choice,
    Why,
    Zone,
    address_of,
    choose,
    parse_preference,
    shown,
    tags_of,
    unmatched,
)
from thermocline_proxy.commands.command import CODEC

SUSPICION_SECONDS = 0.5
"""How long a primary that answered "not primary" is passed over, if no news of the set arrives."""
_MAX_CACHED_PREFERENCES = 256
_POLL_SECONDS = 0.01
_RECENT_SECONDS = 0.005


class Members:
    """One tier's members, as PyMongo's topology sees them. Addresses are ``host:port``."""

    def __init__(self, tier: Tier, client: AsyncMongoClient[dict[str, Any]]) -> None:
        self.tier = tier
        self._client = client
        self._seen: Any = None
        self._primary: str | None = None
        self._chosen: dict[bytes, list[Choice]] = {}
        self._zone: Zone | None = None
        self._suspect: str | None = None
        self._suspect_until = 0.0
        self._recent: str | None = None
        self._looked = 0.0

    @property
    def zone(self) -> Zone | None:
        """Whose members go before others, where a read preference leaves the choice."""
        return self._zone

    @zone.setter
    def zone(self, zone: Zone | None) -> None:
        if zone != self._zone:
            self._zone = zone
            self._chosen = {}

    def unmatched(self, tag_sets: Sequence[Mapping[str, str]]) -> str | None:
        """Why no member matches these tag sets; None: one does, or nothing is known of the members."""
        tags = tags_of(self._refresh())
        return unmatched(tag_sets, tags) if tags else None

    async def start(self) -> None:
        """Begin to watch."""
        await self._client.aconnect()

    def _refresh(self) -> Any:
        description = self._client.topology_description
        if description is not self._seen:
            self._seen = description
            self._chosen = {}
            self._suspect = None
            found = description.apply_selector(ReadPreference.PRIMARY)
            self._primary = address_of(found[0]) if found else None
        return description

    @property
    def primary(self) -> str | None:
        """The primary's address; None while none is known."""
        self._refresh()
        if self._suspect is not None and self._suspect == self._primary:
            if time.monotonic() < self._suspect_until:
                return None
            self._suspect = None
        return self._primary

    def primary_at(self, now: float) -> str | None:
        """:attr:`primary`, at most five milliseconds old; ``now`` in monotonic seconds."""
        if now - self._looked > _RECENT_SECONDS:
            self._looked = now
            self._recent = self.primary
        return self._recent

    @property
    def known(self) -> list[ServerDescription]:
        """Descriptions of the members that can be reached."""
        return list(self._refresh().known_servers)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the members that hold data and can be reached, the primary first."""
        found = [
            address_of(server) for server in self._refresh().known_servers if server.is_readable
        ]
        primary = self._primary
        return sorted(found, key=lambda address: address != primary)

    @property
    def reachable(self) -> set[str]:
        """Addresses of all members that answer."""
        return {address_of(server) for server in self.known}

    def suspect(self, address: str) -> None:
        """This member said it isn't the primary, or can't be reached: wait for news of the set."""
        self._suspect = address
        self._suspect_until = time.monotonic() + SUSPICION_SECONDS
        self._looked = 0.0

    def choose(self, preference: bytes | None) -> str | None:
        """A member for a raw ``$readPreference`` document (None: the primary); None where none fits.

        Raises :class:`CommandError` where the preference isn't one.
        """
        return self.primary if preference is None else self._any(preference)

    def _any(self, preference: bytes) -> str | None:
        found = self.choices(preference)
        if len(found) == 1:
            return found[0].address
        return random.choice(found).address if found else None  # noqa: S311

    def choices(self, preference: bytes | None) -> list[Choice]:
        """Every member that may serve the preference, and why. Raises :class:`CommandError`."""
        description = self._refresh()
        key = preference or b""
        found = self._chosen.get(key)
        if found is None:
            found = choose(description, preference, self._zone)
            if len(self._chosen) < _MAX_CACHED_PREFERENCES:
                self._chosen[key] = found
        return found

    def choice(self, preference: bytes | None, address: str) -> Choice:
        """Why this member serves the preference; what it was a moment ago where that has changed."""
        for one in self.choices(preference):
            if one.address == address:
                return one
        mode = PRIMARY_MODE if preference is None else parse_preference(preference).document["mode"]
        return Choice(address, mode, Why.PRIMARY if mode == PRIMARY_MODE else Why.LATENCY)

    async def wait(self, preference: bytes | None, deadline: float) -> str:
        """Like :meth:`choose`, but waits until ``deadline`` (monotonic). Raises :func:`none_fits`."""
        while True:
            found = self.choose(preference)
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                description = self._refresh()
                raise none_fits(
                    preference, self.tier, description.replica_set_name, bool(self.addresses)
                )
            await asyncio.sleep(_POLL_SECONDS)


def none_fits(
    preference: bytes | None, tier: Tier, set_name: str | None, reachable: bool
) -> CommandError:
    """The answer where no member fits. ``reachable``: members that hold data are there.

    133 in mongos' words where the preference itself is why: trying again finds the same members. 6
    where a primary is wanted, or the whole tier is away. For those a mongos answers 133 too, but drivers
    retry by the code, and 133 isn't among the codes that they retry: the one retry that rides out an
    election would be lost to reads, and to writes whose label an old driver doesn't look at.
    """
    selector = ReadPreference.PRIMARY if preference is None else parse_preference(preference)
    if reachable and selector.mode != ReadPreference.PRIMARY.mode:
        assert preference is not None
        return CommandError(
            Code.FailedToSatisfyReadPreference,
            "Could not find host matching read preference "
            f"{shown(RawBSONDocument(preference, CODEC))} for set {set_name}",
        )
    what = "member" if selector.mode else "primary"
    return CommandError(Code.HostUnreachable, f"no {what} of the {tier.value} tier can be reached")

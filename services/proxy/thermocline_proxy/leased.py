"""A gateway for one request: whatever its handler sends is sent under the lease it decided by."""

import dataclasses
from typing import Any

from bson.timestamp import Timestamp

from thermocline_common.coverage import Tier
from thermocline_proxy.commands.command import Command
from thermocline_proxy.exchange import TierExchange
from thermocline_proxy.ports import Exchange, Gateway, Identity, Leases, Reply
from thermocline_proxy.routing.snapshot import Snapshot


class HeldLeases:
    """Leases of one request; remembers the snapshot that its handler works with."""

    def __init__(self, leases: Leases, snapshot: Snapshot) -> None:
        self._leases = leases
        self.held = snapshot

    async def current(self, deadline: float | None = None) -> Snapshot:
        """See :class:`~thermocline_proxy.ports.Leases`."""
        self.held = await self._leases.current(deadline)
        return self.held

    async def untiered(self, deadline: float | None = None) -> Snapshot:
        """See :class:`~thermocline_proxy.ports.Leases`."""
        return await self._leases.untiered(deadline)

    def alive(self, snapshot: Snapshot) -> bool:
        """See :class:`~thermocline_proxy.ports.Leases`."""
        return self._leases.alive(snapshot)

    async def wait_for_change(self, snapshot: Snapshot, deadline: float | None) -> Snapshot:
        """See :class:`~thermocline_proxy.ports.Leases`."""
        self.held = await self._leases.wait_for_change(snapshot, deadline)
        return self.held


class HeldExchange:
    """The exchange of one request: checks the lease at the moment of sending, keeps its deadline."""

    def __init__(self, exchange: TierExchange, leases: HeldLeases, deadline: float | None) -> None:
        self._exchange = exchange
        self._leases = leases
        self._deadline = deadline

    async def run(
        self,
        tier: Tier,
        identity: Identity | None,
        command: Command,
        *,
        to_primary: bool = True,
        member: str | None = None,
        after: Timestamp | None = None,
    ) -> Reply:
        """See :class:`~thermocline_proxy.ports.Exchange`."""
        return await self._exchange.run(
            tier,
            identity,
            command,
            to_primary=to_primary,
            member=member,
            after=after,
            deadline=self._deadline,
            may_send=lambda: self._leases.alive(self._leases.held),
        )


def leased(gateway: Gateway, snapshot: Snapshot, deadline: float | None) -> Gateway:
    """The gateway for one request that was decided under ``snapshot``."""
    exchange: Any = gateway.exchange
    leases = HeldLeases(gateway.leases, snapshot)
    held: Exchange = HeldExchange(exchange, leases, deadline)
    return dataclasses.replace(gateway, exchange=held, leases=leases)

"""The parts of a running proxy, as one value that connections and handlers share."""

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from thermocline_common.coverage import Tier
from thermocline_proxy.back_pressure import BackPressure
from thermocline_proxy.commands.fail_point import FailPoint
from thermocline_proxy.cursors import Cursors
from thermocline_proxy.exchange import TierExchange, Upstreams
from thermocline_proxy.hello import Limits, common_limits
from thermocline_proxy.leaving import Leaving, Phase
from thermocline_proxy.listener import Complaints
from thermocline_proxy.logins import Logins
from thermocline_proxy.observe import Observer
from thermocline_proxy.owners import Owners
from thermocline_proxy.ports import Gateway, Request
from thermocline_proxy.sessions import ServiceId
from thermocline_proxy.settings import Settings
from thermocline_proxy.state import LeaseKeeper
from thermocline_proxy.times import TierClock

PATIENCE_SECONDS: Final = 60.0
"""How long a write that no driver repeats waits for room in the oplog."""


@dataclass(slots=True)
class Proxy:
    """One process's proxy. ``address``: its own ``host:port``; ``leaving``: how it takes leave."""

    upstreams: Upstreams
    exchange: TierExchange
    cursors: Cursors
    leases: LeaseKeeper
    logins: Logins
    observer: Observer
    gateway: Gateway
    settings: Callable[[], Settings]
    proxy_id: uuid.UUID
    pressure: BackPressure
    owners: Owners
    complaints: Complaints = field(default_factory=lambda: Complaints(time.monotonic))
    service_id: ServiceId = field(default_factory=ServiceId)
    leaving: Leaving = field(default_factory=Leaving)
    fail_point: FailPoint = field(default_factory=FailPoint)
    address: str = ""
    pid: int = field(default_factory=os.getpid)

    @property
    def draining(self) -> bool:
        """It was told to stop, and says so in its hello."""
        return self.leaving.phase is Phase.LEAVING

    async def admit(self, request: Request) -> None:
        """Wait as long as writers have to, because replay is behind. Raises ``CommandError`` 50 or 262."""
        repeated = "txnNumber" in request.command.fields
        hold = self.settings().barrier_timeout if repeated else PATIENCE_SECONDS
        await self.pressure.admit(request.command.size, request.deadline, hold)

    @property
    def limits(self) -> Limits | None:
        """What all members of both tiers can do that can be reached now; None where none can."""
        return common_limits(
            [
                Limits(
                    server.min_wire_version,
                    server.max_wire_version,
                    server.logical_session_timeout_minutes,
                    server.max_bson_size,
                    server.max_message_size,
                    server.max_write_batch_size,
                )
                for members in self.upstreams.members.values()
                for server in members.known
            ]
        )

    def clock(self, tier: Tier) -> TierClock:
        """The cluster times of a tier."""
        return self.upstreams.clocks[tier]

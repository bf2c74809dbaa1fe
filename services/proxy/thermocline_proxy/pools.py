"""All connections to the members of both tiers: a pool for each member and user."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from thermocline_common.coverage import Tier
from thermocline_proxy.ports import Identity
from thermocline_proxy.slots import Slots
from thermocline_proxy.upstream import Endpoint, Pool

REAP_SECONDS: Final = 20.0
LOST_SECONDS: Final = 3.0


@dataclass(slots=True)
class Pools:
    """All pools of both tiers."""

    endpoints: dict[Tier, Endpoint]
    pools: dict[tuple[Tier, str, Identity | None], Pool] = field(default_factory=dict)
    slots: dict[tuple[Tier, str], Slots[Pool]] = field(default_factory=dict)
    lost: dict[tuple[Tier, str], float] = field(default_factory=dict)
    """Since when a member with connections can't be reached."""

    def pool(self, tier: Tier, address: str, identity: Identity | None) -> Pool:
        """The pool, made where there is none yet."""
        key = (tier, address, identity)
        found = self.pools.get(key)
        if found is None:
            endpoint = self.endpoints[tier]
            slots = self.slots.get((tier, address))
            if slots is None:
                slots = self.slots[tier, address] = Slots(endpoint.max_connections)
            found = self.pools[key] = Pool(endpoint, address, identity, slots)
        return found

    def connected(self, tier: Tier, identity: Identity | None) -> bool:
        """Whether this user has a connection to the tier."""
        return any(
            pool.open for (at, _, who), pool in self.pools.items() if at is tier and who == identity
        )

    def cut_lost(self, reachable: Mapping[Tier, Collection[str]], now: float) -> None:
        """End the connections to members that haven't been reachable for a while: a host that froze, or
        was cut off, answers no command that waits there, and its driver can send it to another one."""
        for (tier, address), slots in self.slots.items():
            if address in reachable[tier] or not slots.used:
                self.lost.pop((tier, address), None)
            elif now - self.lost.setdefault((tier, address), now) >= LOST_SECONDS:
                del self.lost[tier, address]
                for pool in list(slots.pools):
                    pool.close()

    async def reap(self) -> None:
        """Close idle connections, again and again."""
        while True:
            await asyncio.sleep(REAP_SECONDS)
            now = time.monotonic()
            for key, pool in list(self.pools.items()):
                pool.reap(now)
                if not (pool.open or pool.opening or pool.waiting):
                    pool.retired = True
                    pool.slots.pools.discard(pool)
                    del self.pools[key]

    def close(self) -> None:
        """Close everything."""
        for pool in self.pools.values():
            pool.close()

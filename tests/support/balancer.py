"""A TCP balancer before several proxies: each new connection goes to the next one that takes it."""

import asyncio
from collections.abc import Sequence

from support.relay import Ends, Relay


class Balancer(Relay):
    """``with Balancer(ports) as balancer``: listens on ``balancer.port``.

    ``accepted``: how many connections each target got.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        super().__init__()
        self.targets = list(targets)
        self.accepted = dict.fromkeys(targets, 0)
        self._next = 0

    async def connect(self) -> Ends:
        """The next target that takes it."""
        for _ in self.targets:
            target = self.targets[self._next % len(self.targets)]
            self._next += 1
            try:
                ends = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                continue
            self.accepted[target] += 1
            return ends
        raise ConnectionError("no target takes connections")

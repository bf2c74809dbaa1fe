"""Back-pressure of one client connection: when to stop reading from it, and when to stop answering."""

import asyncio


class Flow:
    """``blocked``: the client doesn't take its answers; no further command of it is begun."""

    __slots__ = ("_reading", "blocked", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.blocked = False
        self._reading = True

    def waiting(self, commands: int) -> None:
        """So many whole commands wait: read on only while there is none."""
        wanted = commands == 0
        if wanted is self._reading or self.transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

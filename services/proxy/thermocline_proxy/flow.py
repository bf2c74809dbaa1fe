"""Back-pressure of one client connection: when to stop reading from it, and when to stop answering."""

import asyncio


class Flow:
    """``blocked``: the client doesn't take its answers; no further command of it is begun."""

    __slots__ = ("_free", "_reading", "blocked", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.blocked = False
        self._free: asyncio.Future[None] | None = None
        self._reading = True

    def block(self) -> None:
        """The client's answers pile up."""
        self.blocked = True

    def unblock(self) -> None:
        """They don't any more."""
        self.blocked = False
        if self._free is not None and not self._free.done():
            self._free.set_result(None)

    async def writable(self) -> None:
        """Wait until the client takes its answers."""
        while self.blocked:
            self._free = asyncio.get_running_loop().create_future()
            await self._free

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

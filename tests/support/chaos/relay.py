"""Relays between any two parts, in user space: links that are cut, slow, or deaf in one direction.

A process of its own (``python -m support.chaos.relay``), told what to do by lines of JSON. Who a
connection comes from is learnt from the kernel's table of sockets, so nobody has to be configured.
"""

import asyncio
import json
import random
import sys
from collections.abc import Iterable, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Any

from support.chaos.rules import Effect, Rule, drops, effect_on


class Sources:
    """Which process a loopback connection comes from, as the kernel's tables tell.

    That takes milliseconds, so it is asked only while a rule depends on it.
    """

    def __init__(self) -> None:
        self.pids: dict[int, str] = {}

    def learn(self, links: Iterable["Link"], wanted: AbstractSet[str]) -> None:
        """Tell these links whether they come from one of these."""
        asking = [link for link in links if wanted - link.known.keys()]
        if not asking:
            return
        inodes = self._inodes()
        for name in wanted:
            held = self._held_by(name)
            for link in asking:
                if name not in link.known:
                    link.known[name] = inodes.get(link.port) in held
        # Nobody else connects to the proxies.
        for link in asking:
            link.known["application"] = True

    def _held_by(self, name: str) -> frozenset[str]:
        held = set()
        for pid in [pid for pid, known in self.pids.items() if known == name]:
            try:
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    held.add(self._led_to(descriptor))
            except OSError:
                continue
        return frozenset(held)

    @staticmethod
    def _led_to(descriptor: Path) -> str:
        try:
            return str(descriptor.readlink())
        except OSError:
            return ""

    @staticmethod
    def _inodes() -> dict[int, str]:
        """What sockets are called among a process's files, by local port."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        return {int(row[1].rpartition(":")[2], 16): f"socket:[{row[9]}]" for row in rows}


class Relay:
    """All links of a cluster."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.sources = Sources()
        self.links: set[Link] = set()
        self.delay = random.Random(1)

    async def listen(self, name: str, target: int, delay: float = 0.0) -> int:
        """A new port that leads to ``target``, ``delay`` seconds away: each way takes so long."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Link(self, name, target, delay).near, "127.0.0.1", 0, backlog=1024
        )
        return int(server.sockets[0].getsockname()[1])

    def change(self, rules: list[Rule]) -> None:
        """Other rules are in force; connections that lost something end where their link works again."""
        self.rules = rules
        self.look(list(self.links))
        for link in list(self.links):
            if link.doomed and link.effect in (None, Effect.SLOW):
                link.abort()

    def look(self, links: Sequence["Link"]) -> None:
        """What the rules in force say of these links."""
        for target in {link.name for link in links}:
            concerned = [rule for rule in self.rules if rule.target in (None, target)]
            these = [link for link in links if link.name == target]
            wanted = {rule.source for rule in concerned if rule.source is not None}
            if wanted:
                self.sources.learn(these, wanted)
            for link in these:
                link.effect = effect_on(concerned, link.known.__getitem__, target)


class Link:
    """One relayed connection: two ends. ``known``: whether it comes from one part or another."""

    def __init__(self, relay: Relay, name: str, target: int, delay: float = 0.0) -> None:
        self.relay = relay
        self.delay = delay
        self.name = name
        self.target = target
        self.port = 0
        self.known: dict[str, bool] = {}
        self.effect: Effect | None = None
        self.doomed = False
        self.near = End(self, forward=True)
        self.far = End(self, forward=False)
        self.near.peer, self.far.peer = self.far, self.near

    def opened(self) -> None:
        """Somebody connected."""
        self.relay.links.add(self)
        assert self.near.transport is not None
        self.port = int(self.near.transport.get_extra_info("peername")[1])
        if self.relay.rules:
            self.relay.look([self])
        self.near.task = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self.far, "127.0.0.1", self.target
            )
        except OSError:
            self.near.close()

    def lose(self) -> None:
        """Something was lost: whatever happens, this connection has no future."""
        self.doomed = True

    def abort(self) -> None:
        """Reset both ends."""
        self.relay.links.discard(self)
        for end in (self.near, self.far):
            if end.transport is not None:
                end.transport.abort()

    def ended(self, end: "End") -> None:
        """One end was closed."""
        if drops(self.effect, end.forward):
            self.lose()
            return
        self.relay.links.discard(self)
        assert end.peer is not None
        end.peer.finish()


class End(asyncio.Protocol):
    """One end of a link; what it receives goes to the other one."""

    def __init__(self, link: Link, *, forward: bool) -> None:
        self.link = link
        self.forward = forward
        self.peer: End | None = None
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Future[None] | None = None
        self._waiting: list[bytes] = []
        self._due = 0.0
        self._finishing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment] # uvloop's isn't a subclass
        assert self.transport is not None
        if self.forward:
            self.link.opened()
            return
        for data in self._waiting:
            self.transport.write(data)
        self._waiting.clear()
        if self._finishing:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        link, peer = self.link, self.peer
        assert peer is not None
        if link.effect is None and not self._due and not link.delay:
            peer.put(data)
        elif drops(link.effect, self.forward) or link.doomed:
            link.lose()
        else:
            self._later(data)

    def _later(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        slow = self.link.effect is Effect.SLOW
        wait = self.link.relay.delay.uniform(0.01, 0.25) if slow else self.link.delay
        # Later than the one before: a heap of timers may turn equal ones round.
        self._due = max(self._due + 1e-6, loop.time() + wait)
        loop.call_at(self._due, self._deliver, data, self._due)

    def _deliver(self, data: bytes, due: float) -> None:
        if drops(self.link.effect, self.forward) or self.link.doomed:
            self.link.lose()
            return
        assert self.peer is not None
        self.peer.put(data)
        if due == self._due:
            self._due = 0.0
            if self._finishing:
                self.peer.close()

    def put(self, data: bytes) -> None:
        """Send it, or keep it until this end is connected."""
        if self.transport is None:
            self._waiting.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def finish(self) -> None:
        """The other end was closed: close when everything was sent."""
        self._finishing = True
        assert self.peer is not None
        if not self.peer._due:
            self.close()

    def close(self) -> None:
        """Close this end, now or once it is connected."""
        self._finishing = True
        if self.transport is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.link.ended(self)


async def serve() -> None:
    """Follow the commands on standard input until it ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    relay = Relay()
    while line := await reader.readline():
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if command["do"] == "listen":
            answer["port"] = await relay.listen(
                command["name"], command["target"], command.get("delay", 0.0)
            )
        elif command["do"] == "pids":
            relay.sources.pids = {int(pid): name for pid, name in command["pids"].items()}
        elif command["do"] == "rules":
            relay.change([Rule(s, t, Effect(e)) for s, t, e in command["rules"]])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run it."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())


if __name__ == "__main__":
    main()

"""Asks the archive what a client may know, and answers with what holds for the proxy."""

import datetime as dt
import resource
import time
from pathlib import Path
from typing import Final

from thermocline_proxy.archive_commands import ArchiveCommands
from thermocline_proxy.exchange import error_code
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.monitoring import Figures, served_commands, server_status
from thermocline_proxy.ports import Request

_STARTED: Final = time.monotonic()
_MEMORY: Final = Path("/proc/self/statm")


class SelfReport:
    """serverStatus and listCommands."""

    def __init__(self, proxy: Proxy, archive: ArchiveCommands) -> None:
        self._proxy = proxy
        self._archive = archive

    async def status(self, request: Request) -> bytes:
        """serverStatus; the archive decides whether the client may see it."""
        raw = await self._archive.plain(request)
        return raw if error_code(raw) else server_status(raw, figures(self._proxy))

    async def commands(self, request: Request) -> bytes:
        """listCommands."""
        return served_commands(await self._archive.plain(request))


def figures(proxy: Proxy) -> Figures:
    """What this process uses and did."""
    observer = proxy.observer
    usage = resource.getrusage(resource.RUSAGE_SELF)
    virtual, resident = usage.ru_maxrss * 1024, usage.ru_maxrss * 1024
    if _MEMORY.exists():
        page = resource.getpagesize()
        virtual, resident = (int(field) * page for field in _MEMORY.read_text().split()[:2])
    return Figures(
        host=proxy.address,
        pid=proxy.pid,
        uptime=time.monotonic() - _STARTED,
        now=dt.datetime.now(dt.UTC),
        connections=observer.connections,
        active=observer.active(),
        accepted=observer.accepted,
        most_connections=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        resident=resident,
        virtual=virtual,
        page_faults=usage.ru_majflt,
        bytes_in=observer.bytes_in,
        bytes_out=observer.bytes_out,
        commands={name: counter.n for name, counter in observer.commands.items() if counter.n},
        errors=sum(observer.errors.values()),
        own=observer.status(),
    )

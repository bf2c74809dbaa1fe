"""What the services' ``/status`` says, asked from pod to pod."""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from thermocline_common.clock import monotonic
from thermocline_operator.status.objects import admin_ports, as_one, component_of

log = logging.getLogger(__name__)

TIMEOUT: Final = 3.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A report, and when it came, on the monotonic clock."""

    report: Mapping[str, Any]
    at: float


class Reporter:
    """Remembers the last report of each pod, by the pod's uid."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._heard: dict[str, Heard] = {}

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    def last(self, pod: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, float]:
        """The pod's last report and its age in seconds."""
        heard = self._heard.get(pod["metadata"]["uid"])
        return (None, 0.0) if heard is None else (heard.report, monotonic() - heard.at)

    def forget(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Forget pods that are gone."""
        for pod in pods:
            self._heard.pop(pod["metadata"]["uid"], None)

    async def ask(self, pods: Iterable[Mapping[str, Any]], resource_uid: str) -> None:
        """Ask every pod that has an address; who doesn't answer keeps its last report."""
        await asyncio.gather(*(self._ask(pod, resource_uid) for pod in pods))

    async def _ask(self, pod: Mapping[str, Any], resource_uid: str) -> None:
        status = pod.get("status") or {}
        address, component = status.get("podIP"), component_of(pod)
        if not address or component is None or status.get("phase") in ("Succeeded", "Failed"):
            return
        began = monotonic()
        try:
            # A pod of several processes is as well heard of as the one that answers least.
            told = await asyncio.gather(
                *(self._fetch(str(address), port) for port in admin_ports(pod))
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("no report", extra={"pod": pod["metadata"]["name"], "error": str(error)})
            return
        # An address is used again: another resource's pod may have it by now.
        if all(r.get("service") == component.value and r.get("uid") == resource_uid for r in told):
            self._heard[pod["metadata"]["uid"]] = Heard(as_one(told), began)

    async def _fetch(self, address: str, port: int) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT),
                # Kept connections would show as stuck ones after a pod's address has changed hands.
                connector=aiohttp.TCPConnector(limit=50, force_close=True),
            )
        host = f"[{address}]" if ":" in address else address
        async with self._session.get(f"http://{host}:{port}/status") as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            raw = await response.read()
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("not an object")
        return found

"""One operator works at a time: a Lease of our own making.

The client library's leader election can't create the Lease, has no time-outs and writes local time as
UTC. Here only a monotonic clock counts, started before each request; any error counts as not renewed;
who couldn't renew in time ends.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from typing import Any, Final

from thermocline_common.clock import monotonic
from thermocline_operator.api import LEASES, Api, ApiError

log = logging.getLogger(__name__)

DURATION: Final = 30.0
"""Seconds for which a holder may be silent before another takes over."""
DEADLINE: Final = 20.0
"""Seconds after its last renewal at which a holder ends: well before anybody takes over."""
RENEW: Final = 5.0


class LeaseLost(Exception):
    """The Lease couldn't be renewed in time, or somebody else holds it."""


class LeaderLease:
    """``identity`` names this process, and no other one ever."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration: float = DURATION,
        deadline: float = DEADLINE,
        renew: float = RENEW,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._deadline = deadline
        self._renew = renew
        self._clock = clock
        self._body: dict[str, Any] | None = None
        self._renewed = float("-inf")
        self._seen: tuple[Any, float] = (None, float("-inf"))
        self.held = False

    async def acquire(self) -> None:
        """Wait until this process holds the Lease; errors are waited out."""
        told = None
        while True:
            began = self._clock()
            try:
                holder = await self._try(began)
            except ApiError as error:
                holder = f"nobody known ({error})"
            if holder is None:
                self.held = True
                log.info("this process holds the lease", extra={"identity": self._identity})
                return
            if holder != told:
                log.info("standing by", extra={"holder": holder})
                told = holder
            await asyncio.sleep(min(self._renew, 2.0))

    async def keep(self) -> None:
        """Renew until cancelled. Raises :class:`LeaseLost`."""
        while True:
            await asyncio.sleep(self._renew if self._clock() - self._renewed < self._renew else 1.0)
            began = self._clock()
            try:
                async with asyncio.timeout(max(0.1, self._renewed + self._deadline - began)):
                    holder = await self._try(began)
            except (ApiError, TimeoutError) as error:
                log.warning("the lease wasn't renewed: %s", str(error) or "no answer in time")
                holder = None
            if holder is not None:
                self.held = False
                raise LeaseLost(f"{holder} holds the lease")
            if self._clock() - self._renewed >= self._deadline:
                self.held = False
                raise LeaseLost("the lease couldn't be renewed in time")

    async def release(self) -> None:
        """Give it back, so that another needn't wait; errors are logged."""
        if not self.held or self._body is None:
            return
        self.held = False
        spec = {**self._body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._api.replace(
                LEASES, self._namespace, self._name, {**self._body, "spec": spec}
            )
        except ApiError as error:
            log.warning("the lease wasn't given back: %s", error)

    async def _try(self, began: float) -> str | None:
        """One attempt to take or renew it, begun at ``began``; who holds it instead, or None."""
        found = self._body if self.held else None
        if found is None:
            found = await self._api.get(LEASES, self._namespace, self._name)
        try:
            if found is None:
                body = {
                    "apiVersion": LEASES.group_version,
                    "kind": LEASES.name,
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": self._spec({}),
                }
                self._body = await self._api.create(LEASES, self._namespace, body)
            else:
                holder = self._other_holder(found)
                if holder is not None:
                    return holder
                spec = self._spec(found.get("spec") or {})
                self._body = await self._api.replace(
                    LEASES, self._namespace, self._name, {**found, "spec": spec}
                )
        except ApiError as error:
            if error.status != 409:
                raise
            # Somebody was first, or changed it: read it at the next attempt.
            self._body = await self._api.get(LEASES, self._namespace, self._name)
            holder = ((self._body or {}).get("spec") or {}).get("holderIdentity")
            if self.held and (self._body is None or holder == self._identity):
                raise  # our own answer got lost, or somebody deleted it: once more
            return str(holder or "somebody who was first")
        self._renewed = began
        return None

    def _other_holder(self, found: dict[str, Any]) -> str | None:
        """Who holds it, if that is another that renewed it within its duration, by our own clock."""
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity")
        if not holder or holder == self._identity:
            return None
        version = found["metadata"].get("resourceVersion")
        now = self._clock()
        if version != self._seen[0]:
            self._seen = (version, now)
            return str(holder)
        waited = now - self._seen[1]
        return None if waited >= max(self._duration, _seconds(spec)) else str(holder)

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = old.get("holderIdentity") == self._identity
        turns = int(old.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, int(self._duration)),
            "acquireTime": old.get("acquireTime") if same else now,
            "renewTime": now,
            "leaseTransitions": turns if same or not old else turns + 1,
        }


def _seconds(spec: dict[str, Any]) -> float:
    found = spec.get("leaseDurationSeconds")
    return float(found) if isinstance(found, int | float) else 0.0

"""Events for ``kubectl describe``: repeated ones are counted, and no resource floods its namespace."""

import datetime as dt
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from thermocline_common import names
from thermocline_common.clock import monotonic
from thermocline_operator.api import EVENTS, Api, ApiError
from thermocline_operator.plan.labels import MANAGER
from thermocline_operator.status.events import Event

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 300.0
"""The same event is written again at most this often."""
BURST: Final = 25
REFILL_SECONDS: Final = 30.0
"""One resource writes so many events at once, and then one in so many seconds."""
REMEMBERED: Final = 2_000


@dataclass(slots=True)
class _Told:
    count: int
    at: float


class Announcer:
    """Writes events; what can't be written is logged and forgotten."""

    def __init__(self, api: Api, identity: str) -> None:
        self._api = api
        self._identity = identity
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()
        self._buckets: dict[str, tuple[float, float]] = {}

    async def tell(self, body: Mapping[str, Any], event: Event) -> None:
        """An event about a resource, given as the API server's object."""
        metadata = body["metadata"]
        uid = str(metadata["uid"])
        # With the uid: another resource of the same name has events of its own.
        digest = hashlib.sha256(f"{uid}{event.reason}{event.bounded}".encode()).hexdigest()[:12]
        told = self._told.get((uid, digest))
        now = monotonic()
        if told is not None and now - told.at < AGAIN_SECONDS:
            return
        if not self._may(uid, now):
            log.info("event left out: %s: %s", event.reason, event.bounded)
            return
        count = 1 if told is None else told.count + 1
        self._told[uid, digest] = _Told(count, now)
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        log.info(
            "%s: %s",
            event.reason,
            event.bounded,
            extra={"resource": f"{metadata['namespace']}/{metadata['name']}"},
        )
        try:
            await self._write(metadata, event, f"{metadata['name']}.{digest}", count)
        except ApiError as error:
            log.debug("event not written", extra={"error": str(error)})

    def forget(self, uid: str) -> None:
        """A resource is gone."""
        self._buckets.pop(uid, None)

    def _may(self, uid: str, now: float) -> bool:
        left, at = self._buckets.get(uid, (float(BURST), now))
        left = min(float(BURST), left + (now - at) / REFILL_SECONDS)
        self._buckets[uid] = (max(0.0, left - 1), now)
        return left >= 1

    async def _write(
        self, metadata: Mapping[str, Any], event: Event, name: str, count: int
    ) -> None:
        namespace = metadata["namespace"]
        time = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if count > 1:
            again = {"count": count, "lastTimestamp": time}
            try:
                await self._api.merge(EVENTS, namespace, name, again)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": metadata["name"],
                "namespace": namespace,
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "reason": event.reason.value,
            "message": event.bounded,
            "type": event.type,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "reportingInstance": self._identity,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": count,
        }
        try:
            await self._api.create(EVENTS, namespace, body)
        except ApiError as error:
            if error.status != 409:
                raise
            # From before this process: how often isn't known.
            await self._api.merge(EVENTS, namespace, name, {"lastTimestamp": time})
